"""The built wheel in an empty environment, the examples, and the doctests in the sources."""

import doctest
import importlib
import json
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from plfl.data.generated import generate

ROOT = Path(__file__).parents[1]


@pytest.mark.e2e
@pytest.mark.usefixtures("as_users_do")
def test_a_built_wheel_installs_into_an_empty_environment_and_runs(tmp_path):
    def call(*args: object) -> str:
        done = subprocess.run([str(a) for a in args], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", ROOT)
    [wheel] = (tmp_path / "dist").glob("plfl-*.whl")
    held = zipfile.ZipFile(wheel).namelist()
    assert {f"plfl/data/measured/{name}.parquet" for name in ("homes", "campus")} <= set(held)
    assert sum("LICENSE-" in name for name in held) == 4  # beside the data and with the metadata
    assert not any("pretraining" in name or "bdg1_" in name for name in held)
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    small = [
        "--data",
        "generated:2?days=10",
        "--set",
        "rounds=2",
        "--set",
        "local_steps=3",
        "--json",
    ]
    result = json.loads(call(python.with_name("plfl"), "run", "paper", *small))
    assert result["num_params"] == 60276
    assert (tmp_path / result["folder"] / "report.html").exists()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("example", "last_line"),
    [
        ("compare_methods", "local "),
        ("own_model", "3,137 parameters"),
        ("own_round", "round 5: mean loss"),
        ("own_data", "b004: MASE"),
    ],
)
def test_the_examples_run(example, last_line, tmp_path):
    path = ROOT / "examples" / f"{example}.py"
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(last_line)


@pytest.mark.e2e
def test_the_python_in_the_documents_runs(tmp_path):
    panel = generate(2, days=60, minutes=30)
    columns = {"unique_id": np.repeat(panel.ids, panel.num_times), "ds": np.tile(panel.times(), 2)}
    pd.DataFrame(columns | {"y": panel.load.ravel()}).to_parquet(tmp_path / "meters.parquet")
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr


MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>>" in path.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module):
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted > 0
    assert results.failed == 0
