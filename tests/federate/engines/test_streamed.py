"""The streaming engine against the resident one."""

from itertools import product

import jax
import numpy as np
import pytest

from carriers import stream_of
from plfl.config import Config
from plfl.data.scratch import Scratch
from plfl.errors import BadInput
from plfl.federate import engines
from plfl.federate.checkpoint import find_newest
from plfl.federate.engines import choose_chunk
from plfl.federate.engines.streamed import Streamed
from plfl.federate.server import SERVER_OPTIMIZERS
from plfl.runs.train import run
from small import (
    DEVICES,
    TINY,
    assert_trees_close,
    assert_trees_equal,
    own_federation,
    run_engine,
    set_rows,
    tiny_federation,
    uneven_panel,
)


def both(**values):
    """The states after all rounds: resident, and in chunks of two."""
    return run_engine(tiny_federation(**values)), run_engine(stream_of(tiny_federation(**values)))


@pytest.mark.parametrize(
    ("server", "personal"),
    [
        pytest.param(
            server,
            personal,
            marks=() if (server, personal) == ("fed_avg", "mlp") else pytest.mark.e2e,
        )
        for server, personal in product(SERVER_OPTIMIZERS, ("none", "mlp", "all"))
    ],
)
def test_clients_in_chunks_learn_what_they_learn_all_at_once(server, personal):
    """With clients of unequal length and gaps, cohorts of three out of five, and a last chunk that
    is not full.
    """
    values = {"server": server, "personal": personal, "fraction": 0.6, "weights": "windows"}
    assert_trees_close(*both(**values), 1e-5)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("start", "reset_moments"), [("own", True), ("server", False), ("own", False)]
)
def test_what_clients_keep_between_rounds_passes_through_too(start, reset_moments):
    values = {
        "client": "prox_adam",
        "fraction": 0.6,
        "rounds": 4,
        "start": start,
        "reset_moments": reset_moments,
    }
    assert_trees_close(*both(**values), 1e-5)


@pytest.mark.e2e
def test_the_chunk_changes_nothing():
    """Bit for bit, whether rows are in memory or in files."""
    panel = uneven_panel(7)
    expected = run_engine(stream_of(tiny_federation(panel), chunk=2))
    with_room = stream_of(tiny_federation(panel), chunk=5, scratch=Scratch())
    assert_trees_equal(run_engine(with_room), expected)


def test_forecasts_are_those_of_the_resident_engine():
    """Although clients differ in their number of windows, and the last chunk is not full."""
    resident = tiny_federation()
    state = resident.engine.init()
    expected = resident.engine.predict(state, "test")
    streamed = stream_of(tiny_federation())
    found = streamed.engine.predict(streamed.engine.place(resident.engine.fetch(state)), "test")
    assert [len(row) for row in found] == [len(row) for row in resident.plan.task.origins["test"]]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.e2e
def test_a_client_that_diverges_keeps_its_state_and_is_quarantined():
    federation = stream_of(tiny_federation(client="prox", client_lr=1e4, local_steps=50))
    engine = federation.engine
    before = jax.tree.map(np.copy, engine.fetch(engine.init()))
    result, _ = engine.run_round(engine.place(before), 1)
    assert (np.asarray(result.verdicts) == 2).all()
    assert_trees_equal(before, engine.fetch(result.state))


def small_config(**values):
    return Config(
        **TINY | {"rounds": 3, "local_steps": 5, "data": ("generated:5?days=12",), **values}
    )


def files_of(folder):
    return {path.name: path.read_bytes() for path in (folder / "state").rglob("*.safetensors")}


@pytest.mark.e2e
@pytest.mark.parametrize(
    "values",
    [{"fraction": 0.6}, {"server": "fed_avg_adaptive", "start": "own", "reset_moments": False}],
)
def test_a_run_stopped_in_the_middle_of_a_round_goes_on_with_another_chunk_as_if_it_had_not(
    tmp_path, monkeypatch, values
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(small_config(**values, chunk=2), out=whole)

    def die(*args):
        raise SystemExit

    rounds = iter([Streamed._update_server, die])
    with monkeypatch.context() as patch:
        patch.setattr(
            Streamed, "_update_server", lambda *args: next(rounds)(*args)
        )  # clients have trained by then
        with pytest.raises(SystemExit):
            run(small_config(**values, chunk=3, checkpoint_seconds=0), out=parts)
    assert find_newest(parts).round_index == 1
    run(small_config(**values, chunk=4), resume=parts)
    assert files_of(whole) == files_of(parts)


@pytest.mark.e2e
def test_a_run_in_chunks_writes_the_results_of_a_resident_one(tmp_path):
    """And personal params of an earlier run are taken over."""
    results = [run(small_config(chunk=chunk), out=tmp_path / f"run{chunk}") for chunk in (None, 2)]
    assert [c.mase for c in results[1].clients] == pytest.approx(
        [c.mase for c in results[0].clients], rel=1e-4
    )
    assert (tmp_path / "run2" / "report.html").exists()
    assert "2 clients are on the device at once" in (tmp_path / "run2" / "log.txt").read_text()
    warm = run(small_config(chunk=2, rounds=1, init=tmp_path / "run2"))
    assert warm.history[0]["loss"] < results[1].history[0]["loss"]


@pytest.mark.parametrize("num_asked", [pytest.param(5, marks=pytest.mark.e2e), 3])
def test_a_gpu_s_clients_in_blocks_learn_what_they_learn_all_at_once(num_asked):
    """What a GPU does, on one CPU device: three blocks of two, the last one filled up."""
    federations = [own_federation(fraction=num_asked / 5) for _ in range(2)]
    for federation, block in zip(federations, (9, 2), strict=True):
        set_rows(federation.engine, is_batched=True, block=block)
    assert_trees_close(*(run_engine(federation) for federation in federations), 1e-6)


@pytest.mark.e2e
def test_a_gpu_s_clients_in_chunks_learn_what_they_learn_all_at_once():
    federation = stream_of(own_federation(fraction=0.6))
    set_rows(federation.engine, is_batched=True)
    assert_trees_close(run_engine(federation), run_engine(tiny_federation(fraction=0.6)))


@pytest.mark.parametrize(("chunk", "expected"), [(None, None), (2, 2), (5, None), (9, None)])
def test_a_chunk_as_large_as_the_federation_is_none(chunk, expected):
    assert choose_chunk(tiny_federation(chunk=chunk).plan, DEVICES[0]) == expected


def test_clients_that_do_not_fit_into_a_share_of_the_memory_come_in_chunks(monkeypatch):
    plan = tiny_federation().plan
    for num_fitting, expected in ((5, None), (4.5, 2), (0.1, 1)):
        memory = num_fitting * plan.bytes_per_client / engines._CPU_SHARE
        monkeypatch.setattr(engines, "machine_memory", lambda memory=memory: memory)
        assert choose_chunk(plan, DEVICES[0]) == expected


def test_several_processes_share_the_clients_instead(monkeypatch):
    plan = tiny_federation(chunk=2).plan
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(
        BadInput, match=r"chunk is for one process; leave it out where several share the clients"
    ):
        choose_chunk(plan, DEVICES[0])
