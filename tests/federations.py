"""Federations of separate servers and clients in one process, for the tests of `plfl.deploy`."""

import in_process
from in_process import LocalWire
from plfl.deploy.protocol.clients import Terms
from plfl.deploy.protocol.coordinator import Coordinator
from small import agree_on, consenting, tiny_config

SOON = Terms(deadline=0.2, settling=0.2, patience=3)
UNGUARDED = {"min_batch": 1, "min_local_steps": 1, "max_unit_change": 1e9, "blurred_windows": 0}
ANY = consenting(tiny_config(), **UNGUARDED)
"""Agrees to `tiny_config`, whatever is asked, and alters no update."""


def make_nodes(folder, panel, policy=ANY, finish=None):
    return in_process.make_nodes(folder, panel, policy, finish)


def make_federation(folder, panel, config, terms=SOON, wire=None, **more):
    wire = wire or LocalWire(make_nodes(folder / "clients", panel, consenting(config, **UNGUARDED)))
    ids = more.pop("ids", list(panel.ids))
    return Coordinator(
        agree_on(panel, config), lambda: ids, wire, folder / "server", terms, **more
    ), wire
