"""Green Button's ESPI XML: usage points, their meter readings, and blocks of intervals.

A usage point is a meter. It has meter readings (energy delivered, energy received, ...), each of a
reading type that says unit, power of ten and direction, and of blocks of intervals: start in
seconds since 1970, duration, value. In a feed these are entries beside each other whose links say
what belongs to what; where links are missing, an entry belongs to the last one before it. What is
not electric energy or power (gas, water, reactive energy) is skipped, with a note.

NAESB REQ.21, Energy Services Provider Interface.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from plfl.data.rules import Finding
from plfl.data.tables.channels import Channel, make_part
from plfl.data.tables.espi_feed import Feed, Resource
from plfl.data.tables.markup import read as read_markup
from plfl.data.tables.part import Content, Part

# Wh in a unit; power has to be multiplied by its hours.
_ENERGY = {"72": 1.0, "31": 1 / 3600}
_POWER = {"38": 1.0}
_UNITS = {
    "": "no unit",
    "42": "m3",
    "61": "VA",
    "63": "VAr",
    "71": "VAh",
    "73": "VArh",
    "119": "ft3",
    "128": "gallons",
    "132": "Btu",
    "134": "litres",
    "169": "therms",
}
_SERVICES = {"1": "gas", "2": "water", "4": "heat", "5": "refuse", "6": "sewerage"}
_DIRECTIONS = {"": "delivered", "0": "delivered", "1": "delivered", "19": "received", "4": "net"}
_ELECTRIC = ("", "0", "1", "2", "3")
_REGISTERS = ("1", "2", "3")  # values that count up
_MOST_POWER = 15
_LONGEST_LENGTH = 9  # digits


class _Stream(NamedTuple):
    """The readings of one type at one usage point."""

    id: str
    direction: str
    # The best of several comes first: intervals, not a register; energy, not power; the shortest.
    is_register: bool
    is_power: bool
    length: int  # seconds
    starts: np.ndarray
    energy: np.ndarray  # kWh


def read_espi(content: Content) -> Part:
    """The usage points of a Green Button document."""
    feed = Feed()
    read_markup(content, feed)
    if not any(feed.resources.values()):
        raise content.fault(
            f"it is XML, but its {feed.root[:40]!r} is no Green Button (ESPI) feed, the only XML "
            "that is read"
        )
    skipped: list[Finding] = []
    streams = list(_find_streams(content, feed, skipped))
    chosen = _choose(content, streams, skipped)
    if not chosen:
        reasons = "; ".join(finding.detail for finding in skipped[:3])
        raise content.fault(f"it has no reading of electric energy ({reasons or 'none'})", "PLF301")
    says = {"cumulative": True} if chosen[0].is_register else {}
    together: dict[tuple[str, str], list[_Stream]] = {}
    for stream in chosen:
        together.setdefault((stream.id, stream.direction), []).append(stream)
    channels = [_join(each) for each in together.values()]
    return make_part(content, channels, skipped, format="espi", zone="UTC", says=says)


def _find_streams(content: Content, feed: Feed, skipped: list[Finding]) -> Iterator[_Stream]:
    names = _name_points(feed.resources["UsagePoint"])
    together: dict[tuple[Resource | None, Resource | None], list[Resource]] = {}
    for block, point, kind in _link_blocks(feed.resources):
        together.setdefault((point, kind), []).append(block)
    for (point, kind), blocks in together.items():
        if kind is None:
            raise content.fault("no ReadingType says in which unit its values are")
        name = names[point] if point else "UsagePoint 1"
        reason = _why_not(point, kind)
        if reason:
            skipped.append(content.skip(f"{name} is {reason}"))
        else:
            yield _make_stream(content, feed, name, kind, blocks)


def _name_points(points: Sequence[Resource]) -> dict[Resource, str]:
    """Ids of usage points: the last piece of their address, their title, or their number."""
    pieces = ["".join(each.entry.links["self"][:1]).rpartition("/")[2] for each in points]
    titles = [each.entry.title for each in points]
    counts = [str(number) for number in range(1, len(points) + 1)]
    tells = [names for names in (pieces, titles) if all(names) and len(set(names)) == len(names)]
    chosen = tells[0] if tells else counts
    return {
        each: name if chosen is titles else f"UsagePoint {name}"
        for each, name in zip(points, chosen, strict=True)
    }


def _link_blocks(
    resources: dict[str, list[Resource]],
) -> Iterator[tuple[Resource, Resource | None, Resource | None]]:
    """Each block with its usage point and its reading type."""
    points = _Owners(resources["UsagePoint"])
    readings = _Owners(resources["MeterReading"])
    types = _Owners(resources["ReadingType"])
    for block in resources["IntervalBlock"]:
        if block.first == block.last:
            continue
        reading = readings.find(block)
        kind = types.find_related(reading) if reading else None
        yield block, points.find(reading or block), kind or types.before(block)


class _Owners:
    """Resources of a kind, found by addresses or by their order."""

    def __init__(self, resources: list[Resource]) -> None:
        self._resources = resources
        self._orders = [each.order for each in resources]
        self._own = {href: each for each in resources for href in each.entry.links["self"]}
        self._related = {href: each for each in resources for href in each.entry.links["related"]}

    def find(self, member: Resource) -> Resource | None:
        """Which of them a resource belongs to."""
        for href in member.entry.own():
            if href in self._related:
                return self._related[href]
            while href:
                href = href.rpartition("/")[0]
                if href in self._own:
                    return self._own[href]
        return self.before(member)

    def find_related(self, member: Resource) -> Resource | None:
        """Which of them a resource names."""
        named = member.entry.links["related"]
        return next((self._own[href] for href in named if href in self._own), None)

    def before(self, member: Resource) -> Resource | None:
        """The last that began before it did, or else the first."""
        at = bisect.bisect(self._orders, member.order)
        return self._resources[max(0, at - 1)] if self._resources else None


def _why_not(point: Resource | None, kind: Resource) -> str | None:
    """Why a reading is no electric energy."""
    service = point.say("kind") if point else ""
    if service not in ("", "0"):
        return _SERVICES.get(service, f"of service kind {service}")
    unit = kind.say("uom")
    if unit not in _ENERGY and unit not in _POWER:
        return f"in {_UNITS.get(unit, f'unit {unit!r}')}"
    if kind.say("commodity") not in _ELECTRIC:
        return f"of commodity {kind.say('commodity')}, not electricity"
    direction = kind.say("flowDirection")
    return None if direction in _DIRECTIONS else f"of flow direction {direction}"


def _make_stream(
    content: Content, feed: Feed, name: str, kind: Resource, blocks: Iterable[Resource]
) -> _Stream:
    at = np.concatenate([np.arange(each.first, each.last) for each in blocks])
    starts = np.asarray(feed.begins)[at]
    durations = np.asarray(feed.durations)[at]
    energy = np.asarray(feed.values)[at] * (_power_of_ten(content, kind) / 1000)
    unit = kind.say("uom")
    is_power = unit in _POWER
    if is_power:
        length = kind.say("intervalLength")
        missing = int(length) if length.isdecimal() and len(length) < _LONGEST_LENGTH else np.nan
        energy = energy * np.where(durations > 0, durations, missing) / 3600
    return _Stream(
        name,
        _DIRECTIONS[kind.say("flowDirection")],
        kind.say("accumulationBehaviour") in _REGISTERS,
        is_power,
        int(np.median(durations)),
        starts,
        energy * (_POWER if is_power else _ENERGY)[unit],
    )


def _power_of_ten(content: Content, kind: Resource) -> float:
    text = kind.say("powerOfTenMultiplier") or "0"
    try:
        power = int(text)
    except ValueError:
        power = _MOST_POWER + 1
    if abs(power) > _MOST_POWER:
        raise content.fault(f"{text[:20]!r} is no powerOfTenMultiplier")
    return float(10.0**power)


def _choose(content: Content, streams: Sequence[_Stream], skipped: list[Finding]) -> list[_Stream]:
    """The best of what a usage point says more than once: as quarter hours and as days, say."""
    forms = [(each.is_register, each.is_power, each.length) for each in streams]
    best: dict[tuple[str, str], tuple[bool, bool, int]] = {}
    for stream, form in zip(streams, forms, strict=True):
        key = (stream.id, stream.direction)
        best[key] = min(form, best.get(key, form))
    is_register = all(form[0] for form in best.values())
    chosen: list[_Stream] = []
    for stream, form in zip(streams, forms, strict=True):
        if form == best[stream.id, stream.direction] and form[0] == is_register:
            chosen.append(stream)
        else:
            skipped.append(content.skip(f"{stream.id} has better readings than {_describe(form)}"))
    return chosen


def _describe(form: tuple[bool, bool, int]) -> str:
    is_register, is_power, length = form
    return f"its {'register' if is_register else 'power' if is_power else 'energy'} per {length} s"


def _join(streams: Sequence[_Stream]) -> Channel:
    starts = np.concatenate([each.starts for each in streams])
    energy = np.concatenate([each.energy for each in streams])
    order = np.argsort(starts, kind="stable")
    return Channel(streams[0].id, streams[0].direction, starts[order], energy[order])
