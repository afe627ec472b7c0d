"""The elements of a Green Button (ESPI) document: resources, their links, and all readings.

Only what is needed is kept: readings in three arrays, a few texts of each resource, and the links
of the entry around it. What they mean is said in `plfl.data.tables.espi`.
"""

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from plfl.data.tables.markup import Refused, Scan

_RESOURCES = ("UsagePoint", "MeterReading", "ReadingType", "IntervalBlock")
# Texts that are kept, of the resource or reading that they stand in.
_TYPE_FIELDS = ("uom", "powerOfTenMultiplier", "flowDirection", "accumulationBehaviour")
_FIELDS = (*_TYPE_FIELDS, "commodity", "intervalLength", "kind", "start", "duration", "value")
_LONGEST_TEXT = 1000
_MOST_LINKS = 100
_MOST_RESOURCES = 1_000_000
_LAST_SECOND = 253_402_300_799  # of the year 9999


class Entry:
    """What a feed says around a resource."""

    def __init__(self) -> None:
        self.title = ""
        self.links: dict[str, list[str]] = {"self": [], "up": [], "related": []}  # addresses

    def own(self) -> list[str]:
        """Its address, and that of the list it is in."""
        return self.links["self"] + self.links["up"]


@dataclass(eq=False)
class Resource:
    """A usage point, a meter reading, a reading type or a block."""

    kind: str
    order: int
    entry: Entry
    fields: dict[str, str] = field(default_factory=dict)
    # Of a block: its readings among all of the feed.
    first: int = 0
    last: int = 0

    def say(self, name: str) -> str:
        """What it says, if it does."""
        return self.fields.get(name, "")


class Feed(Scan):
    """Collects resources as their elements come."""

    def __init__(self) -> None:
        super().__init__()
        self.resources: dict[str, list[Resource]] = {kind: [] for kind in _RESOURCES}
        self.root = ""
        self.begins: array[int] = array("q")
        self.durations: array[int] = array("q")
        self.values: array[float] = array("d")
        self._num = 0
        self._entry: Entry | None = None
        self._open: list[Resource] = []
        self._reading: dict[str, str] | None = None
        self._text: list[str] | None = None
        self._length = 0
        self.starts = {"entry": self._start_entry, "link": self._link, "title": self._start_text}
        self.starts |= dict.fromkeys(_FIELDS, self._start_text)
        self.starts["IntervalReading"] = self._start_reading
        self.ends = {"entry": self._end_entry, "title": self._end_title}
        self.ends["IntervalReading"] = self._end_reading
        for name in _FIELDS:
            self.ends[name] = self._ender(name)
        for kind in _RESOURCES:
            self.starts[kind] = self._starter(kind)
            self.ends[kind] = self._end_resource

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins; the first is the root."""
        self.root = self.root or name.rpartition(":")[2]
        super().start(name, attributes)

    def _start_entry(self, _: dict[str, str]) -> None:
        self._entry = Entry()

    def _end_entry(self) -> None:
        self._entry = None

    def _link(self, attributes: dict[str, str]) -> None:
        relation = attributes.get("rel", "")
        if self._entry is None or relation not in self._entry.links:
            return
        links = self._entry.links[relation]
        links.append(attributes.get("href", "").rstrip("/"))
        if len(links) > _MOST_LINKS:
            raise Refused(f"an entry has more than {_MOST_LINKS} links")

    def _starter(self, kind: str) -> Callable[[dict[str, str]], None]:
        def start(_: dict[str, str]) -> None:
            self._num += 1
            if self._num > _MOST_RESOURCES:
                raise Refused(f"it has more than {_MOST_RESOURCES:,} usage points and blocks")
            made = Resource(kind, self._num, self._entry or Entry(), first=len(self.begins))
            self.resources[kind].append(made)
            self._open.append(made)

        return start

    def _end_resource(self) -> None:
        self._open.pop().last = len(self.begins)

    def _start_text(self, _: dict[str, str]) -> None:
        self._text = []
        self._length = 0
        self.listen(self._hear)

    def _hear(self, text: str) -> None:
        self._length += len(text)
        if self._text is not None and self._length <= _LONGEST_TEXT:
            self._text.append(text)

    def _end_text(self) -> str:
        text = "".join(self._text or ()).strip()
        self._text = None
        self.listen(None)
        return text

    def _end_title(self) -> None:
        text = self._end_text()
        if self._entry is not None and not self._entry.title:
            self._entry.title = text

    def _ender(self, name: str) -> Callable[[], None]:
        def end() -> None:
            text = self._end_text()
            if self._reading is not None:
                self._reading[name] = text
            elif self._open:
                self._open[-1].fields.setdefault(name, text)

        return end

    def _start_reading(self, _: dict[str, str]) -> None:
        self._reading = {}

    def _end_reading(self) -> None:
        reading = self._reading or {}
        self._reading = None
        if self._open and "start" in reading and "value" in reading:
            self.begins.append(_whole(reading["start"], "start"))
            self.durations.append(_whole(reading.get("duration", "0"), "duration"))
            self.values.append(_number(reading["value"]))


def _whole(text: str, what: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise Refused(f"{text[:20]!r} is no {what} in seconds") from None
    if not 0 <= number <= _LAST_SECOND:
        raise Refused(f"a {what} of {text[:20]} seconds is none")
    return number


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise Refused(f"{text[:20]!r} is no number") from None
    if not math.isfinite(number):
        raise Refused(f"a value is {text[:20]!r}")
    return number
