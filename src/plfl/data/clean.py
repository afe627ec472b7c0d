"""From readings to a panel: every client's rows are put in order, checked, and placed on one time
grid.

Decisions are the user's (`duplicates`, `allow_export`, `cumulative`, ... in the config) or follow
from the data; each leaves a finding. Here a client's rows become a load on a grid of its own; then
`plfl.data.judge` looks at its values, and `plfl.data.grid` puts all clients on one grid. Energy is
conserved: a reading lies in exactly one interval, which counts only if readings cover all of it.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from plfl.config import Config
from plfl.data.clock_trial import advise_clock, stamps_to_utc
from plfl.data.detectors import find_runs, is_register
from plfl.data.grid import MANY_INTERVALS, asked_interval, put_on_one_grid
from plfl.data.irregular import average, choose_grid, cover, spread
from plfl.data.judge import judge
from plfl.data.notes import DAY, JITTER, Gridded, Int, Notes, say_count, say_length
from plfl.data.panel import LARGEST, Panel
from plfl.data.readings import Readings, Series
from plfl.data.registers import count_energy
from plfl.data.rules import RULES, Finding
from plfl.data.scratch import Scratch
from plfl.data.steps import find_durations, find_odd, find_phase, plain_lengths, round_steps
from plfl.errors import BadInput

# Factor to kWh or kW, and whether it is power.
UNITS: dict[str, tuple[float, bool]] = {
    "Wh": (1e-3, False),
    "kWh": (1.0, False),
    "MWh": (1e3, False),
    "GWh": (1e6, False),
    "W": (1e-3, True),
    "kW": (1.0, True),
    "MW": (1e3, True),
    "GW": (1e6, True),
}
# Rules that stamps break when they are read by the wrong clock, and the way out when the data tell
# which is right.
_OF_CLOCKS = {
    "PLF104": "{0}; else {1}",
    "PLF110": "{0}",
    "PLF115": "nothing has to be done if an hour is missing; else {0}",
}
# So many equal steps in a row make a resolution; fewer are gaps.
_SUSTAINED = 24
# One stamp of so many beside the grid is a fault of its own; more are readings at any times.
_MANY = 20
_LONGEST_PAUSE = 10 * 366 * DAY


def kwh_of(unit: str, seconds: Any) -> Any:
    """The energy of a reading of 1 in some unit that lasts for so many seconds.

    >>> kwh_of("Wh", 900), kwh_of("kW", 900)
    (0.001, 0.25)
    """
    factor, is_power = UNITS[unit]
    return factor * seconds / 3600 if is_power else factor


def make_panel(
    readings: Readings, config: Config, scratch: Scratch | None = None
) -> tuple[Panel | None, list[Finding]]:
    """The panel of all clients that can be used (None if there is none), and what was found."""
    scratch = scratch or Scratch()
    asked_interval(config)
    findings: list[Finding] = []
    gridded: list[Gridded] = []
    for series in readings.series:
        client = _Client(series, readings, config)
        found = client.grid()
        findings += client.notes.findings
        if found is not None:
            load = scratch.keep(found.load)
            gridded.append(replace(found, load=load, covariates=scratch.keep(found.covariates)))
    scratch.release()
    panel, refused = put_on_one_grid(gridded, readings, config, scratch)
    return panel, [*readings.findings, *findings, *refused]


class _Refused(Exception):
    """The client cannot be used; its notes say why."""


class _Irregular(_Refused):
    """Its stamps lie on no grid; a register or a power can be brought onto one."""


class _Client:
    """One client on the way from rows to a grid."""

    def __init__(self, series: Series, readings: Readings, config: Config) -> None:
        self.series = series
        self.readings = readings
        self.config = config
        self.notes = Notes(series)
        self.is_power = UNITS[series.unit][1]
        self.is_register = bool(series.is_cumulative)  # until its readings are judged
        if series.is_cumulative and self.is_power:
            raise BadInput(
                f"cumulative = true needs a unit of energy (Wh, kWh, MWh), not {series.unit}",
                "say which one the register counts: ‹unit=kWh›",
            )

    def grid(self) -> Gridded | None:
        """The client's clean load, or None if it is refused."""
        found = None
        try:
            found = self._grid()
            judge(found, self.notes, self.config)
        except _Refused:
            pass
        self._advise()
        is_refused = any(finding.rule.level == "refused" for finding in self.notes.findings)
        return None if is_refused else found

    def _advise(self) -> None:
        """Faults that a clock may have caused are answered with the clock that leaves none."""
        if not any(finding.code in _OF_CLOCKS for finding in self.notes.findings):
            return
        series = self.series
        known = series.stamps[np.isfinite(series.values)]
        if series.stamp_zone and (advice := advise_clock(known, series.zone, is_end=series.is_end)):
            for code, way in _OF_CLOCKS.items():
                self.notes.advise(code, way.format(advice, RULES[code].fix))

    def _grid(self) -> Gridded:
        utc, values = self._merge(*self._in_order(self._utc(), self._finite_values()))
        is_known = np.isfinite(values)
        known = values[is_known]
        if len(known) < 2:
            self.notes.row("PLF109", 0, f"it has {say_count(len(known), 'reading')}")
            raise _Refused
        if self.series.is_cumulative is None and is_register(known, utc[is_known]):
            self._take_as_register(known)
        rows = self.notes.rows
        num_findings = len(self.notes.findings)
        try:
            return self._place_regular(utc, values)
        except _Irregular:
            if not (self.is_register or self.is_power):
                if _MANY * self.notes.findings[-1].count > len(known):
                    self.notes.advise("PLF108", _advise_meaning(known))
                raise
        self.notes.rows = rows
        del self.notes.findings[num_findings:]
        return self._place_irregular(utc, values)

    def _take_as_register(self, known: np.ndarray) -> None:
        detail = f"values rise from {known[0]:g} to {known[-1]:g}"
        if self.is_power:
            raise self._refused("PLF213", 0, f"{detail} {self.series.unit}")
        self.is_register = True
        self.notes.reading("PLF204", 0, f"{detail}: taken as a register that counts up")

    def _place_regular(self, utc: np.ndarray, values: np.ndarray) -> Gridded:
        lengths = self._lengths(utc)
        return self._place(*self._intervals(utc, values, lengths), int(lengths.max()))

    def _place_irregular(self, utc: np.ndarray, values: np.ndarray) -> Gridded:
        """What a register counted, or a power amounted to, on a grid of the client's own."""
        is_known = np.isfinite(values)
        rows = self.notes.rows
        self.notes.rows = rows[is_known]
        times = utc[is_known]
        steps = np.diff(times)
        asked = asked_interval(self.config)
        interval, longest = choose_grid(steps, asked, is_register=self.is_register)
        is_step = steps <= longest
        energy = self._energy_of(times, values[is_known], is_step)
        grid = cover(utc, interval, self.series.zone, is_end=self.series.is_end or self.is_register)
        self._check_span(utc, grid.num_slots, interval)
        load = spread(times, np.where(is_step, energy, np.nan), grid)
        if np.isfinite(load).sum() < 2:
            self.notes.row("PLF109", None, "fewer than 2 intervals without a pause remain")
            raise _Refused
        detail = f"steps from {say_length(steps.min())} to {say_length(steps.max())}, energy per "
        is_other = steps != interval
        count = max(1, is_other.sum())
        self.notes.reading("PLF116", is_other.argmax() + 1, detail + say_length(interval), count)
        inputs = average(self.series.covariates[rows], utc, grid)
        return self._gridded(grid.start, interval, load, inputs)

    def _energy_of(self, times: np.ndarray, values: np.ndarray, is_step: np.ndarray) -> np.ndarray:
        """(readings - 1,) kWh from each reading to the next; falls are noted where that is a step
        and no gap.
        """
        if not self.is_register:
            held = values[1:] if self.series.is_end else values[:-1]
            return np.asarray(held * kwh_of(self.series.unit, np.diff(times)))
        counted = count_energy(times, values)
        is_fall = is_step & (counted.is_reset | counted.is_rollover)
        if is_fall.any():
            first = f", first from {values[is_fall.argmax()]:g}"
            num_rollovers = (counted.is_rollover & is_fall).sum()
            how = f"; rolled over {say_count(num_rollovers, 'time')}" if num_rollovers else ""
            # noted where the register stands lower than before
            self.notes.readings("PLF208", np.append(False, is_fall), "time", first + how)
        return counted.energy * kwh_of(self.series.unit, 1)

    def _refused(self, code: str, index: Int, detail: str, count: Int = 1) -> _Refused:
        """To be raised when it is noted."""
        self.notes.reading(code, index, detail, count)
        return _Refused()

    def _irregular(self, index: Int, detail: str, count: Int = 1) -> _Irregular:
        """To be raised when it is noted, where a grid may still be found."""
        self.notes.reading("PLF108", index, detail, count)
        return _Irregular()

    def _utc(self) -> np.ndarray:
        zone = self.series.stamp_zone
        stamps = self.series.stamps
        if zone is None:
            return stamps
        utc, is_missing = stamps_to_utc(zone, stamps, is_end=self.series.is_end)
        self.notes.readings("PLF110", is_missing, "stamp", f" in the hour that {zone} skips")
        return utc

    def _finite_values(self) -> np.ndarray:
        values = self.series.values
        with np.errstate(invalid="ignore"):
            is_huge = np.abs(values) > LARGEST
            first = values[is_huge.argmax()] if len(values) else 0
            shown = f"{first:g}" if np.isfinite(first) else "infinite"
            self.notes.readings("PLF202", is_huge, "reading", f", the first {shown}")
            if not (is_known := np.isfinite(values) & ~is_huge).all():
                # which also replaces NaNs that make arithmetic warn
                values = np.where(is_known, values, np.nan)
            names = self.readings.covariate_names
            for name, column in zip(names, self.series.covariates.T, strict=True):
                is_wrong = np.abs(column) >= LARGEST  # so that no mean is beyond, in float32
                if is_wrong.any():
                    count = is_wrong.sum()
                    self.notes.row(
                        "PLF202", is_wrong.argmax(), say_count(count, "value"), count, name
                    )
        return values

    def _in_order(self, utc: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Known readings in order of time; an empty one stays where it says the covariates of its
        time.
        """
        is_kept = np.isfinite(values)
        if not is_kept.all():
            if self.series.covariates.shape[1]:
                known = np.sort(utc[is_kept])
                empty = np.flatnonzero(~is_kept)
                # where no known reading has the same stamp
                is_kept[empty] = ~np.isin(utc[empty], known)
            self.notes.rows = np.flatnonzero(is_kept)
        kept = utc[self.notes.rows]
        if (np.diff(kept) < 0).any():
            order = np.argsort(kept, kind="stable")
            self.notes.rows = self.notes.rows[order]
            kept = kept[order]
        return kept, values[self.notes.rows]

    def _merge(self, utc: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One reading per stamp."""
        is_copy = np.concatenate([[False], np.diff(utc) == 0])
        if not is_copy.any():
            return utc, values
        firsts = np.flatnonzero(~is_copy)
        group = np.cumsum(~is_copy) - 1  # readings of one stamp
        is_other = is_copy & (values != values[firsts][group]) & np.isfinite(values)
        in_conflict = np.unique(group[is_other])
        self.notes.readings("PLF103", is_copy & ~np.isin(group, in_conflict), "copy")
        how = self.config.duplicates
        if len(in_conflict) and how == "refuse":
            at = is_other.argmax()
            detail = f"{say_count(len(in_conflict), 'stamp')} with several values, first "
            detail += f"{values[firsts[group[at]]]:g} and {values[at]:g}"
            self.notes.reading("PLF104", at, detail, len(in_conflict))
        kept = np.append(firsts[1:], len(values)) - 1 if how == "last" else firsts
        self.notes.rows = self.notes.rows[kept]
        if how == "mean":
            return utc[kept], np.bincount(group, values) / np.bincount(group)
        return utc[kept], values[kept]

    def _lengths(self, utc: np.ndarray) -> np.ndarray:
        """How long each step from a reading to the next is as an interval, 0 for a gap: (readings -
        1,).

        Mostly all steps are equal. Else the most common step is an interval, and so is each that
        comes `_SUSTAINED` times in a row: another resolution of the same meter. Any other step is a
        gap.
        """
        steps = np.diff(utc)
        if (lengths := plain_lengths(steps)) is not None:
            return lengths
        rounded = round_steps(steps)
        if not rounded.any():
            raise self._irregular(
                1,
                f"steps of {say_length(steps[0])} and others that do not divide a day",
                len(steps),
            )
        begins, ends = find_runs(np.diff(rounded) == 0)  # k equal differences are k + 1 equal steps
        is_long = (ends + 1 - begins >= _SUSTAINED - 1) & (rounded[begins] > 0)
        begins = begins[is_long]
        common = int(np.bincount(rounded[rounded > 0]).argmax())
        sustained = np.unique([common, *rounded[begins]])
        is_interval = rounded == common
        if len(sustained) > 1:
            self._note_resolutions(rounded, common, sustained, begins)
            # a lone long step between shorter ones is a gap
            is_interval[1:-1] &= rounded[1:-1] <= np.maximum(rounded[:-2], rounded[2:])
        for begin, end in zip(begins, ends[is_long], strict=True):
            is_interval[begin : end + 1] = True
        return np.where(is_interval, rounded, 0)

    def _note_resolutions(
        self, rounded: np.ndarray, common: int, sustained: np.ndarray, begins: np.ndarray
    ) -> None:
        """Several resolutions (which begin there) have to fit into each other."""
        lengths = " and ".join(say_length(step) for step in sustained)
        if (sustained % sustained[0]).any() or (sustained[-1] % sustained).any():
            at = np.argmax((rounded != common) & np.isin(rounded, sustained))
            raise self._irregular(at + 1, f"intervals of {lengths} do not fit into each other")
        is_other = rounded[begins] != rounded[begins[0]]
        begin = int(begins[is_other.argmax()]) if is_other.any() else 0
        num_changes = int(np.count_nonzero(np.diff(rounded[begins])))
        self.notes.reading(
            "PLF107",
            begin + self.series.is_end,
            f"intervals of {lengths}, added up to {say_length(sustained[-1])}",
            max(1, num_changes),
        )

    def _intervals(
        self, utc: np.ndarray, values: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Begin (UTC seconds), length and energy (kWh) of the interval of each reading."""
        if not self.is_register:
            durations = find_durations(lengths, is_end=self.series.is_end)
            begins = utc - durations if self.series.is_end else utc
            return begins, durations, values * kwh_of(self.series.unit, durations)
        steps = np.diff(utc)
        if (is_odd := find_odd(steps, lengths)).any():
            raise self._irregular(is_odd.argmax() + 1, "steps of no interval", is_odd.sum())
        energy = self._energy_of(utc, values, lengths > 0)
        is_step = (lengths > 0) & (energy >= 0)
        self.notes.rows = self.notes.rows[1:][is_step]
        return utc[:-1][is_step], lengths[is_step], energy[is_step]

    def _place(
        self, begins: np.ndarray, lengths: np.ndarray, energy: np.ndarray, interval: int
    ) -> Gridded:
        """The readings on the client's own grid."""
        if len(begins) < 2:
            self.notes.row("PLF109", None, "fewer than 2 readings remain")
            raise _Irregular
        finest = int(lengths.min())
        phase, deviation = find_phase(begins, finest)
        is_beside = np.abs(deviation) > JITTER * finest
        where = f" beside the grid of {say_length(finest)}"
        if self.notes.readings("PLF108", is_beside, "stamp", where):
            raise _Irregular
        furthest = np.abs(deviation).max()
        self.notes.readings("PLF113", deviation != 0, "stamp", f", by at most {furthest} s")
        begins = begins - deviation
        if interval > finest:  # the coarse part decides where intervals begin
            phase = int(begins[np.argmax(lengths)]) % interval
        slots = (begins - phase) // interval
        start = int(slots.min()) * interval + phase
        slots -= slots.min()
        self._check_span(begins, int(slots.max()) + 1, interval)
        return self._add_up(slots, lengths, energy, start, interval)

    def _check_span(self, begins: np.ndarray, num_slots: int, interval: int) -> None:
        """Stamps that are too far apart must be wrong."""
        pauses = np.diff(begins)
        at = int(np.argmax(pauses))
        if pauses[at] > _LONGEST_PAUSE:
            years = pauses[at] / DAY / 365
            lonely = at + (at >= len(begins) // 2)  # the lonely side of the pause
            raise self._refused(
                "PLF108", lonely, f"there are {years:,.0f} years between two readings"
            )
        if num_slots > max(MANY_INTERVALS, 100 * len(begins)):
            detail = f"{len(begins):,} readings of {say_length(interval)} lie scattered over "
            raise self._refused("PLF108", at + 1, detail + say_length(num_slots * interval))

    def _add_up(
        self, slots: np.ndarray, lengths: np.ndarray, energy: np.ndarray, start: int, interval: int
    ) -> Gridded:
        """The energy of each slot that readings cover, and the mean of its covariates over the time
        for which they are known.
        """
        covariates = self.series.covariates[self.notes.rows]
        num_slots = int(slots.max()) + 1
        inputs = np.full((num_slots, covariates.shape[1]), np.nan, np.float32)
        if (lengths == interval).all() and (np.diff(slots) > 0).all():  # a reading to each slot
            load = np.full(num_slots, np.nan)
            load[slots] = energy
            inputs[slots] = covariates
        else:
            covered = np.bincount(slots, lengths)
            is_over = covered > interval
            if is_over.any():
                at = is_over[slots].argmax()
                raise self._irregular(at, "intervals overlap", is_over.sum())
            load = np.where(covered == interval, np.bincount(slots, energy), np.nan)
            for k, column in enumerate(covariates.T):
                known = np.isfinite(column)
                weights = np.bincount(slots[known], lengths[known], num_slots)
                totals = np.bincount(slots[known], (lengths * column)[known], num_slots)
                np.divide(totals, weights, out=inputs[:, k], where=weights > 0, casting="same_kind")
        return self._gridded(start, interval, load, inputs)

    def _gridded(self, start: int, interval: int, load: np.ndarray, inputs: np.ndarray) -> Gridded:
        series = self.series  # its rows can be forgotten now
        return Gridded(
            series.id, series.zone, series.statics, series.place(), start, interval, load, inputs
        )


def _advise_meaning(known: np.ndarray) -> str:
    """What readings at irregular times may be, if they are not the energy of intervals."""
    is_rising = bool((np.diff(known) >= 0).all())
    meaning = (
        "if they are a register that counts up: ‹cumulative=true›"
        if is_rising
        else "if they are power: ‹unit=W› (or kW, MW)"
    )
    return f"{meaning}; else {RULES['PLF108'].fix}"
