"""Several processes give what one gives, send only means, and end together, whatever happens to one
of them.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from federate.several_processes import CASES, run_all
from plfl.errors import BadInput
from plfl.federate.processes import group as processes
from plfl.federate.processes.devices import cpu_quota, usable_cores
from plfl.federate.processes.group import (
    World,
    find_world,
    first_host,
    own_gpu,
    share_of_cores,
    spread,
)
from plfl.federate.processes.line import Line, accept, call, listen
from small import DEVICES, own_federation, set_rows

RUN = [sys.executable, "-m", "plfl", "run"]
SMALL = [
    "hidden=4",
    "mlp=[6]",
    "lookback=45min",
    "batch=8",
    "client=prox",
    "device=cpu",
    "checkpoint_seconds=0",
]


def mpiexec(num: int) -> list[str]:
    return [
        str(Path(sys.executable).with_name("mpiexec")),
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        str(num),
    ]


def run_args(folder: Path, **values: object) -> list[str]:
    settings = [*SMALL, *(f"{name}={value}" for name, value in values.items())]
    words = [word for setting in settings for word in ("--set", setting)]
    return ["paper", "--data", "generated:5?days=12", "--out", str(folder), *words]


def call_all(num: int, *args: str, **options: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*mpiexec(num), *args], capture_output=True, text=True, timeout=300, **options
    )


def assert_same_runs(a: Path, b: Path, tolerance: float = 1e-4) -> None:
    """Every stored array, and the metrics."""
    names = sorted(path.relative_to(a) for path in (a / "state").rglob("*.safetensors"))
    assert names == sorted(path.relative_to(b) for path in (b / "state").rglob("*.safetensors"))
    for name in names:
        mine, other = load_file(a / name), load_file(b / name)
        assert mine.keys() == other.keys()
        for key, array in mine.items():
            np.testing.assert_allclose(
                array, other[key], rtol=0, atol=tolerance, err_msg=f"{name} {key}"
            )
    results = [json.loads((folder / "result.json").read_text()) for folder in (a, b)]
    assert results[0]["quarantined"] == results[1]["quarantined"]
    np.testing.assert_allclose(results[0]["mase_mean"], results[1]["mase_mean"], atol=1e-3)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    run_all(folder)
    return folder


@pytest.mark.e2e
@pytest.mark.parametrize("num", [3])
def test_several_processes_give_the_numbers_of_one(num, alone, tmp_path):
    """After two rounds of ten steps, for the paper's three, most servers, cohorts and refused
    updates.
    """
    script = Path(__file__).with_name("several_processes.py")
    done = call_all(num, sys.executable, str(script), str(tmp_path))
    assert done.returncode == 0, done.stderr
    for name in CASES:
        assert_same_runs(alone / name, tmp_path / name)
        told = [json.loads((tmp_path / f"{name}.{rank}.json").read_text()) for rank in range(num)]
        assert all(result == told[0] for result in told)
    assert json.loads((tmp_path / "gate" / "result.json").read_text())["quarantined"]


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize(
    ("server", "aggregate"),
    [("fed_avg", "clipped_mean"), ("fed_avg", "mean"), ("fed_avg_adaptive", "clipped_mean")],
)
def test_only_means_and_some_numbers_per_client_cross(server, aggregate, is_batched):
    """In the compiled programs: sums have the shapes of shared params, what is gathered has one
    number per row.

    A clipped mean adds up all shared params in one row for its centre, and gathers each row's
    distances from it, in all and by name, of which it takes the medians.
    """
    federation = own_federation(server=server, fraction=0.6, aggregate=aggregate)
    engine = federation.engine
    set_rows(engine, is_batched=is_batched)
    state = engine.init()
    engine.compile(state)
    params = state.server.common["x"]
    shared = {tuple(x.shape) for x in params.values()}
    rows = {(engine.rows.num_rows,)}
    center = set()
    if aggregate == "clipped_mean":
        num_distances = 1 + len(params)
        rows |= {(num_distances, engine.rows.num_rows)}
        center = {(federation.plan.num_shared_params,), (num_distances, 1)}
    found = crossing(engine._compiled_round.as_text())
    assert set(found["all-reduce"]) <= shared | center | {()}
    assert shared <= set(found["all-reduce"])
    assert set(found["all-gather"]) == rows
    assert set(found) == {"all-reduce", "all-gather"}
    origins, _ = engine.rows.place_origins(federation.plan.task.origins["test"])
    assert (
        crossing(engine._programs.predict.lower(state, engine.data, origins).compile().as_text())
        == {}
    )


def crossing(program: str) -> dict[str, list[tuple[int, ...]]]:
    """The shapes that each kind of collective operation gives."""
    kinds = (
        "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
    )
    found: dict[str, list[tuple[int, ...]]] = {}
    for shapes, kind in re.findall(rf"= (\S+|\([^)]*\)) ({kinds})(?:-start)?\(", program):
        for sizes in re.findall(r"[a-z]+\d*\[([\d,]*)\]", shapes):
            found.setdefault(kind, []).append(tuple(int(n) for n in sizes.split(",") if n))
    return found


@pytest.mark.e2e
@pytest.mark.parametrize(("killed", "num_after", "tolerance"), [(1, 3, 1e-4), (0, 1, 0)])
def test_a_killed_process_ends_the_run_with_a_message_and_resume_gives_the_same(
    killed, num_after, tolerance, start, tmp_path
):
    """Also with another number of processes than before; on as many devices as before, bit for bit.

    On another number of devices sums differ in the last digit, and thousands of steps enlarge that:
    noise of 6e-8 on the first params, in one process, moves some by 0.3 at a client_lr of 0.1 and
    by 1e-4 at 0.002. Hence the small one.
    """
    folder, values = tmp_path / "run", {"rounds": 12, "local_steps": 2000, "client_lr": 2e-4}
    process = start(2, folder, **values, cores=1)
    wait_for_round(2, folder, process)
    ranks(process)[killed].kill()
    begun = time.monotonic()
    _, words = process.communicate(timeout=60)
    assert time.monotonic() - begun < 30
    said = re.findall(r"^plfl: (.*)$", words, re.MULTILINE)
    assert len(said) == 1, words
    found = re.search(
        rf"process {killed} of 2 .*; round (\d+) is safe\. .*: mpiexec -n 2 plfl run --resume",
        said[0],
    )
    assert found, said
    assert 1 <= int(found[1]) <= saved_round(folder) < 12
    assert "Traceback" not in words
    before = load_file(folder / "state" / "clients" / "b001.safetensors")
    resume = [*RUN, "--resume", str(folder), "--set", f"cores={2 if num_after == 1 else 1}"]
    done = (
        call_all(num_after, *resume)
        if num_after > 1
        else subprocess.run(resume, capture_output=True, text=True)
    )
    assert done.returncode == 0, done.stderr
    whole = tmp_path / "whole"
    subprocess.run([*RUN, *run_args(whole, **values, cores=2)], check=True, capture_output=True)
    assert_same_runs(whole, folder, tolerance)
    after = load_file(folder / "state" / "clients" / "b001.safetensors")
    assert (
        max(np.abs(after[name] - before[name]).max() for name in after if name.startswith("mlp"))
        > 1e-2
    )


@pytest.mark.e2e
@pytest.mark.parametrize("how", ["mpiexec is told SIGUSR1", "one process gets SIGTERM"])
def test_a_signal_stops_all_processes_after_the_round_with_everything_saved(how, start, tmp_path):
    folder = tmp_path / "run"
    process = start(2, folder, rounds=500, local_steps=2000)
    wait_for_round(1, folder, process)
    if how.startswith("mpiexec"):
        process.send_signal(signal.SIGUSR1)
    else:
        ranks(process)[1].terminate()
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130
    stopped = re.findall(r"plfl: stopped after round (\d+) of 500, everything is saved", words)
    assert stopped == [str(saved_round(folder))], words


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a run; what is left of it in the end is killed."""
    begun = []

    def begin(num: int, folder: Path, **values: object) -> subprocess.Popen:
        command = [*mpiexec(num), *RUN, *run_args(folder, **values)]
        begun.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return begun[-1]

    yield begin
    for process in begun:
        if process.poll() is None:
            for child in (*ranks(process).values(), process):
                child.kill()
            process.communicate()


def ranks(process: subprocess.Popen) -> dict[int, psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    numbers = [(child.environ().get("OMPI_COMM_WORLD_RANK"), child) for child in children]
    return {int(rank): child for rank, child in numbers if rank is not None}


def saved_round(folder: Path) -> int:
    try:
        return json.loads((folder / "state" / "manifest.json").read_text())["round"]
    except (OSError, ValueError):
        return -1


def wait_for_round(num: int, folder: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while saved_round(folder) < num:
        assert process.poll() is None, f"it has ended: {process.communicate()[1]}"
        assert time.monotonic() < deadline, f"it hangs after round {saved_round(folder)}"
        time.sleep(0.05)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "--set", "roundss=3"], "unknown config key 'roundss'; did you mean 'rounds'?"),
        (
            ["run", "--data", "generated:1?days=12"],
            "2 processes are more than there are clients (1); start at most 1",
        ),
        (
            ["study", "paper"],
            "plfl study works in one process, and mpiexec started 2; leave mpiexec out",
        ),
    ],
)
def test_what_is_wrong_is_said_once_and_all_leave_with_status_2(args, message, tmp_path):
    done = call_all(2, sys.executable, "-m", "plfl", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("plfl: ") == 1
    assert message in done.stderr


@pytest.mark.e2e
def test_slurm_s_processes_find_each_other_and_one_prints(tmp_path):
    """As srun starts them, without Slurm."""
    job = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
    }
    tasks = []
    for rank in "01":
        names = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_NUM_TASKS": "2"}
        command = [*RUN, *run_args(tmp_path / "run", rounds=2, local_steps=10), "--json"]
        environ = os.environ | job | names
        tasks.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
            )
        )
    said = [task.communicate(timeout=120) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert len(json.loads(said[0][0])["clients"]) == 5
    assert said[1][0] == ""


@pytest.mark.parametrize(
    ("environ", "world"),
    [
        ({}, World()),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1",
            World(1, 4, 1, "mpiexec"),
        ),
        ("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1", World(3, 4, 1, "mpiexec")),
        (
            "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_NTASKS=4",
            World(2, 4, 0, "srun"),
        ),
        (
            "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 PMI_RANK=2 PMI_SIZE=4",
            World(2, 4, 0, "srun"),
        ),
        (
            "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 PMI_RANK=5 PMI_SIZE=8",
            World(5, 8, 5, "mpiexec"),
        ),
        ("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0", World()),  # the batch script itself
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0", World()),
        (
            "PLFL_ALONE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 "
            "OMPI_COMM_WORLD_LOCAL_RANK=1",
            World(),
        ),
    ],
)
def test_the_launcher_says_which_process_this_is(environ, world):
    pairs = dict(word.split("=") for word in environ.split()) if environ else {}
    assert find_world(pairs) == world


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("vm", "vm"), ("a1,b2", "a1"), ("gpu[07-12,20],fat1", "gpu07"), ("n[3,5]", "n3")],
)
def test_the_first_machine_of_a_slurm_step(nodes, first):
    assert first_host(nodes) == first


def test_without_mpi4py_mpiexec_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        BadInput, match=r"2 processes were started by mpiexec.*pip install 'plfl\[mpi\]'"
    ):
        processes._meet_by_mpi(World(0, 2, 0, "mpiexec"))


def test_more_processes_than_clients_are_refused_and_devices_come_from_all():
    class Device:
        def __init__(self, process_index: int) -> None:
            self.process_index = process_index

    devices = [Device(k // 3) for k in range(6)]
    assert [device.process_index for device in spread(devices, 4)] == [0, 0, 1, 1]
    assert spread(devices, 9) == devices
    with pytest.raises(BadInput, match="2 processes are more than there are clients"):
        spread(devices, 1)
    assert spread(DEVICES, 1) == DEVICES[:1]


@pytest.mark.parametrize(
    ("masks", "usable", "shares"),
    [
        (["0123", "0123"], 4, [2, 2]),  # not bound: divided
        (["01", "23"], 2, [2, 2]),  # bound by the launcher: each its own
        (["01", "01", "01"], 2, [1, 1, 1]),
        (["0123", "0123"], 2, [1, 1]),  # a container's quota
    ],
)
def test_processes_of_one_machine_share_its_cores(masks, usable, shares, monkeypatch):
    sets = [{int(core) for core in mask} for mask in masks]
    monkeypatch.setattr(processes.socket, "gethostname", lambda: "vm")
    monkeypatch.setattr(
        processes, "share", lambda value: [["vm", sorted(cores)] for cores in sets] + [["far", [0]]]
    )
    assert [share_of_cores(cores, usable) for cores in sets] == shares


@pytest.mark.parametrize(
    ("world", "num_visible", "own"),
    [
        (World(1, 2, 1, "mpiexec"), 4, 1),
        (World(1, 2, 1, "mpiexec"), 1, None),  # two processes, one GPU
        (World(1, 2, 1, "srun"), 1, 0),  # Slurm shows each process its own
    ],
)
def test_every_process_has_a_gpu_of_its_own_or_none_has(world, num_visible, own, monkeypatch):
    monkeypatch.setattr(processes, "WORLD", world)
    assert own_gpu(num_visible) == own


@pytest.mark.parametrize(
    ("files", "groups", "quota"),
    [
        ({"cpu.max": "150000 100000"}, "0::/\n", 1.5),
        ({"cpu.max": "max 100000"}, "0::/\n", None),
        (
            {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"},
            "0::/a/b\n",
            2.0,
        ),  # a parent's limit
        (
            {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"},
            "4:cpu:/gone\n0::/\n",
            3.0,
        ),
        (
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "-1", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            "4:cpu,cpuacct:/x",
            None,
        ),
        ({}, "9:name=systemd:/\n", None),
        ({}, "", None),
    ],
)
def test_a_container_s_quota_limits_the_cores(files, groups, quota, tmp_path, monkeypatch):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert cpu_quota(groups, tmp_path) == quota
    monkeypatch.setattr("plfl.federate.processes.devices.cpu_quota", lambda: quota)
    monkeypatch.setattr("plfl.federate.processes.devices.core_numbers", lambda: set(range(8)))
    assert usable_cores() == (8 if quota is None else {1.5: 2, 2.0: 2, 3.0: 3}[quota])


def lines(num: int) -> list[Line]:
    """The lines of several processes, all in this one."""
    listener = listen()
    port, found = listener.getsockname()[1], {}

    def call_in(rank: int) -> None:
        found[rank] = call("127.0.0.1", port, rank, num, "secret", speaks=False)

    threads = [threading.Thread(target=call_in, args=(rank,)) for rank in range(1, num)]
    for thread in threads:
        thread.start()
    found[0] = accept(listener, num, "secret")
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(num)]


def in_all(joined: list[Line], act) -> list:
    """What each process gets when all do the same."""
    results: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda li=li: results.update({li.rank: act(li)})) for li in joined
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(len(joined))]


def test_what_is_shared_reaches_all_in_order_and_rows_reach_the_first_alone():
    joined = lines(3)
    for again in range(3):
        assert (
            in_all(joined, lambda line, k=again: line.share([line.rank, k]))
            == [[[0, again], [1, again], [2, again]]] * 3
        )
    rows = in_all(joined, lambda line: line.gather(bytes([line.rank]) * 100_000))
    assert rows[1:] == [None, None]
    assert [bytes(part) for part in rows[0]] == [bytes([rank]) * 100_000 for rank in range(3)]
    for line in joined:
        line.close()


def test_a_stranger_cannot_join():
    listener = listen()
    port, found = listener.getsockname()[1], []
    call("127.0.0.1", port, 1, 2, "guess", speaks=False).close()
    friend = threading.Thread(
        target=lambda: found.append(call("127.0.0.1", port, 1, 2, "secret", speaks=False))
    )
    friend.start()
    first = accept(listener, 2, "secret")
    friend.join()
    assert in_all([first, *found], lambda line: line.share(line.rank)) == [[0, 1], [0, 1]]
    first.close()
    found[0].close()
