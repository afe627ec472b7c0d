"""XML, read a little at a time and kept nowhere: handlers are told of its elements as they come.

What makes XML dangerous is its document type (entities that unfold without end, or that name other
files); no format that is read here has one, so a document that declares one is refused there and
then. An element may be nested as deep and repeated as often as it likes, but not be large.
"""

from collections.abc import Callable
from xml.parsers import expat

from plfl.data.tables.columns import reason_of
from plfl.data.tables.part import CHUNK, Content

# Bytes of a tag, with its attributes.
_LARGEST_TAG = 1 << 20


class Refused(Exception):
    """Why a document is not what it should be."""


class Scan:
    """Handlers of elements, by names without prefixes."""

    def __init__(self) -> None:
        self.starts: dict[str, Callable[[dict[str, str]], None]] = {}
        self.ends: dict[str, Callable[[], None]] = {}
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.StartDoctypeDeclHandler = _refuse_doctype

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        act = self.starts.get(name.rpartition(":")[2])
        if act is not None:
            act(attributes)

    def end(self, name: str) -> None:
        """An element ends."""
        act = self.ends.get(name.rpartition(":")[2])
        if act is not None:
            act()

    def listen(self, hear: Callable[[str], None] | None) -> None:
        """Hand over text from here on, or no more of it."""
        self.parser.CharacterDataHandler = hear


def _refuse_doctype(*_: object) -> None:
    raise Refused("it declares a document type, which such a file has no use for")


def read(content: Content, scan: Scan) -> None:
    """Tell the handlers of a scan what is in a document."""
    parser = scan.parser
    num_bytes = 0
    try:
        with content.open() as stream:
            while chunk := stream.read(CHUNK):
                parser.Parse(chunk, False)
                num_bytes += len(chunk)
                if num_bytes - parser.CurrentByteIndex > _LARGEST_TAG:
                    raise Refused("a tag is too long")
        parser.Parse(b"", True)
    except (expat.ExpatError, UnicodeError, LookupError) as error:
        raise content.fault(f"its XML is cut off or damaged ({reason_of(error)})") from None
    except Refused as error:
        line = parser.CurrentLineNumber
        raise content.fault(f"its XML is refused ({error})", line=line) from None
