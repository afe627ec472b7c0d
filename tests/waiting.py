"""Waiting for real processes: for a condition, with a limit that a busy machine keeps too."""

import time

LIMIT = 240.0
"""Seconds after which a test gives up."""


def wait_for(is_true, explain=lambda: "", seconds=LIMIT):
    """Until it is true; what is explained is shown where it never is."""
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until, explain()
        time.sleep(0.1)


def log_of(folder):
    """The log of a server or a client, as far as it is written."""
    path = folder / "log.txt"
    return path.read_text(encoding="utf-8") if path.exists() else ""
