"""A client over time: what it keeps, what it answers after a restart, and what it says when
something is wrong.
"""

import importlib.util
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from in_process import make_nodes
from plfl.data.generated import generate
from plfl.deploy.protocol import commitment as keepsake
from plfl.deploy.protocol.messages import DONE, END, PLAN, READY, REFUSAL, TRAIN, UPDATE, Message
from plfl.errors import BadInput, RunFailed
from plfl.storage import digest
from small import agree_on, assert_trees_equal, consenting, tiny_config

PANEL = generate(2, days=12).sorted()
CLIENT = PANEL.ids[0]
KEEPING = Path(__file__).with_name("keeping.py")
FIRST, SECOND, THIRD = keepsake._NAMES


AGREES = consenting(tiny_config())


def make_node(folder, panel=PANEL):
    return make_nodes(folder, panel, AGREES)[CLIENT]


def agree(node, run="run-1", **settings):
    """Agree on a run; the agreement."""
    agreement = agree_on(PANEL, tiny_config(**{"rounds": 9} | settings), run)
    said = node.answer(Message(PLAN, {"agreement": agreement.to_json()}))
    assert said.kind == READY, said.facts
    return agreement


def params(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"weight_ih": (16, 8), "weight_hh": (16, 4), "bias_ih": (16,), "bias_hh": (16,)}
    return {
        f"lstm.{name}": rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def train(node, agreement, round_index, seed=None):
    sent = params(round_index if seed is None else seed)
    facts = {"agreement": agreement.digest, "round": round_index, "base": digest(sent)}
    return node.answer(Message(TRAIN, {**facts, "local_steps": 8, "batch": 8}, sent))


def state_of(node):
    return node.agreed.last_state()


def make_trained(folder, rounds=3):
    """A client that has trained some rounds, its agreement, and its state after each."""
    node = make_node(folder)
    agreement, states = agree(node), []
    for at in range(1, rounds + 1):
        assert train(node, agreement, at).kind == UPDATE
        states.append(state_of(node))
    return node, agreement, states


def damage(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 0xFF
    path.write_bytes(bytes(content))


# ---- what is kept ----


def test_a_restarted_client_goes_on_with_its_personal_model(tmp_path):
    _, agreement, states = make_trained(tmp_path / "cut")
    node = make_node(tmp_path / "cut")
    assert_trees_equal(state_of(node), states[-1])
    train(node, agreement, 4)
    whole, _, _ = make_trained(tmp_path / "whole", 4)
    assert_trees_equal(state_of(node), state_of(whole))


def test_a_request_that_comes_again_after_a_restart_gets_the_same_answer_bit_for_bit(
    tmp_path, monkeypatch
):
    node = make_node(tmp_path)
    agreement = agree(node)
    first = train(node, agreement, 1)
    again = make_node(tmp_path)
    monkeypatch.setattr(
        "plfl.deploy.protocol.commitment._update", lambda *args: pytest.fail("trained twice")
    )
    said = train(again, agreement, 1)
    assert said.facts == first.facts
    assert {name: array.tobytes() for name, array in said.arrays.items()} == {
        name: array.tobytes() for name, array in first.arrays.items()
    }


def test_a_round_with_other_params_is_trained_from_the_state_before_it(tmp_path):
    node, agreement, _ = make_trained(tmp_path / "twice", 2)
    train(node, agreement, 2, seed=77)
    other = make_node(tmp_path / "once")
    train(other, agree(other), 1)
    train(other, agreement, 2, seed=77)
    assert_trees_equal(state_of(node), state_of(other))


def test_a_plan_of_another_run_leaves_what_the_first_run_kept(tmp_path):
    node, first, states = make_trained(tmp_path, 2)
    second = agree(node, "run-2")
    assert int(state_of(node).num_rounds) == 0
    for at in range(1, 5):  # more rounds than a client keeps
        assert train(node, second, at).kind == UPDATE
    assert "not those that this client agreed to" in train(node, first, 3).facts["reason"]
    agree(node, "run-1")
    assert_trees_equal(state_of(node), states[-1])
    agree(node, "run-2")
    assert int(state_of(node).num_rounds) == 4


@pytest.mark.parametrize("run", ["../../elsewhere", "/etc", "..", "a/b", "\0", "x" * 200])
def test_a_run_s_name_never_leads_out_of_the_client_s_folder(tmp_path, run):
    node = make_node(tmp_path / "here")
    assert train(node, agree(node, run), 1).kind == UPDATE
    assert node.agreed.kept_folder.resolve().is_relative_to(tmp_path / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_damaged_file_falls_back_to_the_round_before_with_a_warning(tmp_path, caplog):
    node, _, states = make_trained(tmp_path)
    damage(node.agreed.kept_folder / FIRST)
    with caplog.at_level(logging.WARNING, "plfl"):
        assert_trees_equal(state_of(make_node(tmp_path)), states[1])
    assert "client.safetensors cannot be used" in caplog.text
    assert "going on with the one before" in caplog.text


def test_a_file_that_was_cut_off_or_is_gone_falls_back_too(tmp_path):
    node, _, states = make_trained(tmp_path)
    (node.agreed.kept_folder / FIRST).write_bytes(
        (node.agreed.kept_folder / FIRST).read_bytes()[:100]
    )
    (node.agreed.kept_folder / SECOND).unlink()
    assert_trees_equal(state_of(make_node(tmp_path)), states[0])


def test_where_every_file_is_damaged_a_client_begins_anew_with_a_warning(tmp_path, caplog):
    node, agreement, _ = make_trained(tmp_path)
    for name in (FIRST, SECOND, THIRD):
        damage(node.agreed.kept_folder / name)
    again = make_node(tmp_path)
    with caplog.at_level(logging.WARNING, "plfl"):
        assert_trees_equal(state_of(again), again.agreed.newcomer())
    assert "no stored round" in caplog.text
    assert "personal layers begin anew" in caplog.text
    assert train(again, agreement, 4).kind == UPDATE


# ---- faults of the disk ----


@pytest.mark.parametrize(
    ("what", "number", "reason"),
    [("write_arrays", 28, "No space left on device"), ("put_in_place", 5, "Input/output error")],
)
def test_a_disk_that_fails_while_keeping_is_said_and_loses_nothing(
    tmp_path, monkeypatch, what, number, reason
):
    node, agreement, states = make_trained(tmp_path / "bad")

    def fail(*args):
        raise OSError(number, os.strerror(number), str(tmp_path / "secret"))

    with monkeypatch.context() as patch:
        patch.setattr(f"plfl.deploy.protocol.commitment.{what}", fail)
        said = train(node, agreement, 4)
    assert said.facts["reason"] == f"this client cannot write or read its files: {reason}"
    assert_trees_equal(state_of(make_node(tmp_path / "bad")), states[-1])
    good, _, _ = make_trained(tmp_path / "good", 4)
    assert train(node, agreement, 4).kind == UPDATE
    assert_trees_equal(state_of(node), state_of(good))


def test_a_disk_that_is_full_while_a_plan_is_kept_leaves_the_plan_before(tmp_path, monkeypatch):
    node, agreement, states = make_trained(tmp_path)

    def fail(*args):
        raise OSError(28, "No space left on device")

    other = agree_on(PANEL, tiny_config(seed=7), "run-2")
    with monkeypatch.context() as patch:
        patch.setattr("plfl.deploy.protocol.node.write_text", fail)
        said = node.answer(Message(PLAN, {"agreement": other.to_json()}))
    assert "No space left" in said.facts["reason"]
    assert node.agreed.agreement == agreement
    assert_trees_equal(state_of(node), states[-1])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said_and_loses_nothing(tmp_path):
    node, agreement, states = make_trained(tmp_path)
    node.agreed.kept_folder.chmod(0o500)
    said = train(node, agreement, 4)
    node.agreed.kept_folder.chmod(0o700)
    assert said.facts["reason"] == "this client cannot write or read its files: Permission denied"
    assert_trees_equal(state_of(make_node(tmp_path)), states[-1])


def test_a_folder_whose_place_is_taken_by_a_file_is_said(tmp_path):
    node = make_node(tmp_path)
    shutil.rmtree(node.folder)
    node.folder.write_text("")
    agreement = agree_on(PANEL, tiny_config())
    said = node.answer(Message(PLAN, {"agreement": agreement.to_json()}))
    assert said.kind == REFUSAL
    assert "cannot write or read its files" in said.facts["reason"]


def load_keeping():
    spec = importlib.util.spec_from_file_location("keeping", KEEPING)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.e2e
def test_a_kill_at_any_moment_of_keeping_never_loses_the_round_before(tmp_path):
    keeping, rng, number = load_keeping(), random.Random(0), 1
    like = keeping.make_round(0)
    for _ in range(15):
        command = [sys.executable, str(KEEPING), str(tmp_path), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            process.stdout.readline()  # it has begun
            time.sleep(rng.uniform(0, 0.2))
            process.kill()
            said = [number, *map(int, process.stdout.read().split())]
        found = keepsake.recall(tmp_path, like.after, like.update)
        assert found.asked.round in (said[-1], said[-1] + 1)  # one that was kept and not yet said
        assert_trees_equal(found.after, keeping.make_round(found.asked.round).after)
        number = found.asked.round + 1


@pytest.mark.parametrize("moment", range(8))
def test_a_kill_at_each_access_to_the_disk_keeps_the_round_before_or_the_new_one(tmp_path, moment):
    keeping = load_keeping()
    for number in (1, 2, 3):
        keepsake.keep(tmp_path, keeping.make_round(number))
    left = moment

    class Killed(BaseException):
        pass

    def die(real):
        def access(*args, **more):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(*args, **more)

        return access

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "replace"):
            patch.setattr(Path, name, die(getattr(Path, name)))
        patch.setattr(os, "fsync", die(os.fsync))
        try:
            keepsake.keep(tmp_path, keeping.make_round(4))
        except Killed:
            pass
        else:
            assert moment >= 7
    like = keeping.make_round(0)
    found = keepsake.recall(tmp_path, like.after, like.update)
    assert found.asked.round in (3, 4)
    assert_trees_equal(found.after, keeping.make_round(found.asked.round).after)


# ---- data, and what is said of it ----


def test_a_client_without_enough_data_says_which_rule_it_breaks_and_no_more(tmp_path):
    config = tiny_config(lookback="2d")
    node = make_nodes(tmp_path, generate(2, days=1).sorted(), consenting(config))[CLIENT]
    said = node.answer(Message(PLAN, {"agreement": agree_on(PANEL, config).to_json()}))
    assert said.kind == REFUSAL
    assert said.facts["reason"].startswith("this client's data cannot be used for that (PLF109 ")


def test_data_of_another_id_is_refused_without_naming_it(tmp_path, caplog):
    node = make_node(tmp_path)
    node.load = make_nodes(tmp_path, PANEL, AGREES)[PANEL.ids[1]].load
    said = node.answer(Message(PLAN, {"agreement": agree_on(PANEL, tiny_config()).to_json()}))
    assert said.facts["reason"] == f"this client's data has no usable readings of {CLIENT!r}"
    assert PANEL.ids[1] not in str(said)


def test_a_meter_that_never_changes_is_refused_and_its_load_stays_at_home(tmp_path):
    flat = replace(PANEL, load=np.full_like(PANEL.load, 1234.5678))
    said = make_node(tmp_path, flat).answer(
        Message(PLAN, {"agreement": agree_on(PANEL, tiny_config()).to_json()})
    )
    assert said.kind == REFUSAL
    assert "1234" not in said.facts["reason"]


def test_data_that_cannot_be_read_is_said_at_home_and_not_to_the_server(tmp_path, caplog):
    node = make_node(tmp_path)

    def load(config):
        raise BadInput("/srv/ada/meter.csv: line 7: 2026-01-01T00:00 has 31.7 kWh")

    node.load = load
    said = node.answer(Message(PLAN, {"agreement": agree_on(PANEL, tiny_config()).to_json()}))
    assert said.facts["reason"] == "this client's data cannot be read; its own log says why"
    assert "/srv/ada/meter.csv" in caplog.text


@pytest.mark.parametrize(
    "error", [RunFailed("31.7 kWh"), KeyError("/srv/ada"), MemoryError(), ZeroDivisionError()]
)
def test_whatever_fails_at_the_end_is_a_refusal_that_says_nothing_private(tmp_path, error):
    node, agreement, _ = make_trained(tmp_path, 1)

    def finish(node, sent):
        raise error

    node.finish = finish
    sent = params()
    said = node.answer(Message(END, {"agreement": agreement.digest, "base": digest(sent)}, sent))
    assert (
        said.facts["reason"] == f"this client failed ({type(error).__name__}); its own log says why"
    )
    node.finish = None
    assert (
        node.answer(Message(END, {"agreement": agreement.digest, "base": digest(sent)}, sent)).kind
        == DONE
    )


def test_which_windows_are_drawn_is_a_secret_of_the_client_that_stays_and_is_nobody_else_s(
    tmp_path,
):
    def draws_of(folder):
        node = make_node(folder)
        if not (folder / "used").exists():
            (node.folder / "draws.secret").unlink()  # those of make_nodes are made of the ids
            (folder / "used").touch()
        agree(node)
        return np.asarray(jax.random.key_data(node.agreed.draws)).tolist()

    assert draws_of(tmp_path / "a") == draws_of(tmp_path / "a")
    assert draws_of(tmp_path / "a") != draws_of(tmp_path / "b")


def test_the_secret_is_readable_by_its_owner_alone_and_a_damaged_one_is_not_told_to_the_server(
    tmp_path, caplog
):
    node = make_node(tmp_path)
    agreement = agree(node)
    assert train(node, agreement, 1).kind == UPDATE
    secret = node.folder / "draws.secret"
    assert secret.stat().st_mode & 0o077 == 0
    secret.write_text("cut off")
    said = train(node, agreement, 2)
    assert said.kind == REFUSAL
    assert str(tmp_path) not in said.facts["reason"]
    assert "is damaged; restore it" in caplog.text


# ---- what two answers have in common ----


def test_another_run_with_the_same_seed_draws_other_windows(tmp_path):
    node, draws = make_node(tmp_path), []
    for run in ("run-1", "run-2", "run-1"):
        agree(node, run)
        draws.append(np.asarray(jax.random.key_data(node.agreed.draws)).tolist())
    assert draws[0] == draws[2] != draws[1]


def test_a_round_asked_with_nearly_the_same_parameters_comes_with_other_noise(tmp_path):
    node = make_node(tmp_path)
    agreement = agree(node)
    sent = params()
    answers = []
    for change in (0.0, 1e-6):
        asked = sent | {"lstm.bias_ih": sent["lstm.bias_ih"] + np.float32(change)}
        facts = {
            "agreement": agreement.digest,
            "round": 1,
            "base": digest(asked),
            "local_steps": 8,
            "batch": 8,
        }
        answers.append(node.answer(Message(TRAIN, facts, asked)).arrays["lstm.weight_ih"])
    apart = np.linalg.norm(answers[0] - answers[1]) / np.linalg.norm(answers[0])
    assert apart > 0.5  # of 64 windows, the noise is as large as the update
