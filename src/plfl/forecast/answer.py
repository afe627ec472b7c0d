"""The answer to `plfl forecast`: energy of the intervals that follow a moment, as a message that
stands on its own.
"""

import csv
import io
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from plfl.data.zones import load_zone

UNIT = "kWh"
MODEL = "model"  # the quality of a point that is the model's; others are `fallback:REASON`
LOST = "fallback:model-lost-of-late"


@dataclass(frozen=True)
class Answer:
    """Energy of the intervals that follow a moment, with what is needed to read it without the
    model.
    """

    meter: str
    issued_at: np.datetime64  # UTC; the first interval that could be forecast begins here
    begins: np.ndarray  # (points,) datetime64[s] UTC
    seconds: int  # length of an interval
    zone: str
    model_version: str
    levels: tuple[float, ...]  # quantiles, rising, with 0.5 among them
    energy: np.ndarray  # (points, quantiles) kWh
    qualities: tuple[str, ...]  # of each point: model, or fallback:REASON
    warnings: tuple[str, ...] = ()

    @property
    def quality(self) -> str:
        """model if every point is the model's, else the commonest reason why not."""
        others = [quality for quality in self.qualities if quality != MODEL]
        return max(others, key=others.count) if others else MODEL

    def points(self) -> list[dict[str, Any]]:
        """Each interval with all that belongs to it."""
        middle = self.levels.index(0.5)
        length = np.timedelta64(self.seconds, "s")
        return [
            {
                "meter": self.meter,
                "issued_at": self._local(self.issued_at),
                "begin": self._local(begin),
                "end": self._local(begin + length),
                "begin_utc": self._utc(begin),
                "end_utc": self._utc(begin + length),
                "unit": UNIT,
                "model_version": self.model_version,
                "quality": quality,
                "energy_kwh": _rounded(row[middle]),
                "mean_power_kw": _rounded(row[middle] / (self.seconds / 3600)),
                "quantiles": {
                    f"{level:g}": _rounded(value)
                    for level, value in zip(self.levels, row, strict=True)
                },
            }
            for begin, quality, row in zip(self.begins, self.qualities, self.energy, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "meter": self.meter,
            "issued_at": self._local(self.issued_at),
            "issued_at_utc": self._utc(self.issued_at),
            "interval_minutes": self.seconds / 60 if self.seconds % 60 else self.seconds // 60,
            "unit": UNIT,
            "model_version": self.model_version,
            "quality": self.quality,
            "warnings": list(self.warnings),
            "points": self.points(),
        }

    def to_csv(self) -> str:
        """A row per interval; quantiles are columns such as q0.05_kwh."""
        rows = []
        for point in self.points():
            quantiles = point.pop("quantiles")
            rows.append(point | {f"q{level}_kwh": value for level, value in quantiles.items()})
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _local(self, time: np.datetime64) -> str:
        seconds = int(time.astype("datetime64[s]").astype(np.int64))
        shown = "seconds" if self.seconds % 60 else "minutes"
        return datetime.fromtimestamp(seconds, load_zone(self.zone)).isoformat(timespec=shown)

    def _utc(self, time: np.datetime64) -> str:
        unit = "s" if self.seconds % 60 else "m"
        return f"{time.astype(f'datetime64[{unit}]')}Z"


def _rounded(value: float) -> float:
    """As many digits as float32 holds, however small the load is."""
    return float(f"{value:.7g}")
