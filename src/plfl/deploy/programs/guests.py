"""Who is connected to the front, how many may be, and who has to go when there is no room.

A connection is a stranger's until a call with a valid signature came over it. Strangers have few
places, and a few seconds to say who they are: while all places are taken, the next one waits at the
door until the oldest stranger of the address with the most of them is due. Clients with a key have
a number of connections each; the one that was idle for the longest makes room. Sockets are the
front's; here are the rules, with a clock of their own.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

# Connections. A stranger's costs some 100 kB of TLS; Flower's client uses up to four.
MOST_STRANGERS = 48
MOST_PER_KEY = 12
GRACE = 2.0  # seconds that a stranger has to say who it is, however many wait


@dataclass(eq=False)
class Guest:
    """One connection."""

    address: str
    since: float  # when it came, or when its last call ended
    close: Callable[[], object] = lambda: None  # ends it
    key: bytes | None = None  # whose it is; None is a stranger's
    is_busy: bool = False  # whether a call is under way


@dataclass
class Guests:
    """All connections."""

    most: int
    clock: Callable[[], float] = time.monotonic
    all: set[Guest] = field(default_factory=set)

    def make_room(self) -> float:
        """Seconds to wait before the next one may come in; 0 where there is room now."""
        strangers = [guest for guest in self.all if guest.key is None]
        if len(self.all) < self.most and len(strangers) < min(MOST_STRANGERS, self.most // 2):
            return 0.0
        if strangers:
            num = Counter(guest.address for guest in strangers)
            oldest = min(strangers, key=lambda guest: (-num[guest.address], guest.since))
            left = oldest.since + GRACE - self.clock()
            if left <= 0:
                self.dismiss(oldest)
            return max(0.0, left)
        return 0.0 if self._dismiss_idle(self.all) else 1.0

    def shed(self) -> None:
        """Close the oldest stranger's connection, as descriptors run out."""
        self._dismiss_idle({guest for guest in self.all if guest.key is None})

    def enter(self, address: str, close: Callable[[], object] = lambda: None) -> Guest:
        """One more connection."""
        guest = Guest(address, self.clock(), close)
        self.all.add(guest)
        return guest

    def know(self, guest: Guest, key: bytes) -> bool:
        """Note whose connection it is; False where all the others of that key are busy and too
        many.
        """
        if guest.key != key:
            others = {each for each in self.all if each.key == key}
            if len(others) >= MOST_PER_KEY and not self._dismiss_idle(others):
                return False
            guest.key = key
        return True

    def rest(self, guest: Guest) -> None:
        """Note that its call is over."""
        guest.is_busy = False
        guest.since = self.clock()

    def dismiss(self, guest: Guest) -> None:
        """Close a connection."""
        self.leave(guest)
        guest.close()

    def leave(self, guest: Guest) -> None:
        """Forget a connection that is closed."""
        self.all.discard(guest)

    def _dismiss_idle(self, guests: set[Guest]) -> bool:
        # Close the one without a call that had none for the longest, if there is one.
        idle = [guest for guest in guests if not guest.is_busy]
        if idle:
            self.dismiss(min(idle, key=lambda guest: guest.since))
        return bool(idle)
