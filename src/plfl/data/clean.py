"""From readings to a panel: every client's rows are put in order, checked, and placed on one time
grid.

Decisions are the user's (`duplicates`, `allow_export`, `cumulative`, ... in the config) or follow
from the data; each leaves a finding. Energy is conserved: a reading lies in exactly one interval of
the grid, and an interval counts only if readings cover all of it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from plfl.config import Config, count_intervals
from plfl.data.detectors import (
    find_changes,
    find_export,
    find_glitches,
    find_runs,
    find_stuck,
    is_register,
    is_steady,
    num_stuck,
)
from plfl.data.panel import LARGEST, Panel
from plfl.data.readings import Readings, Series
from plfl.data.rules import RULES, Finding, Place
from plfl.data.scratch import Scratch, forget, forgetting
from plfl.data.zones import find_falls, to_utc, utc_offset
from plfl.errors import BadInput

UNITS: dict[str, tuple[float, bool]] = {
    "Wh": (1e-3, False),
    "kWh": (1.0, False),
    "MWh": (1e3, False),
    "W": (1e-3, True),
    "kW": (1.0, True),
    "MW": (1e3, True),
}
"""Factor to kWh or kW, and whether it is power."""
_DAY = 86_400
_SECONDS = np.arange(1, _DAY + 1)
_DIVISORS = _SECONDS[(_DAY % _SECONDS == 0) & ((_SECONDS < 60) | (_SECONDS % 60 == 0))]
"""Intervals that divide a day, in seconds: whole minutes, or less than one."""
_SUSTAINED = 24
"""So many equal steps in a row make a resolution; fewer are gaps."""
_JITTER = 0.1
_LONGEST_PAUSE = 10 * 366 * _DAY
_MANY_INTERVALS = 1_000_000
"""More than that is a wrong stamp, and would make the grid enormous."""


@dataclass(frozen=True)
class Gridded:
    """One client's clean load on a regular grid of its own."""

    id: str
    zone: str
    statics: np.ndarray
    place: Place
    """The client's column."""
    start: int
    """UTC seconds."""
    interval: int
    """Seconds."""
    load: np.ndarray
    """(time,) float64 kWh; NaN where missing."""
    covariates: np.ndarray
    """(time, covariates) float32."""

    @property
    def end(self) -> int:
        """UTC seconds."""
        return self.start + len(self.load) * self.interval


def make_panel(
    readings: Readings, config: Config, scratch: Scratch | None = None
) -> tuple[Panel | None, list[Finding]]:
    """The panel of all clients that can be used (None if there is none), and what was found."""
    scratch = scratch or Scratch()
    if readings.is_cumulative and UNITS[readings.unit][1]:
        raise BadInput(
            f"cumulative = true needs a unit of energy (Wh, kWh, MWh), not {readings.unit}"
        )
    if config.interval is not None:
        _asked_interval(config.interval)
    findings: list[Finding] = []
    gridded: list[Gridded] = []
    seen: set[str] = set()
    for series in readings.series:
        assert series.id not in seen
        seen.add(series.id)
        client = _Client(series, readings, config)
        found = client.grid()
        findings += client.findings
        if found is not None:
            kept = scratch.keep(found.load), scratch.keep(found.covariates)
            gridded.append(replace(found, load=kept[0], covariates=kept[1]))
    scratch.release()
    panel, refused = _on_one_grid(gridded, readings, config, scratch)
    return panel, [*readings.findings, *findings, *refused]


class _Client:
    """One client on the way from rows to a grid; collects findings."""

    def __init__(self, series: Series, readings: Readings, config: Config) -> None:
        self.series, self.readings, self.config = series, readings, config
        self.findings: list[Finding] = []
        self.rows = np.arange(len(series.stamps))
        """Which of the series' rows are still in play, in order of time."""

    def grid(self) -> Gridded | None:
        """The client's clean load, or None if it is refused."""
        utc = self._utc()
        values = self._finite_values()
        utc, values = self._merge(*self._in_order(utc, values))
        known = values[np.isfinite(values)]
        if len(known) < 2:
            self._note(
                "PLF109",
                1,
                0 if len(self.series.stamps) else None,
                f"it has {_count(len(known), 'reading')}",
            )
            return None
        is_asked = "PLF204" not in self.config.ignore and not self.readings.is_cumulative
        if is_asked and is_register(known):
            self._note("PLF204", 1, self.rows[0], f"values rise from {known[0]:g} to {known[-1]:g}")
            return None
        lengths = self._lengths(utc)
        if lengths is None:
            return None
        found = self._place(*self._intervals(utc, values, lengths), int(lengths.max()))
        if found is None:
            return None
        found = self._judge(found)
        return None if any(finding.rule.level == "refused" for finding in self.findings) else found

    def _utc(self) -> np.ndarray:
        if self.series.stamp_zone is None:
            return self.series.stamps
        utc, is_missing = to_utc(self.series.stamp_zone, self.series.stamps)
        if (
            self.readings.is_end
        ):  # 02:00 as the end of the last interval before a change is meant well: on its clock
            labels, is_gone = to_utc(self.series.stamp_zone, self.series.stamps - 1)
            is_missing &= is_gone
            labels = np.where(is_gone, utc, labels + 1)
            if (labels != utc).any() and len(np.unique(labels)) > len(np.unique(utc)):
                utc = labels
        if is_missing.any():
            zone = self.series.stamp_zone
            self._first(
                "PLF110",
                is_missing,
                lambda k: f"{_count(k, 'stamp')} in the hour that {zone} skips",
            )
        return utc

    def _finite_values(self) -> np.ndarray:
        values, covariates = self.series.values, self.series.covariates
        with np.errstate(invalid="ignore"):
            is_huge = np.abs(values) > LARGEST
            if is_huge.any():
                at = int(np.argmax(is_huge))
                self._first(
                    "PLF202",
                    is_huge,
                    lambda k: f"{_count(k, 'reading')}, the first {_number(values[at])}",
                )
            if not (is_known := np.isfinite(values) & ~is_huge).all():
                values = np.where(
                    is_known, values, np.nan
                )  # which also replaces NaNs that make arithmetic warn
            for name, column in zip(self.readings.covariate_names, covariates.T, strict=True):
                if (
                    is_wrong := np.abs(column) >= LARGEST
                ).any():  # so that no mean of them is beyond, in float32
                    self._first("PLF202", is_wrong, lambda k: f"{_count(k, 'value')}", column=name)
        return values

    def _in_order(self, utc: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Known readings in order of time; an empty one stays where it says the covariates of its
        time.
        """
        is_known = np.isfinite(values)
        if not is_known.all():
            if self.series.covariates.shape[1]:
                known, missing = np.sort(utc[is_known]), np.flatnonzero(~is_known)
                before, after = (
                    np.searchsorted(known, utc[missing], side) for side in ("left", "right")
                )
                is_known[missing] = before == after
            self.rows = np.flatnonzero(is_known)
        known = utc[self.rows]
        if (np.diff(known) < 0).any():
            order = np.argsort(known, kind="stable")
            self.rows = self.rows[order]
            known = known[order]
        return known, values[self.rows]

    def _merge(self, utc: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One reading per stamp."""
        is_copy = np.concatenate([[False], np.diff(utc) == 0])
        if not is_copy.any():
            return utc, values
        firsts = np.flatnonzero(~is_copy)
        group = np.cumsum(~is_copy) - 1
        is_other = is_copy & (values != values[firsts][group]) & np.isfinite(values)
        in_conflict = np.isin(group, group[is_other])
        if (same := is_copy & ~in_conflict).any():
            self._at(
                "PLF103",
                int(same.sum()),
                int(np.argmax(same)),
                _count(int(same.sum()), "copy", "copies"),
            )
        how = self.config.duplicates
        if is_other.any() and how == "refuse":
            at = int(np.argmax(is_other))
            detail = (
                f"{_count(len(np.unique(group[is_other])), 'stamp')} with several values, first "
            )
            detail += f"{values[firsts[group[at]]]:g} and {values[at]:g}"
            self._at("PLF104", len(np.unique(group[is_other])), at, detail)
        kept = np.append(firsts[1:], len(values)) - 1 if how == "last" else firsts
        self.rows = self.rows[kept]
        return utc[kept], np.bincount(group, values) / np.bincount(
            group
        ) if how == "mean" else values[kept]

    def _lengths(self, utc: np.ndarray) -> np.ndarray | None:
        """How long each step from a reading to the next is as an interval, 0 for a gap: (readings -
        1,).
        """
        steps = np.diff(utc)
        if steps.min() == steps.max() and _DAY % steps[0] == 0:
            return steps
        usual = int(steps.min())
        if (
            _is_odd_interval(usual)
            and 2 * (steps == usual).sum() >= len(steps)
            and not (steps % usual).any()
        ):
            return np.where(steps == usual, usual, 0)
        rounded = _round_steps(steps)
        begins, ends = find_runs(np.diff(rounded) == 0)
        is_long = (ends + 1 - begins >= _SUSTAINED - 1) & (rounded[begins] > 0)
        counts = np.bincount(rounded)
        counts[0] = 0
        if not counts.any():
            self._at(
                "PLF108",
                len(steps),
                1,
                f"steps of {_length(steps[0])} and others that do not divide a day",
            )
            return None
        common = int(counts.argmax())
        sustained = {common, *(int(step) for step in rounded[begins[is_long]])}
        finest, coarsest = min(sustained), max(sustained)
        if any(step % finest or coarsest % step for step in sustained):
            lengths = " and ".join(_length(step) for step in sorted(sustained))
            at = int(np.argmax((rounded != common) & np.isin(rounded, list(sustained))))
            self._at("PLF108", 1, at + 1, f"intervals of {lengths} do not fit into each other")
            return None
        if len(sustained) > 1:
            parts = [int(b) for b, ok in zip(begins, is_long, strict=True) if ok]
            at = next((b for b in parts if rounded[b] != rounded[parts[0]]), 0)
            lengths = " and ".join(_length(step) for step in sorted(sustained))
            num_changes = int((np.diff(rounded[parts]) != 0).sum()) if parts else 0
            at += self.readings.is_end
            self._at(
                "PLF107",
                max(1, num_changes),
                at,
                f"intervals of {lengths}, added up to {_length(coarsest)}",
            )
        is_interval = rounded == common
        if len(sustained) > 1:  # a lone long step between shorter ones is a gap
            is_interval[1:-1] &= rounded[1:-1] <= np.maximum(rounded[:-2], rounded[2:])
        for begin, end, ok in zip(begins, ends, is_long, strict=True):
            is_interval[begin : end + 1] |= bool(ok)
        return np.where(is_interval, rounded, 0)

    def _intervals(
        self, utc: np.ndarray, values: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Begin (UTC seconds), length and energy (kWh) of the interval of each reading."""
        factor, is_power = UNITS[self.readings.unit]
        if self.readings.is_cumulative:
            is_step = lengths > 0
            energy = np.diff(values)
            if (falls := is_step & (energy < 0)).any():
                detail = (
                    f"{_count(int(falls.sum()), 'time')}, first from {values[np.argmax(falls)]:g}"
                )
                self._at("PLF208", int(falls.sum()), int(np.argmax(falls)) + 1, detail)
            is_step &= energy >= 0
            self.rows = self.rows[1:][is_step]
            return utc[:-1][is_step], lengths[is_step], energy[is_step] * factor
        begins, duration = utc, _durations(lengths, is_end=self.readings.is_end)
        if self.readings.is_end:
            begins = utc - duration
        return begins, duration, values * (factor * duration / 3600 if is_power else factor)

    def _place(
        self, begins: np.ndarray, lengths: np.ndarray, energy: np.ndarray, interval: int
    ) -> Gridded | None:
        """The readings on the client's own grid."""
        if len(begins) < 2:
            self._note("PLF109", 1, None, "fewer than 2 readings remain")
            return None
        finest = int(lengths.min())
        phase, deviation = _phase(begins, finest)
        is_beside = np.abs(deviation) > _JITTER * finest
        if is_beside.any():
            detail = f"{_count(int(is_beside.sum()), 'stamp')} beside the grid of {_length(finest)}"
            self._at("PLF108", int(is_beside.sum()), int(np.argmax(is_beside)), detail)
            return None
        if (is_off := deviation != 0).any():
            detail = f"{_count(int(is_off.sum()), 'stamp')}, by at most {np.abs(deviation).max()} s"
            self._at("PLF113", int(is_off.sum()), int(np.argmax(is_off)), detail)
            begins = begins - deviation
        if interval > finest:  # the coarse part decides where intervals begin
            phase = int(begins[int(np.argmax(lengths))]) % interval
        slots = (begins - phase) // interval
        first = int(slots.min())
        slots = slots - first
        num = int(slots.max()) + 1
        if (pause := int(np.diff(begins).max())) > _LONGEST_PAUSE:
            at = int(np.argmax(np.diff(begins)))
            at += at >= len(begins) // 2  # the lonely side of the pause
            self._at(
                "PLF108", 1, at, f"there are {pause / _DAY / 365:,.0f} years between two readings"
            )
            return None
        if num > max(_MANY_INTERVALS, 100 * len(begins)):
            detail = (
                f"{len(begins):,} readings of {_length(interval)} lie scattered over "
                f"{_length(num * interval)}"
            )
            self._at("PLF108", 1, int(np.argmax(np.diff(begins))) + 1, detail)
            return None
        covariates = self.series.covariates[self.rows]
        start = first * interval + phase
        if interval == finest and (np.diff(slots) > 0).all():
            load = np.full(num, np.nan)
            load[slots] = energy
            inputs = np.full((num, covariates.shape[1]), np.nan, np.float32)
            inputs[slots] = covariates
            return self._gridded(start, interval, load, inputs)
        return self._add_up(slots, lengths, energy, covariates, start, interval)

    def _add_up(
        self,
        slots: np.ndarray,
        lengths: np.ndarray,
        energy: np.ndarray,
        covariates: np.ndarray,
        start: int,
        interval: int,
    ) -> Gridded | None:
        covered = np.bincount(slots, lengths)
        if (covered > interval).any():
            at = int(np.argmax((covered > interval)[slots]))
            self._at("PLF108", int((covered > interval).sum()), at, "intervals overlap")
            return None
        load = np.where(covered == interval, np.bincount(slots, energy), np.nan)
        inputs = np.full((len(load), covariates.shape[1]), np.nan, np.float32)
        for k, column in enumerate(covariates.T):  # averaged over the time for which it is known
            known = np.isfinite(column)
            weights = np.bincount(slots[known], lengths[known], len(load))
            totals = np.bincount(slots[known], (lengths * column)[known], len(load))
            np.divide(totals, weights, out=inputs[:, k], where=weights > 0, casting="same_kind")
        return self._gridded(start, interval, load, inputs)

    def _gridded(
        self, start: int, interval: int, load: np.ndarray, covariates: np.ndarray
    ) -> Gridded:
        series = self.series  # its rows can be forgotten now
        place = Place(file=series.file, column=series.column, client=series.id)
        return Gridded(
            series.id, series.zone, series.statics, place, start, interval, load, covariates
        )

    def _judge(self, found: Gridded) -> Gridded:
        """What the values say of the meter. A reading is changed for what was known by its time,
        and nothing later.
        """
        if self._is_constant(found):
            return found
        if all(
            finding.code != "PLF202" for finding in self.findings
        ):  # its readings are not missing
            self._gaps(found)
        self._missing_hours(found)
        ignored = set(self.config.ignore)
        if "PLF205" not in ignored:
            self._changes(found)
        num_lost = self._drop_glitches(found) if "PLF209" not in ignored else 0
        num_lost += self._drop_negatives(found) if not self.config.allow_export else 0
        if num_lost and self._is_constant(found):
            return found
        if "PLF207" not in ignored:
            self._drop_stuck(found)
        return found

    def _is_constant(self, found: Gridded) -> bool:
        is_known = np.isfinite(found.load)
        values = found.load if is_known.all() else found.load[is_known]
        if not is_steady(values):
            return False
        low, high = values.min(), values.max()
        detail = (
            f"always {low:g} kWh" if low == high else f"always from {low:.9g} to {high:.9g} kWh"
        )
        self._time("PLF206", len(values), found, int(np.argmax(is_known)), detail)
        return True

    def _changes(self, found: Gridded) -> None:
        """Readings in another unit are brought to the one before as soon as that is known."""
        units, levels = find_changes(found.load, _DAY // found.interval)
        for code, changes in (("PLF205", units), ("PLF210", levels)):
            if changes:
                listed = ", ".join(
                    f"x {change.factor:.4g} at {_utc(found, change.at)}" for change in changes[:3]
                )
                detail = f"all values {listed}{', ...' if len(changes) > 3 else ''}"
                if code == "PLF205":
                    detail += f"; undone from {_utc(found, changes[0].seen)} on"
                self._time(code, len(changes), found, changes[0].at, detail)
        for change in units:
            found.load[change.seen :] /= change.factor

    def _drop_glitches(self, found: Gridded) -> int:
        at = find_glitches(found.load, _DAY // found.interval)
        if len(at):
            largest = found.load[at][np.abs(found.load[at]).argmax()]
            others = np.abs(np.delete(found.load, at))
            detail = (
                f"{_count(len(at), 'reading')} up to {largest:g} kWh, where others reach "
                f"{np.nanmax(others):g}"
            )
            self._time("PLF209", len(at), found, int(at[0]), detail)
            found.load[at] = np.nan
        return len(at)

    def _drop_negatives(self, found: Gridded) -> int:
        negative = np.flatnonzero(found.load < 0)
        is_export = negative >= find_export(found.load)
        for code, at in (("PLF203", negative[~is_export]), ("PLF211", negative[is_export])):
            if len(at):
                detail = f"{_count(len(at), 'reading')}, the lowest {found.load[at].min():g} kWh"
                self._time(code, len(at), found, int(at[0]), detail)
        found.load[negative[~is_export]] = np.nan
        return int((~is_export).sum())

    def _drop_stuck(self, found: Gridded) -> None:
        steps_per_hour = 3600 / found.interval
        begins, ends = find_stuck(found.load, steps_per_hour)
        if len(begins):
            hours = (ends - begins).max() / steps_per_hour
            detail = (
                f"{_count(len(begins), 'stretch', 'stretches')} of one value, up to {hours:g} h"
            )
            self._time("PLF207", len(begins), found, int(begins[0]), detail)
        for begin, end in zip(begins, ends, strict=True):
            found.load[begin + num_stuck(steps_per_hour) - 1 : end] = np.nan

    def _missing_hours(self, found: Gridded) -> None:
        """Where an hour comes twice and is there once."""
        if self.series.stamp_zone is None:
            return
        known = np.isfinite(found.load)
        at = []
        for fall, by in find_falls(self.series.stamp_zone, found.start, found.end):
            index, num = (fall - found.start) // found.interval, by // found.interval
            around = known[max(0, index - num) : index + num + 1]
            if (
                num
                and len(around) == 2 * num + 1
                and around.sum() == num + 1
                and not known[index : index + num].any()
            ):
                at.append(index)
        if at:
            self._time("PLF115", len(at), found, at[0], _count(len(at), "time"))

    def _gaps(self, found: Gridded) -> None:
        begins, ends = find_runs(~np.isfinite(found.load))
        is_inside = (begins > 0) & (ends < len(found.load))
        begins, ends = begins[is_inside], ends[is_inside]
        if not len(begins):
            return
        lengths = ends - begins
        is_short = lengths <= _intervals_of(self.config.max_gap, found.interval)
        for code, chosen in (("PLF105", is_short), ("PLF106", ~is_short)):
            if chosen.any():
                missing, longest = (
                    int(lengths[chosen].sum()),
                    lengths[chosen].max() * found.interval,
                )
                detail = (
                    f"{_count(int(chosen.sum()), 'gap')}, {_count(missing, 'reading')} missing, "
                )
                detail += f"the longest {_length(longest)}"
                self._time(code, int(chosen.sum()), found, int(begins[chosen][0]), detail)

    def _first(
        self,
        code: str,
        is_wrong: np.ndarray,
        detail: Callable[[int], str],
        *,
        column: str | None = None,
    ) -> None:
        """A finding about rows of the file."""
        count = int(is_wrong.sum())
        self._note(code, count, int(np.argmax(is_wrong)), detail(count), column=column)

    def _at(self, code: str, count: int, index: int, detail: str) -> None:
        """A finding about a reading that is still in play."""
        self._note(code, count, int(self.rows[min(index, len(self.rows) - 1)]), detail)

    def _time(self, code: str, count: int, found: Gridded, index: int, detail: str) -> None:
        """A finding about an interval of the grid: its stamp, and the row where it stands, if it
        stands there.
        """
        stamp = found.start + (index + self.readings.is_end) * found.interval  # UTC
        if self.series.stamp_zone is not None:
            stamp += int(utc_offset(self.series.stamp_zone, np.array([stamp]))[0])
        place = Place(file=self.series.file, column=self.series.column, client=self.series.id)
        for rows in (self.rows, np.arange(len(self.series.stamps))):  # an empty cell has a row too
            near = np.abs(self.series.stamps[rows] - stamp) <= _JITTER * found.interval
            if near.any():
                place = self.series.place(int(rows[np.argmax(near)]))
                break
        self.findings.append(_finding(code, count, place, self._show(stamp), detail))

    def _note(
        self, code: str, count: int, row: int | None, detail: str, *, column: str | None = None
    ) -> None:
        if row is None or not len(self.series.stamps):
            place, stamp = (
                Place(file=self.series.file, column=self.series.column, client=self.series.id),
                None,
            )
        else:
            place, stamp = self.series.place(int(row)), self._stamp(int(row))
        self.findings.append(_finding(code, count, place, stamp, detail, column=column))

    def _stamp(self, row: int) -> str:
        return self._show(int(self.series.stamps[row]))

    def _show(self, stamp: int) -> str:
        text = str(np.datetime64(stamp, "s"))
        return text if self.series.stamp_zone else f"{text}Z"


def _on_one_grid(
    gridded: list[Gridded], readings: Readings, config: Config, scratch: Scratch
) -> tuple[Panel | None, list[Finding]]:
    """All clients on the interval that is asked for, or that most of them have; takes them out of
    the list.
    """
    refused: list[Finding] = []
    if not gridded:
        return None, refused
    interval = _choose_interval(gridded, config)
    phase = _choose_phase(gridded, interval)
    fitting: list[Gridded] = []
    for client in gridded:
        if client.interval > interval and client.interval % interval == 0:
            detail = (
                f"it is read every {_length(client.interval)}, and the run's interval is "
                f"{_length(interval)}"
            )
            refused.append(Finding("PLF112", 1, client.place, detail))
        elif interval % client.interval or (client.start - phase) % client.interval:
            detail = (
                f"intervals of {_length(client.interval)} from {_utc(client, 0)} on do not fit "
                "into the "
            )
            refused.append(
                Finding("PLF108", 1, client.place, detail + f"grid of {_length(interval)}")
            )
        elif (is_huge := np.abs(client.load) > LARGEST * client.interval / interval).any():
            detail = (
                f"{_count(int(is_huge.sum()), 'reading')} of more than 1e15 kWh in "
                f"{_length(interval)}"
            )
            refused.append(Finding("PLF202", int(is_huge.sum()), client.place, detail))
        else:
            fitting.append(client)
        forget(client.load)
    fitting.sort(key=lambda client: client.id)
    if not fitting:
        return None, refused
    start = min((client.start - phase) // interval for client in fitting) * interval + phase
    num = max(-(-(client.end - start) // interval) for client in fitting)
    if num > max(
        _MANY_INTERVALS,
        100 * max(len(client.load) * client.interval // interval for client in fitting),
    ):
        early, late = (
            min(fitting, key=lambda client: client.start),
            max(fitting, key=lambda client: client.start),
        )
        raise BadInput(
            f"the clients' times are too far apart for one run: {early.id!r} begins at "
            f"{_utc(early, 0)}, {late.id!r} at {_utc(late, 0)}",
            "correct their stamps, or leave one out",
        )
    ids, zones = tuple(client.id for client in fitting), tuple(client.zone for client in fitting)
    statics = np.stack([client.statics for client in fitting]).astype(np.float32)
    load = scratch.empty((len(ids), num))
    covariates = scratch.empty((len(ids), num, len(readings.covariate_names)))
    gridded.clear()
    fitting.reverse()
    for row in forgetting(range(len(ids)), load, covariates):
        client = fitting.pop()  # and forgotten, so that not all are there twice
        at, values, inputs = _resampled(client, interval, phase)
        first = (at - start) // interval
        load[row], covariates[row] = np.nan, np.nan
        load[row, first : first + len(values)] = values
        covariates[row, first : first + len(values)] = inputs
        forget(client.load, client.covariates)
    return (
        Panel(
            ids=ids,
            start=np.datetime64(start, "s"),
            interval=_as_timedelta(interval),
            load=load,
            covariates=covariates,
            covariate_names=readings.covariate_names,
            statics=statics,
            static_names=readings.static_names,
            zones=zones,
        ),
        refused,
    )


def _choose_interval(gridded: list[Gridded], config: Config) -> int:
    if config.interval is not None:
        return _asked_interval(config.interval)
    counts = Counter(client.interval for client in gridded)
    return max(counts, key=lambda interval: (counts[interval], -interval))


def _asked_interval(duration: str) -> int:
    seconds = (
        0 if duration.isdigit() else count_intervals(duration, np.timedelta64(1, "s"), "interval")
    )
    if not seconds or _DAY % seconds:
        raise BadInput(
            f"interval = {duration!r} is no duration that divides a day",
            "write 15min, 30min or 1h, say",
        )
    return seconds


def _choose_phase(gridded: list[Gridded], interval: int) -> int:
    """Where intervals begin: as most clients of this interval have it, else at full local hours."""
    phases = Counter(client.start % interval for client in gridded if client.interval == interval)
    if phases:
        return max(phases, key=lambda phase: (phases[phase], -phase))
    first = gridded[0]
    return int(-utc_offset(first.zone, np.array([first.start]))[0]) % interval


def _resampled(client: Gridded, interval: int, phase: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Start, load and covariates in longer intervals: energy added up (NaN if incomplete),
    covariates averaged.
    """
    if client.interval == interval:
        return client.start, client.load, client.covariates
    ratio = interval // client.interval
    before = (client.start - phase) % interval // client.interval
    after = -(before + len(client.load)) % ratio
    load = np.pad(client.load, (before, after), constant_values=np.nan).reshape(-1, ratio).sum(1)
    inputs = np.pad(client.covariates, ((before, after), (0, 0)), constant_values=np.nan)
    inputs = inputs.reshape(len(load), ratio, inputs.shape[1])
    num_known = np.isfinite(inputs).sum(1)
    averaged = np.nansum(inputs, 1) / np.where(
        num_known, num_known, np.nan
    )  # an hourly weather column has gaps
    return client.start - before * client.interval, load, averaged


def _is_odd_interval(seconds: int) -> bool:
    """Whether a length divides a day and is none to which jittered steps are rounded, such as 90 s."""
    return seconds > 0 and _DAY % seconds == 0 and seconds not in _DIVISORS


def _round_steps(steps: np.ndarray) -> np.ndarray:
    """Each step as the nearest whole divisor of a day, if it is within the jitter of one; 0 where
    there is none.
    """
    above = np.clip(np.searchsorted(_DIVISORS, steps), 1, len(_DIVISORS) - 1)
    nearest, below = _DIVISORS[above], _DIVISORS[above - 1]
    nearest = np.where(np.abs(steps - below) <= np.abs(nearest - steps), below, nearest)
    return np.where(np.abs(steps - nearest) <= _JITTER * nearest, nearest, 0)


def _durations(lengths: np.ndarray, *, is_end: bool) -> np.ndarray:
    """The length of each reading's own interval: the step that follows it (or leads to it, if
    stamps mark ends).

    Beside a gap, it is that of the nearest known step before (after, if stamps mark ends).
    """
    if (lengths == lengths[0]).all():
        return np.full(len(lengths) + 1, lengths[0])
    own = np.concatenate([[0], lengths]) if is_end else np.concatenate([lengths, [0]])
    known = np.flatnonzero(own)
    if is_end:
        index = np.searchsorted(known, np.arange(len(own)))
    else:
        index = np.searchsorted(known, np.arange(len(own)), side="right") - 1
    return own[known[np.clip(index, 0, len(known) - 1)]]


def _phase(begins: np.ndarray, interval: int) -> tuple[int, np.ndarray]:
    """Where the grid begins (seconds modulo the interval), and how far each begin is beside it."""
    residues = begins % interval
    common = int(np.bincount(residues).argmax()) if interval <= _DAY else int(residues[0])
    full = (
        common // 60 * 60 if common % 60 < 30 else (common // 60 + 1) * 60
    )  # 00:14:59 means 00:15
    deviation = (begins - full + interval // 2) % interval - interval // 2
    return full % interval, deviation


def _finding(
    code: str, count: int, place: Place, time: str | None, detail: str, *, column: str | None = None
) -> Finding:
    assert code in RULES
    return Finding(
        code,
        count,
        Place(place.file, place.row, place.line, column or place.column, place.client, time),
        detail,
    )


def _intervals_of(duration: str, interval: int) -> float:
    if duration.isdigit():
        return int(duration)
    return count_intervals(duration, np.timedelta64(1, "s"), "max_gap") / interval


def _as_timedelta(seconds: int) -> np.timedelta64:
    return np.timedelta64(seconds // 60, "m") if seconds % 60 == 0 else np.timedelta64(seconds, "s")


def _utc(client: Gridded, index: int) -> str:
    return f"{np.datetime64(client.start + index * client.interval, 's')}Z"


def _count(number: int, what: str, many: str | None = None) -> str:
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def _number(value: float) -> str:
    return f"{value:g}" if np.isfinite(value) else "infinite"


def _length(seconds: float) -> str:
    for unit, size in (("d", _DAY), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:g} s"
