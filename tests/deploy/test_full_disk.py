"""A disk without room, at every single write in turn: it is said, nothing is lost, and with room
again all goes on.
"""

import errno
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from federations import make_federation, make_nodes
from in_process import LocalWire
from plfl.deploy.protocol.clients import Terms
from plfl.deploy.protocol.messages import REFUSAL, TRAIN
from plfl.errors import RunFailed
from small import assert_trees_close, tiny_config, uneven_panel

TERMS = Terms(deadline=60.0, settling=60.0, patience=2)


@contextmanager
def room_for(num_writes):
    """A disk that takes so many more writes (files opened or flushed, folders made, names given);
    then it is full.
    """
    left = num_writes

    def limited(real, is_write=lambda *args, **more: True):
        def access(*args, **more):
            nonlocal left
            if is_write(*args, **more):
                left -= 1
                if left < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **more)

        return access

    def is_opened_to_write(path, mode="r", *args, **more):
        return mode[0] != "r"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", limited(Path.open, is_opened_to_write))
        for owner, name in ((Path, "mkdir"), (Path, "replace"), (os, "fsync")):
            patch.setattr(owner, name, limited(getattr(owner, name)))
        yield lambda: left < 0


def save_without_room(coordinator, work, num_writes):
    """Work with a server that can save no more than so many writes; the error, if one comes."""
    save = coordinator._save

    def save_then():
        with room_for(num_writes):
            save()

    coordinator._save = save_then
    try:
        work()
    except RunFailed as error:
        return str(error)
    return None


def test_a_server_whose_disk_is_full_at_any_write_says_so_and_goes_on_when_there_is_room(tmp_path):
    panel, rounds = uneven_panel(2).sorted(), 30
    config = tiny_config(rounds=rounds)
    wire = LocalWire(make_nodes(tmp_path / "clients", panel))
    failures, is_covered = 0, False
    while not is_covered:  # each start fails at a write that is one later than the last one
        coordinator, _ = make_federation(tmp_path, panel, config, TERMS, wire=wire)
        coordinator._resume()
        at = len(coordinator.history) + 1
        coordinator._meet()
        said = save_without_room(
            coordinator, lambda at=at, server=coordinator: server._one_round(at), failures
        )
        is_covered = said is None
        if said is not None:
            assert f"No space left on device); round {at - 1} is safe. Repair that" in said
            failures += 1
    assert 5 < failures < rounds
    last, _ = make_federation(tmp_path, panel, config, TERMS, wire=wire)
    last.go()
    smooth, _ = make_federation(tmp_path / "smooth", panel, config, TERMS)
    smooth.go()
    assert [row["round"] for row in last.history] == list(range(1, rounds + 1))
    assert_trees_close(last.state, smooth.state, 0)


def test_a_client_whose_disk_is_full_at_any_write_says_so_and_goes_on_when_there_is_room(
    tmp_path,
):
    panel, rounds = uneven_panel(2).sorted(), 30
    config, nodes = tiny_config(rounds=rounds), make_nodes(tmp_path / "clients", panel)
    node, failures, is_covered = nodes[panel.ids[0]], 0, False
    answer, asked = node.answer, set()

    def answer_without_room(request):
        nonlocal failures, is_covered
        at = request.facts.get("round")
        if request.kind != TRAIN or at in asked or is_covered:
            return answer(request)
        asked.add(at)
        with room_for(failures) as is_full:
            said = answer(request)
        is_covered = not is_full()
        if said.kind == REFUSAL:
            assert (
                said.facts["reason"]
                == "this client cannot write or read its files: No space left on device"
            )
            failures += 1
        return said

    node.answer = answer_without_room
    coordinator, _ = make_federation(tmp_path, panel, config, TERMS, wire=LocalWire(nodes))
    coordinator.go()
    assert is_covered
    assert 5 < failures < rounds
    smooth, wire = make_federation(tmp_path / "smooth", panel, config, TERMS)
    smooth.go()
    assert [row["accepted"] for row in coordinator.history] == [list(panel.ids)] * rounds
    assert_trees_close(coordinator.state, smooth.state, 0)
    other = wire.nodes[panel.ids[0]]
    assert_trees_close(node.agreed.last_state(), other.agreed.last_state(), 0)
