"""Keeps one round after the other, until it is killed.

    python keeping.py FOLDER FIRST

Writes the number of each round once it is kept; round n has arrays of the value n.
"""

import sys
from pathlib import Path

import numpy as np

from plfl.deploy.protocol.commitment import AskedRound, Keepsake, keep
from plfl.federate.client import ClientState

NUM = 5_000
"""Numbers in each array, so that a write takes a moment."""


def make_round(number: int) -> Keepsake:
    """A round that can be told from all others."""
    array = {"a": np.full(NUM, number, np.float32)}
    state = ClientState(array, {}, (), np.int32(number))
    asked = AskedRound("run", number, "base", 8, 8)
    return Keepsake(asked, state, state, array, array, float(number))


if __name__ == "__main__":
    number = int(sys.argv[2])
    while True:
        keep(Path(sys.argv[1]), make_round(number))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1
