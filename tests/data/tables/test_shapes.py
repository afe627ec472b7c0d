"""Public exports are read with nothing but a time zone: right meters, right energy, at the right
time.
"""

import numpy as np
import pandas as pd
import pytest

from data.planted import write_text
from data.tables.shapes import SHAPES, Shape
from plfl.config import Config
from plfl.data.sources import load_source


def read(folder, shape: Shape):
    path = write_text(folder, shape.write(shape.truth).encode(shape.encoding), shape.name)
    settings = {"timezone": shape.truth.zone} | dict(shape.settings)
    return load_source(path, Config(**settings))


def right(panel, shape: Shape) -> np.ndarray:
    """(meters, times) the readings that a panel should hold at its times."""
    truth = shape.truth
    utc = truth.starts.tz_convert("UTC").tz_localize(None)
    table = pd.DataFrame(truth.kwh, index=utc).reindex(pd.to_datetime(panel.times()))
    names = panel.ids if set(panel.ids) == set(truth.ids) else truth.ids
    return table[list(names)].to_numpy().T


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.title)
def test_a_public_export_is_read_with_nothing_but_a_time_zone(tmp_path, shape):
    loaded = read(tmp_path, shape)
    panel = loaded.panel
    assert panel is not None, [str(finding) for finding in loaded.findings]
    assert (len(panel.ids), panel.minutes) == (len(shape.truth.ids), shape.truth.minutes)
    expected = right(panel, shape)
    known = np.isfinite(panel.load)
    assert known.sum() >= 0.97 * np.isfinite(expected).sum()
    np.testing.assert_allclose(panel.load[known], expected[known], rtol=0.02, atol=0.002)
    total = np.nansum(np.where(known, expected, 0), axis=1)
    np.testing.assert_allclose(np.nansum(panel.load, axis=1), total, rtol=0.001)
