"""What a client reads from its own folder is its row of the source, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.sources import load_source, load_sources
from plfl.deploy.files.settings import Run, read_client, read_server
from plfl.deploy.files.slices import describe_form
from plfl.deploy.programs import provision
from plfl.errors import BadInput


@pytest.mark.parametrize("source", ["bundled:CA", "generated:3?days=21"])
def test_a_slice_is_the_row_of_the_source(tmp_path, source):
    panel = load_source(source).panel
    ids = list(panel.ids[:2])
    made = provision.init_from_data(tmp_path / "pilot", source, ids, run={"recipe": "paper"})
    for client in ids:
        own = read_client(made.clients[client])
        found = load_sources([own.data], Config(data=(own.data,), **own.data_settings)).panel
        expected = panel.take([panel.ids.index(client)])
        np.testing.assert_array_equal(found.load, expected.load)
        np.testing.assert_array_equal(found.covariates, expected.covariates)
        np.testing.assert_array_equal(found.statics, expected.statics)
        assert found.fingerprint() == expected.fingerprint()
    run = read_server(made.server).run
    assert (run.seconds, run.covariates, run.statics) == (
        900,
        panel.covariate_names,
        panel.static_names,
    )


@pytest.mark.parametrize(("seconds", "said"), [(30, "30s"), (90, "90s"), (900, "15min")])
def test_any_interval_that_data_can_have_is_agreed_on(seconds, said):
    panel = replace(generate(1, days=2), interval=np.timedelta64(seconds, "s"))
    run = Run(**describe_form(panel))
    assert (run.interval, run.seconds) == (said, seconds)


def test_a_client_that_the_source_does_not_have_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"has no readings of 'b9'; it has 'b002', 'b001'"):
        provision.init_from_data(tmp_path / "pilot", "generated:2?days=21", ["b001", "b9"], run={})
