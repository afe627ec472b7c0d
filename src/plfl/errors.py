"""What can go wrong, and whose move it is.

PlflError
├── BadInput       the user can fix it: exit status 2, one line that says what and how
│   └── Damaged    a file was cut off or altered after it was written
├── RunFailed      the machine gave up (a full disk, say): exit status 1, earlier state intact
│   └── Transient  it may heal by itself: a federation's programs wait and try again
└── Interrupted    the user stopped the run: exit status 130, state saved; a federation's programs
                   end by SIGTERM itself where that stopped them, as service managers want it

An error says what is wrong and, apart from it, the way out. A way out names settings as ‹rounds=80›
and options as ‹--out DIR›: the command line writes `--set rounds=80` and `--out DIR` (`in_shell`),
Python `rounds=80` and `out=DIR` (`in_python`).

Messages may hold text that came from elsewhere. A terminal obeys some characters (it can be
cleared, renamed, or made to type), and others turn a line around: `plain` writes them out.
"""

import logging
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

_SETTING = re.compile(r"‹(\w+)=([^›]*)›")
_OPTION = re.compile(r"‹--([\w-]+)(?: ([^›]*))?›")


def in_shell(text: str) -> str:
    """A way out as somebody types it after `plfl run`.

    >>> in_shell("give ‹time_format=%d/%m/%Y %H:%M›, or ‹--out DIR›")
    "give --set 'time_format=%d/%m/%Y %H:%M', or --out DIR"
    """
    text = _OPTION.sub(lambda found: found[0].strip("‹›"), text)
    return _SETTING.sub(lambda found: f"--set {_quote(found[0].strip('‹›'))}", text)


def in_python(text: str) -> str:
    """A way out as an argument of a function.

    >>> in_python("give ‹timezone=Europe/Rome›, ‹rounds=80› or ‹--out DIR›")
    "give timezone='Europe/Rome', rounds=80 or out=DIR"
    """
    text = _OPTION.sub(_argument, text)
    return _SETTING.sub(lambda found: f"{found[1]}={_literal(found[2])}", text)


def find_settings(text: str) -> dict[str, str]:
    """The first setting that a way out names, if it says a value for it.

    >>> find_settings("say ‹unit=kW› or ‹unit=W›"), find_settings("say ‹id_column=...›")
    ({'unit': 'kW'}, {})
    """
    found = _SETTING.search(text)
    return {found[1]: found[2]} if found and "..." not in found[2] else {}


def _argument(found: re.Match[str]) -> str:
    name = found[1].replace("-", "_")
    return f"{name}={found[2]}" if found[2] else name


def _quote(text: str) -> str:
    return shlex.quote(text) if re.search(r"[\s\"'$*?]", text) else text


def _literal(text: str) -> str:
    if re.fullmatch(r"-?[\d.e-]+|\[.*|\.\.\.", text):
        return text
    return {"true": "True", "false": "False"}.get(text) or repr(text)


class PlflError(Exception):
    """Anything plfl raises on purpose: what is wrong, and the way out."""

    exit_status = 1

    def __init__(self, what: str = "", fix: str = "") -> None:
        super().__init__(what, fix)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return in_python(self.in_words)

    @property
    def in_words(self) -> str:
        """What and fix in a line, with settings still marked."""
        return f"{self.what}; {self.fix}" if self.fix else self.what


class BadInput(PlflError, ValueError):
    """An argument, a config value or a file that cannot be used; the message holds the way out."""

    exit_status = 2


def require(is_so: object, what: str, fix: str = "") -> None:
    """Refuse an input that is not as it has to be.

    >>> require(3 > 0, "rounds must be positive")
    """
    if not is_so:
        raise BadInput(what, fix)


class Damaged(BadInput):
    """A stored file whose content does not match its checksum."""


class RunFailed(PlflError, RuntimeError):
    """A run that had to end; what was saved before is intact."""


class Transient(RunFailed):
    """What may be well again without anybody's help here: a clock, a server that is away, a file
    half copied.
    """


class Interrupted(PlflError):
    """A run that was stopped from outside after its state was saved."""

    exit_status = 130

    def __init__(self, what: str = "", fix: str = "", *, number: int = signal.SIGINT) -> None:
        super().__init__(what, fix)
        self.number = number  # the signal that did it


@contextmanager
def refused_at(place: str) -> Iterator[None]:
    """Whatever is refused meanwhile is said of this place.

    >>> with refused_at("server.toml: "):
    ...     raise BadInput("port = 0 is no port", "write another")
    Traceback (most recent call last):
    plfl.errors.BadInput: server.toml: port = 0 is no port; write another
    """
    try:
        yield
    except BadInput as error:
        raise type(error)(f"{place}{error.what}", error.fix) from None


def plain(text: str) -> str:
    """The text in one line, with everything that is not printable written out as Python would.

    >>> plain("house 7")
    'house 7'
    >>> len("a" + chr(27)), len(plain("a" + chr(27)))
    (2, 5)
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def plain_lines(text: str) -> str:
    """The same for each of its lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


class PlainFormatter(logging.Formatter):
    """Log records whose messages may hold anything; a message is one line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        record.message = plain(record.message)
        return super().formatMessage(record)

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """The lines of its traceback."""
        return plain_lines(super().formatException(ei))
