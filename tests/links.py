"""A real SuperLink without the process of the rounds, for tests of what is before and behind it."""

import threading
from contextlib import contextmanager

from plfl.deploy.files.roster import Members
from plfl.deploy.flower.process import environment
from plfl.deploy.flower.server import FlowerWire, Link
from plfl.deploy.programs.server import superlink_command
from plfl.deploy.programs.supervise import Child, free_port, keep_alive, write_link_secret


@contextmanager
def superlink(settings):
    """Its port, and a wire to it that is not open yet."""
    settings.folder.mkdir(exist_ok=True)
    secret, port, stop = write_link_secret(settings.folder), free_port(), threading.Event()
    child = Child(
        "superlink",
        superlink_command(settings, port, secret),
        environment(settings.folder),
    )
    keeper = threading.Thread(target=keep_alive, args=([child], stop.is_set))
    keeper.start()
    wire = FlowerWire(
        Link(f"127.0.0.1:{port}", settings.ca.read_bytes(), secret.read_bytes()),
        Members(settings).keys,
    )
    try:
        yield port, wire
    finally:
        wire.close()
        stop.set()
        keeper.join()
