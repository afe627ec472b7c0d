"""The end at a client: its own files, which the commands of a run take."""

import json

import numpy as np
import pytest

from federations import UNGUARDED, make_federation, make_nodes
from in_process import LocalWire
from plfl.deploy.programs.answers import finish, own_state
from plfl.federate.federation import Federation
from small import DEVICES, analog_config, assert_trees_close, consenting, tiny_config, uneven_panel


@pytest.mark.parametrize("server", ["fed_avg", "fed_avg_adaptive"])
def test_a_client_ends_with_the_params_it_was_sent_and_its_own(tmp_path, server):
    panel, config = uneven_panel(2).sorted(), tiny_config(server=server)
    coordinator, wire = make_federation(tmp_path, panel, config)
    coordinator.go()
    for client, node in wire.nodes.items():
        federation = Federation(node.agreed.config, node.agreed.task, None, DEVICES[:1])
        sent = coordinator._request("end", client).arrays
        ends = federation.engine.full_params(own_state(node, federation, sent))
        own = node.agreed.last_state().personal
        assert_trees_close({name: np.asarray(ends[name])[0] for name in sent}, sent, 0)
        assert_trees_close({name: np.asarray(ends[name])[0] for name in own}, dict(own), 0)


def test_a_client_writes_its_own_report_and_nobody_else_s(tmp_path):
    panel, config = uneven_panel(2).sorted(), tiny_config()
    wire = LocalWire(make_nodes(tmp_path / "clients", panel, finish=finish))
    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire)
    coordinator.go()
    assert coordinator.done == set(panel.ids)
    for client, node in wire.nodes.items():
        found = json.loads((node.folder / "result.json").read_text())
        assert [each["id"] for each in found["clients"]] == [client]
        assert found["clients"][0]["mase"] is not None
        assert (node.folder / "report.html").exists()


@pytest.mark.e2e
def test_a_deployed_model_forecasts_from_a_client_s_folder(tmp_path):
    from plfl.forecast.model_file import find_model

    panel, config = uneven_panel(2, days=40).sorted(), analog_config(tune_rounds=2)
    wire = LocalWire(
        make_nodes(tmp_path / "clients", panel, consenting(config, **UNGUARDED), finish)
    )
    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire)
    coordinator.go()
    for client, node in wire.nodes.items():
        assert find_model(node.folder, client).client == client
