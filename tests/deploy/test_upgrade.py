"""After an upgrade: a new run begins with the last shared parameters of the old one, and clients
keep what fits.
"""

from dataclasses import replace

import numpy as np
import pytest

from federations import make_nodes
from in_process import LocalWire
from plfl.deploy.files.settings import read_server
from plfl.deploy.files.state import begin_run, read_run
from plfl.deploy.programs import provision
from plfl.deploy.programs.rounds import first_params, name_run
from plfl.deploy.protocol import agreement, coordinator
from plfl.deploy.protocol.clients import Terms
from plfl.deploy.protocol.coordinator import Coordinator
from plfl.errors import BadInput, Damaged
from plfl.federate.checkpoint import load_shared
from small import agree_on, assert_trees_equal, tiny_config, uneven_panel

TERMS = Terms(deadline=60.0, settling=60.0, patience=2)
OLD, NEW = "0.1", "0.2"


def upgrade(monkeypatch, version):
    for module in (agreement, coordinator):
        monkeypatch.setattr(module, "__version__", version)


def make_server(folder, panel, wire, config, *, run, init="", params=None):
    agreed = replace(agree_on(panel, config, run), init=init)
    return Coordinator(agreed, lambda: list(panel.ids), wire, folder, TERMS, init=params)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A run of the old version that is over: its folder, its clients, and its last state."""
    top, panel = tmp_path_factory.mktemp("upgrade"), uneven_panel(2).sorted()
    config, nodes = tiny_config(rounds=3), make_nodes(top / "clients", panel)
    with pytest.MonkeyPatch.context() as patch:
        upgrade(patch, OLD)
        server = make_server(top / "state", panel, LocalWire(nodes), config, run="old-1")
        server.go()
        personal = {client: node.agreed.last_state().personal for client, node in nodes.items()}
    return panel, config, top, server, personal


def test_another_version_in_the_same_folder_is_told_the_way_out(old, monkeypatch):
    panel, config, top, _, _ = old
    upgrade(monkeypatch, NEW)
    again = make_server(
        top / "state", panel, LocalWire(make_nodes(top / "clients", panel)), config, run="old-1"
    )
    with pytest.raises(
        BadInput,
        match=r"holds a run of plfl 0\.1, and this is 0\.2; "
        r'give this one a folder of its own .* init = "state"',
    ):
        again.go()


def test_a_run_with_init_goes_on_from_the_old_parameters_and_personal_layers(
    old, monkeypatch, tmp_path
):
    panel, config, top, server, personal = old
    upgrade(monkeypatch, NEW)
    params, rounds = load_shared(top / "state")
    nodes = make_nodes(top / "clients", panel)
    new = make_server(
        tmp_path / "new", panel, LocalWire(nodes), config, run="new-1", init="old-1", params=params
    )
    assert rounds == 3
    assert_trees_equal(new.state.common["x"], server.state.common["x"])
    new.go()
    for client, node in nodes.items():
        assert node.agreed.agreement.version == NEW
        assert_trees_equal(node.agreed.newcomer().personal, personal[client])
        assert node.agreed.last_round().asked.round == 3
    assert new.history[0]["loss"] < server.history[0]["loss"]
    resumed = make_server(
        tmp_path / "new", panel, LocalWire(nodes), config, run="new-1", init="old-1"
    )
    resumed._resume()  # without the old folder
    assert_trees_equal(resumed.state.common["x"], new.state.common["x"])


def test_a_run_without_init_begins_from_nothing_at_the_clients_too(old, monkeypatch, tmp_path):
    panel, config, top, _, personal = old
    upgrade(monkeypatch, NEW)
    nodes = make_nodes(top / "clients", panel)
    make_server(tmp_path / "new", panel, LocalWire(nodes), config, run="other-1")._meet()
    for client, node in nodes.items():
        fresh = node.agreed.newcomer().personal
        assert any(not np.array_equal(fresh[name], personal[client][name]) for name in fresh)


def test_personal_layers_that_do_not_fit_begin_anew_and_the_others_go_on(old, monkeypatch):
    from plfl.deploy.protocol.commitment import recall_personal

    _, _, top, _, personal = old
    [client, *_] = personal
    kept = personal[client]
    odd, *rest = sorted(kept)
    template = {name: np.zeros_like(value) for name, value in kept.items()} | {
        odd: np.zeros((7, 7), np.float32)
    }
    found = recall_personal(top / "clients" / "0" / "runs" / "old-1", template)
    assert np.array_equal(found[odd], template[odd])
    assert all(np.array_equal(found[name], kept[name]) for name in rest)
    assert recall_personal(top / "nowhere", template) is template


def test_parameters_that_do_not_fit_are_refused_by_name(old, tmp_path):
    panel, config, top, _, _ = old
    params, _ = load_shared(top / "state")
    name, *_ = sorted(params)
    for wrong, words in (
        ({**params, name: np.zeros((1, 2), np.float32)}, rf"it has \(1, 2\) as {name}, and \("),
        (
            {key: value for key, value in params.items() if key != name},
            rf"it has nothing as {name}",
        ),
    ):
        with pytest.raises(
            BadInput, match=rf"the run that init names does not fit: {words}.*or leave init out"
        ):
            make_server(tmp_path / "new", panel, LocalWire({}), config, run="new-1", params=wrong)


@pytest.fixture
def settings(tmp_path):
    made = provision.init(tmp_path / "pilot", ["a"], host="127.0.0.1")
    text = made.server.read_text()
    made.server.write_text(
        text.replace('folder = "state"', 'folder = "state-2"').replace(
            'init = ""', 'init = "state"'
        )
    )
    found = read_server(made.server)
    found.folder.mkdir()
    return found


def test_server_toml_names_the_run_to_begin_with(settings, old, tmp_path):
    earlier = settings.folder.with_name("state")
    with pytest.raises(
        BadInput, match=r"init = .* holds no run; name the folder of an earlier one"
    ):
        name_run(settings)
    earlier.mkdir()
    before = begin_run(earlier, "pilot")
    now = name_run(settings)
    assert (now.init, now.run[:6], now.run != before.run) == (before.run, "pilot-", True)
    assert name_run(settings) == now == read_run(settings.folder)
    with pytest.raises(BadInput, match="holds no checkpoint"):
        first_params(settings)
    (earlier / "state").mkdir()
    (earlier / "state" / "server.safetensors").write_bytes(
        (old[2] / "state" / "state" / "server.safetensors").read_bytes()
    )
    assert_trees_equal(first_params(settings), load_shared(old[2] / "state")[0])
    (settings.folder / "state").mkdir()
    (settings.folder / "state" / "manifest.json").touch()
    assert first_params(settings) is None  # it has a checkpoint of its own


def test_a_run_cannot_begin_with_itself(settings):
    path = settings.roster.parent / "server.toml"
    path.write_text(path.read_text().replace('folder = "state-2"', 'folder = "state"'))
    with pytest.raises(BadInput, match="is the folder of the new run too; name another folder"):
        read_server(path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"run": 7}', '{"run": ""}', '{"run": "x", "init": 3}', "\x00"]
)
def test_a_damaged_run_json_is_named_with_the_way_out(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(
        Damaged,
        match=r"run\.json is damaged.*restore it from a backup, or name another folder.*init",
    ):
        read_run(tmp_path)
