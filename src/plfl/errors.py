"""What can go wrong, and whose move it is.

PlflError
├── BadInput       the user can fix it: exit status 2, one line that says what and how
│   └── Damaged    a file was cut off or altered after it was written
├── RunFailed      the machine gave up (a full disk, say): exit status 1, earlier state intact
│   └── Transient  it may heal by itself: a federation's programs wait and try again, and never end of it
└── Interrupted    the user stopped the run: exit status 130, state saved; a federation's programs end by SIGTERM
                   itself where that stopped them, as service managers want it
"""

import signal


class PlflError(Exception):
    """Anything plfl raises on purpose."""

    exit_status = 1


class BadInput(PlflError, ValueError):
    """An argument, a config value or a file that cannot be used; the message holds the way out."""

    exit_status = 2


class Damaged(BadInput):
    """A stored file whose content does not match its checksum."""


class RunFailed(PlflError, RuntimeError):
    """A run that had to end; what was saved before is intact."""


class Transient(RunFailed):
    """What may be well again without anybody's help here: a clock, a server that is away, a file half copied."""


class Interrupted(PlflError):
    """A run that was stopped from outside after its state was saved."""

    exit_status = 130

    def __init__(self, message: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number
        """The signal that did it."""
