"""When a round ends, and who rests: pure functions of the times at which answers came and of the
rounds that are over.

A round with its quorum, and with more than half of those asked, waits for the others no longer than
`slack` times as long as answers take: the latest good one of this round, or what is usual. So one
client that stalls costs little, and the answers that usually come still count. What is usual is the
last answer but one, the median of recent rounds: a single client that takes longer from round to
round cannot move it. For who has a fault, the round waits only a little longer than for the latest
answer, or than that client usually takes.

A client that stalled or was quarantined in a closed round has one fault more, one whose answer
counted has one less. From the second fault on it rests, twice as long each time, and is asked again
afterwards. The closed rounds say all of that, so that a server that was started again knows it too.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

STALLED = "no answer in time"
# Seconds; below this, when clients happen to look for requests decides who is first.
_SHORTEST_PACE = 1.6
# How many times as long as answers take, or its own did, a round waits for a client with a fault.
_SECOND_CHANCE = 1.2
_RECENT_ROUNDS = 5
LONGEST_REST = 32  # rounds
# Faults from which on a client rests, and beyond which none is counted, so that it can come back.
_FIRST_REST_AT = 2
_MOST_FAULTS = _FIRST_REST_AT + LONGEST_REST.bit_length() - 1


@dataclass(frozen=True)
class Rest:
    """Why a client is not asked now, and in which round it is again."""

    until: int
    why: str


@dataclass(frozen=True)
class Past:
    """What recent rounds were like."""

    # Seconds that answers usually took; 0 where there were none.
    pace: float
    # The same of each client that answered.
    own: Mapping[str, float]
    # Who has a fault now.
    faulty: frozenset[str]


def can_close(num_good: int, num_asked: int, needed: int) -> bool:
    """Whether a round may end before its deadline: a fast minority must not end it for the rest."""
    return num_good >= needed and num_good > num_asked / 2


def closing_time(
    times: Mapping[str, float], missing: Collection[str], past: Past, slack: float
) -> float:
    """Seconds after which a round that can close does, from those that its good answers took."""
    latest = max([_SHORTEST_PACE, *times.values()])
    most = slack * max(latest, past.pace)
    if not set(missing) <= past.faulty:
        return most
    own = [past.own[client] for client in missing if client in past.own]
    return min(most, _SECOND_CHANCE * max([latest, *own]))


def pace_of(times: Sequence[float]) -> float:
    """How long the answers of a round took: the last one but one.

    >>> pace_of([2.0, 9.0, 3.0]), pace_of([2.0]), pace_of([])
    (3.0, 2.0, 0.0)
    """
    return sorted([0.0, *times])[-2] if len(times) > 1 else max(times, default=0.0)


def look_back(history: Sequence[Mapping[str, Any]]) -> Past:
    """What the rounds so far say about the next one."""
    own: dict[str, list[float]] = {}
    for row in reversed(history):
        for client, seconds in row["times"].items():
            if len(known := own.setdefault(client, [])) < _RECENT_ROUNDS:
                known.append(seconds)
    faults, _ = _fold(history)
    return Past(
        median(pace_of([*row["times"].values()]) for row in history[-_RECENT_ROUNDS:])
        if history
        else 0.0,
        {client: median(known) for client, known in own.items()},
        frozenset(client for client, num in faults.items() if num),
    )


def find_rests(history: Sequence[Mapping[str, Any]]) -> dict[str, Rest]:
    """Who is not asked in the round after these."""
    _, rests = _fold(history)
    return {client: rest for client, rest in rests.items() if rest.until > len(history) + 1}


def _fold(history: Sequence[Mapping[str, Any]]) -> tuple[Counter[str], dict[str, Rest]]:
    # The faults of each client after these rounds, and its last rest.
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
    return faults, rests


def _faulty(row: Mapping[str, Any]) -> dict[str, str]:
    # Who stalled or was quarantined in a round.
    quarantined = {bad["client"]: f"quarantined: {bad['reason']}" for bad in row["quarantined"]}
    return dict.fromkeys(row["stalled"], STALLED) | quarantined
