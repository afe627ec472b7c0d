"""When a round ends, and who rests: pure functions of the times at which answers came and of the rounds that are over.

A round with its quorum, and with more than half of those asked, waits for the others no longer than `slack` times as
long as answers take: the latest good one of this round, or what is usual. So one client that stalls costs little, and
the answers that usually come still count. What is usual is the last answer but one, the median of recent rounds: a
single client that takes longer from round to round cannot move it.

A client that stalled or was quarantined in a closed round has one fault more, one whose answer counted has one less.
From the second fault on it rests, twice as long each time, and is asked again afterwards. The closed rounds say all of
that, so that a server that was started again knows it too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

STALLED = "no answer in time"
_SHORTEST_PACE = 1.6
"""Seconds; below this, when clients happen to look for requests decides who is first."""
_RECENT_ROUNDS = 5
LONGEST_REST = 32
"""Rounds."""
_FIRST_REST_AT, _MOST_FAULTS = 2, 2 + LONGEST_REST.bit_length() - 1
"""Faults from which on a client rests, and beyond which none is counted, so that it can come back."""


@dataclass(frozen=True)
class Rest:
    """Why a client is not asked now, and in which round it is again."""

    until: int
    why: str


def can_close(num_good: int, num_asked: int, needed: int) -> bool:
    """Whether a round may end before its deadline: a fast minority must not end it for the others."""
    return num_good >= needed and num_good > num_asked / 2


def closing_time(times: Sequence[float], usual: float, slack: float) -> float:
    """Seconds after which a round that can close does, from those that its good answers took."""
    return slack * max(_SHORTEST_PACE, usual, *times)


def pace_of(times: Sequence[float]) -> float:
    """How long the answers of a round took: the last one but one.

    >>> pace_of([2.0, 9.0, 3.0]), pace_of([2.0]), pace_of([])
    (3.0, 2.0, 0.0)
    """
    return sorted([0.0, *times])[-2:][0] if len(times) > 1 else max(times, default=0.0)


def usual_pace(history: Sequence[Mapping[str, Any]]) -> float:
    """How long answers took in recent rounds; 0 where there were none."""
    return median(row["pace"] for row in history[-_RECENT_ROUNDS:]) if history else 0.0


def find_rests(history: Sequence[Mapping[str, Any]]) -> dict[str, Rest]:
    """Who is not asked in the round after these."""
    faults: Counter[str] = Counter()
    rests: dict[str, Rest] = {}
    for row in history:
        for client in row["accepted"]:
            faults[client] = max(0, faults[client] - 1)
            rests.pop(client, None)
        for client, why in _faulty(row).items():
            faults[client] = min(faults[client] + 1, _MOST_FAULTS)
            if faults[client] >= _FIRST_REST_AT:
                rests[client] = Rest(row["round"] + 1 + 2 ** (faults[client] - _FIRST_REST_AT), why)
    return {client: rest for client, rest in rests.items() if rest.until > len(history) + 1}


def _faulty(row: Mapping[str, Any]) -> dict[str, str]:
    """Who stalled or was quarantined in a round."""
    quarantined = {bad["client"]: f"quarantined: {bad['reason']}" for bad in row["quarantined"]}
    return dict.fromkeys(row["stalled"], STALLED) | quarantined
