"""Checkpoints are there as a whole or not at all, and say so when they are damaged."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plfl.errors import BadInput
from plfl.federate import checkpoint
from plfl.federate.checkpoint import Snapshot, Stamp, find_newest, load, load_params, save
from plfl.storage import file_name, read_arrays
from small import assert_trees_equal, tiny_federation

STAMP = Stamp(run="r", version="0", data="d", platform="p")


@pytest.fixture(scope="module")
def federation():
    return tiny_federation(server="fed_avg_adaptive", start="own", reset_moments=False)


@pytest.fixture(scope="module")
def state(federation):
    engine = federation.engine
    return engine.fetch(engine.run_round(engine.init(), 1)[0].state)


def save_round(folder, federation, state, round_index):
    task = federation.plan.task
    history = [{"round": at} for at in range(1, round_index + 1)]
    save(folder, Snapshot(state, task.panel.ids, task.scalers, round_index, history, 2.5, STAMP))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip_byte(path: Path, at: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def test_load_undoes_save(tmp_path, federation, state):
    save_round(tmp_path, federation, state, 1)
    found = find_newest(tmp_path)
    assert_trees_equal(load(found, state), state)
    assert (found.round_index, found.history, found.stamp) == (1, [{"round": 1}], STAMP)


def test_equal_states_give_equal_files(tmp_path, federation, state):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_round(tmp_path / name, federation, state, 1)
    names = sorted(
        path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.*") if path.is_file()
    )
    assert len(names) == 7  # five clients, the server and the manifest
    assert all(
        (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        for name in names
    )


def test_the_last_three_rounds_are_kept(tmp_path, federation, state):
    for at in range(1, 6):
        save_round(tmp_path, federation, state, at)
    rounds = {
        name: json.loads((tmp_path / name / "manifest.json").read_text())["round"]
        for name in names_in(tmp_path)
    }
    assert rounds == {"state": 5, "state.1": 4, "state.2": 3}


@pytest.mark.parametrize(
    "victim", ["manifest.json", "server.safetensors", "clients/b002.safetensors"]
)
@pytest.mark.parametrize("damage", [flip_byte, lambda path: path.write_bytes(b""), Path.unlink])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path, federation, state, victim, damage, caplog
):
    for at in (1, 2):
        save_round(tmp_path, federation, state, at)
    damage(tmp_path / "state" / victim)
    assert find_newest(tmp_path).round_index == 1
    assert victim == "manifest.json" or "going on from round 1" in caplog.text


def test_every_damaged_byte_of_a_header_and_any_in_the_body_is_noticed(tmp_path, federation, state):
    save_round(tmp_path, federation, state, 1)
    path = tmp_path / "state" / "server.safetensors"
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for at in [*range(header), *np.random.default_rng(0).integers(header, len(content), 40)]:
        path.write_bytes(content)
        flip_byte(path, int(at))
        with pytest.raises(BadInput):
            find_newest(tmp_path)


def test_when_every_checkpoint_is_damaged_the_error_says_so(tmp_path, federation, state):
    for at in (1, 2):
        save_round(tmp_path, federation, state, at)
    for name in ("state", "state.1"):
        flip_byte(tmp_path / name / "server.safetensors")
    with pytest.raises(BadInput, match=r"every checkpoint in .* is damaged .*start a new run"):
        find_newest(tmp_path)


def test_a_folder_without_checkpoints_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"holds no checkpoint; is it the folder of a run\?"):
        find_newest(tmp_path)


def test_files_of_two_rounds_never_mix(tmp_path, federation, state):
    changed = state._replace(
        clients=state.clients._replace(num_rounds=state.clients.num_rounds + 1)
    )
    save_round(tmp_path, federation, state, 1)
    save_round(tmp_path, federation, changed, 2)
    shutil.copy(
        tmp_path / "state.1" / "clients" / "b001.safetensors", tmp_path / "state" / "clients"
    )
    assert find_newest(tmp_path).round_index == 1


class Crash(BaseException):
    """Stands for a killed process: nothing after it runs."""


@pytest.mark.parametrize("call", range(1, 12))
def test_a_crash_at_any_rename_loses_at_most_the_unfinished_round(
    tmp_path, federation, state, call, monkeypatch
):
    for at in range(1, 5):
        save_round(tmp_path, federation, state, at)
    calls = iter(range(1, 100))
    for name in ("rename", "replace"):
        original = getattr(Path, name)

        def crash(self, target, original=original):
            if next(calls) == call:
                raise Crash
            return original(self, target)

        monkeypatch.setattr(Path, name, crash)
    rmtree = shutil.rmtree
    monkeypatch.setattr(
        checkpoint.shutil, "rmtree", lambda *a, **k: crash_or(next(calls) == call, rmtree, *a, **k)
    )
    with suppress(Crash):
        save_round(tmp_path, federation, state, 5)
    monkeypatch.undo()
    assert find_newest(tmp_path).round_index in (4, 5)
    save_round(tmp_path, federation, state, 6)
    assert find_newest(tmp_path).round_index == 6
    assert names_in(tmp_path) == ["state", "state.1", "state.2"]


def crash_or(is_time, function, *args, **options):
    if is_time:
        raise Crash
    return function(*args, **options)


def test_a_failed_write_leaves_the_sets_before_and_no_rubbish(
    tmp_path, federation, state, monkeypatch
):
    save_round(tmp_path, federation, state, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("plfl.storage.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_round(tmp_path, federation, state, 2)
    assert names_in(tmp_path) == ["state"]
    assert find_newest(tmp_path).round_index == 1


def test_the_server_s_file_holds_no_personal_param_and_a_client_s_file_only_its_own(
    tmp_path, federation, state
):
    """Searched for as bytes, for every personal tensor of every client."""
    save_round(tmp_path, federation, state, 1)
    server = (tmp_path / "state" / "server.safetensors").read_bytes()
    ids = federation.plan.task.panel.ids
    files = {
        client: (tmp_path / "state" / "clients" / file_name(client)).read_bytes() for client in ids
    }
    for rows in state.clients.personal.values():
        for row, client in enumerate(ids):
            piece = np.asarray(rows[row]).tobytes()
            if len(set(piece)) > 4:  # PReLU slopes start alike everywhere
                assert piece not in server
                assert [name for name, content in files.items() if piece in content] == [client]


def test_params_are_stored_under_their_own_names(tmp_path, federation, state):
    save_round(tmp_path, federation, state, 1)
    found = find_newest(tmp_path)
    assert set(load_params(found)) == {
        f"lstm.{name}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    assert set(load_params(found, "b001")) == set(state.clients.personal)
    assert "scaler.load_mean" in read_arrays(checkpoint.client_path(found, "b001"))[0]


@given(st.lists(st.text(min_size=1, max_size=300), min_size=2, max_size=2, unique=True))
def test_any_two_ids_have_different_and_legal_file_names(ids):
    names = [file_name(client) for client in ids]
    assert names[0] != names[1]
    assert all(
        len(name.encode()) < 255 and "/" not in name and name not in (".", "..") for name in names
    )


def test_another_format_is_refused_with_the_version_that_can_read_it(
    tmp_path, federation, state, monkeypatch
):
    save_round(tmp_path, federation, state, 1)
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    with pytest.raises(BadInput, match=r"written by plfl 0 in format 1, this is format 99"):
        find_newest(tmp_path)
