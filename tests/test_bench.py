"""`plfl bench`: all systems do the same work, and what cannot be measured is said."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from plfl.bench import run
from plfl.bench.measure import count_flop, make_work
from plfl.bench.run import (
    PEERS,
    SYSTEMS,
    Bench,
    Options,
    days_for,
    make_options,
    pinned_to,
    run_bench,
)
from plfl.cli.bench import print_bench
from plfl.errors import BadInput, RunFailed
from plfl.federate.processes.devices import core_numbers
from plfl.report.page import write_report

SCRIPTS = run.ASKING.parent
PEER_PROGRAMS = ("given", "torch_loop", "torch_stacked", "flower", "flower_client")


def load(name: str):
    """A module of benchmarks/peers that our own interpreter runs."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


asking = load("asking")
OURS = {
    "rates": [900.0, 1000.0],
    "warmup_seconds": 1.5,
    "how": "2 cores",
    "peak_bytes": 300_000_000,
    "days": 365,
    "num_params": 60276,
    "flop_per_client_step": 9_208_800,
    "local_steps": 125,
    "platform": "cpu",
    "device_kind": "cpu",
    "check_losses": [0.8, 0.7],
    "versions": {"jax": "0"},
}
PEER = {key: OURS[key] for key in ("warmup_seconds", "how", "check_losses", "versions")} | {
    "rates": [40.0, 50.0]
}


@pytest.fixture
def no_processes(monkeypatch):
    """Answers without measuring: ours 1,000, PyTorch 50 client-steps/s, Flower cannot be had."""

    def ask(self, what, request):
        return (
            {"jax": 9_208_800 * 2000.0, "numpy": 1.0}
            if what == "limit"
            else OURS | {"days": request["clients"]}
        )

    def ask_peer(name, peer, folder, cores, losses, tell):
        if peer == "flower":
            raise RunFailed("cannot install flwr: no network")
        return PEER

    peers = SimpleNamespace(ask=ask_peer, write_work=lambda folder, request: [0.8, 0.7])
    monkeypatch.setattr(Bench, "_ask", ask)
    monkeypatch.setattr(run, "load_peers", lambda: peers)


def test_flop_of_a_client_step_are_those_counted_by_hand():
    forward = 12 * (8 + 25) * 100 + 300 * 150 + 150 * 75 + 75  # multiplications for one window
    config, task = make_work(1)
    assert count_flop(config, task) == 3 * 16 * 2 * forward


def test_peers_are_standalone_programs():
    own = set(PEER_PROGRAMS)
    assert {path.stem for path in SCRIPTS.glob("*.py")} == own | {"asking", "work"}
    assert {name for name, system in SYSTEMS.items() if system.peer} <= own
    for path in (SCRIPTS / f"{name}.py" for name in PEER_PROGRAMS):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in (name.split(".")[0] for name in names):
                assert name in own | {"torch", "flwr", "numpy"} | set(sys.stdlib_module_names), (
                    path,
                    name,
                )


def test_what_a_peer_needs_is_what_the_extra_bench_asks_for():
    assert [text[:5] for text in asking.requirements("torch")] == ["numpy", "torch"]
    assert [text[:5] for text in asking.requirements("flower")] == ["flwr[", "numpy", "torch"]


@pytest.mark.e2e
def test_a_peer_that_cannot_be_installed_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("PLFL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        asking, "requirements", lambda peer: [f"no-such-package @ file://{tmp_path}/none.whl"]
    )
    monkeypatch.setitem(asking.PACKAGES, "torch", ("no_such_package",))
    with pytest.raises(RunFailed, match=r"cannot install no-such-package.*: ERROR"):
        asking.find_python("torch")
    assert not [path for path in (tmp_path / "plfl" / "bench").iterdir() if path.is_dir()]


def test_a_peer_in_this_interpreter_is_used_where_it_is(monkeypatch):
    monkeypatch.setitem(asking.PACKAGES, "torch", ("json",))
    assert asking.find_python("torch") == Path(sys.executable)


def test_a_peer_that_does_other_work_is_refused():
    asking.check_losses([0.5, 0.40009], [0.5, 0.4])
    for other in ([0.5, 0.4002], [0.5], [0.5, float("nan")]):
        with pytest.raises(RunFailed, match=r"it does other work: its losses are 0\.5"):
            asking.check_losses(other, [0.5, 0.4])


def test_what_is_not_measured_says_why_and_the_rest_goes_on(no_processes, tmp_path, capsys):
    result = run_bench(Options(clients=(12, 120)), tmp_path / "bench")
    assert result["client_steps_per_second"] == {
        "plfl": 1000.0,
        "torch_loop": 50.0,
        "torch_stacked": 50.0,
        "flower": None,
    }
    assert (result["ratio_vs_torch_loop"], result["ratio_vs_flower"]) == (20.0, None)
    assert result["roofline_fraction"] == 0.5
    assert json.loads((tmp_path / "bench" / "result.json").read_text()) == result
    print_bench(result, tmp_path / "bench")
    assert (
        "Flower on Ray was not measured: cannot install flwr: no network" in capsys.readouterr().out
    )


def test_progress_ends_when_all_is_measured(no_processes, tmp_path):
    seen = []
    options = Options(clients=(12, 120), peers=("torch",))
    run_bench(options, tmp_path / "bench", lambda *where: seen.append(where))
    assert [done for _, _, done, _ in seen] == sorted(done for _, _, done, _ in seen)
    assert {total for *_, total in seen} == {8}


def test_the_page_shows_every_system_and_needs_no_network(no_processes, tmp_path):
    run_bench(Options(clients=(12, 120)), tmp_path / "bench")
    page = (tmp_path / "bench" / "report.html").read_text()
    for words in (
        "PyTorch loop",
        "20.0 x",
        "not measured: cannot install flwr: no network",
        "50% of that",
        "9.21 MFLOP",
    ):
        assert words in page
    assert "With 120 clients each has 120 days of data" in page
    assert "http" not in page.replace("http-equiv", "")
    assert write_report(tmp_path / "bench").read_text() == page


def test_a_busy_machine_is_named(no_processes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    print_bench(run_bench(Options(), tmp_path / "bench"), tmp_path / "bench")
    assert "Other programs were at work (load 3.0" in capsys.readouterr().out
    assert (
        "Other programs were at work (load 3.0" in (tmp_path / "bench" / "report.html").read_text()
    )


@pytest.mark.parametrize(("sweep", "num_points"), [("clients", 4), ("cores", 2)])
def test_a_sweep_measures_ours_alone(sweep, num_points, no_processes, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "usable_cores", lambda: 2)
    monkeypatch.setattr(run, "core_numbers", lambda: {0, 1})
    result = run_bench(Options(sweep=sweep), tmp_path / "bench")
    assert [len(point["systems"]) for point in result["points"]] == [1] * num_points
    assert f"client-steps/s against {sweep}" in (tmp_path / "bench" / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"clients": "12;120"}, "'12;120' is no list of numbers; write clients=12,120"),
        ({"clients": "0"}, "the numbers of clients count from 1"),
        ({"peers": "pytorch"}, "unknown peer 'pytorch'; known peers: torch, flower"),
        ({"sweep": "rounds"}, "unknown sweep 'rounds'; known sweeps: clients, cores"),
        ({"device": "tpu"}, "unknown device 'tpu'; known devices: auto, cpu, gpu"),
    ],
)
def test_options_that_make_no_sense_are_refused(words, message):
    with pytest.raises(BadInput, match=message):
        make_options(**words)


def test_more_cores_than_there_are_are_refused(tmp_path):
    with pytest.raises(BadInput, match="this process may use"):
        run_bench(Options(cores=10_000), tmp_path / "bench")
    assert not (tmp_path / "bench").exists()


def test_defaults_are_those_of_the_options():
    assert make_options(clients=None, peers=None, cores=None) == Options()
    assert make_options(peers="") == Options(peers=())
    assert Options().peers == PEERS


def test_a_year_of_data_unless_there_are_very_many_clients():
    assert [days_for(num) for num in (1, 12, 120, 12_000, 1_000_000)] == [365, 365, 365, 16, 14]


def test_processes_run_on_the_cores_they_are_given():
    before = core_numbers()
    program = "import os; print(len(os.sched_getaffinity(0)))"
    for num in (1, len(before)):
        assert run.call([sys.executable, "-c", program], num) == num
    with pinned_to({min(before)}):
        assert core_numbers() == {min(before)}
    assert core_numbers() == before


def test_a_program_that_fails_is_said_in_its_own_words():
    program = "raise SystemExit('this PyTorch cannot use the GPU')"
    with pytest.raises(RunFailed, match="this PyTorch cannot use the GPU"):
        run.call([sys.executable, "-c", program], 1)


def test_without_a_checkout_plfl_is_measured_and_peers_say_what_they_need(
    no_processes, tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "load_peers", lambda: None)
    result = run_bench(Options(), tmp_path / "bench")
    ours, *peers = result["points"][0]["systems"]
    assert (ours["client_steps_per_second"], ours["check_losses"]) == (1000.0, [])
    assert all("peers need a checkout" in peer["reason"] for peer in peers)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> tuple[Path, list[float]]:
    """Where the work is that all do, and the losses of our engine."""
    folder = tmp_path_factory.mktemp("work")
    config, task = make_work(2, local_steps=2)
    request = {"cores": 1, "rounds": 1, "min_seconds": 0, "max_seconds": 1, "is_fused": True}
    return folder, load("work").save_work(folder, config, task, jax.devices()[:2], request)


@pytest.mark.e2e
@pytest.mark.parametrize("name", [name for name, system in SYSTEMS.items() if system.peer])
def test_a_peer_does_the_same_work_as_our_engine(name, work):
    folder, losses = work
    answer = asking.ask(name, SYSTEMS[name].peer, str(folder), 1, losses, print)
    assert losses[1] < losses[0]
    assert answer["rates"][0] > 0


@pytest.mark.e2e
@pytest.mark.usefixtures("as_users_do")
def test_the_command_measures_on_this_machine(tmp_path):
    command = [
        sys.executable,
        "-m",
        "plfl",
        "bench",
        "--clients",
        "2",
        "--no-peers",
        "--rounds",
        "1",
        "--json",
    ]
    done = subprocess.run([*command, "--cores", "1"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["client_steps_per_second"]["plfl"] > 0
    assert 0 < result["roofline_fraction"] < 1
    assert (tmp_path / result["folder"] / "report.html").exists()
