"""A benchmark from beginning to end: each system in a process of its own, one after the other, on
the same cores.

Ours runs first and writes the work down; a peer that cannot run, or whose check rounds come to
other losses than ours, is not measured, with the reason, and the rest goes on.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from plfl._version import __version__
from plfl.bench.environments import find_python
from plfl.bench.options import SYSTEMS, Measured, Observer, Options, Progress
from plfl.errors import BadInput, RunFailed
from plfl.report.page import write_report
from plfl.runs import folder as runfolder
from plfl.storage import write_json

CHECK_TOLERANCE = 1e-4
"""By how much a peer's mean loss in a check round may differ from ours."""
_LONGEST_SECONDS = 3600
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Bench:
    """One benchmark under way."""

    def __init__(self, options: Options, observer: Observer) -> None:
        self.options, self.observer = options, observer
        self.all_cores = usable_cores()
        self.cores = options.cores or len(self.all_cores)
        if self.cores > len(self.all_cores):
            raise BadInput(
                f"--cores {self.cores}, but this process may use {len(self.all_cores)}",
                "ask for fewer",
            )
        systems = [
            name
            for name, system in SYSTEMS.items()
            if not system.peer or system.peer in options.peers
        ]
        self.systems = ["plfl"] if options.sweep else systems
        self.num_done = 0
        self.num_all = len(self.points()) * (len(self.systems) + 1)

    def points(self) -> list[tuple[int, int]]:
        """(clients, cores) of each federation to measure."""
        if self.options.sweep == "cores":
            return [
                (num, cores) for num in self.options.points for cores in range(1, self.cores + 1)
            ]
        return [(num, self.cores) for num in self.options.points]

    def run(self) -> list[dict[str, Any]]:
        """What was measured at each point."""
        limits: dict[int, dict[str, float]] = {}
        found = []
        for num_clients, cores in self.points():
            point = self._measure(num_clients, cores)
            if cores not in limits:
                self._show("products of matrices", [])
                request = {
                    "device": point["platform"],
                    "cores": cores,
                    "min_seconds": self.options.min_seconds,
                }
                limits[cores] = self._ask("limit", request, cores)
            self.num_done += 1
            point["matrix_flop_per_second"] = limits[cores]
            limit = max(limits[cores].values()) / point["flop_per_client_step"]
            point["limit_client_steps_per_second"] = limit
            point["roofline_fraction"] = point["systems"][0]["client_steps_per_second"] / limit
            found.append(point)
        return found

    def _measure(self, num_clients: int, cores: int) -> dict[str, Any]:
        """All systems on one federation."""
        where = f"{num_clients:,} clients" + (
            f" on {_say_cores(cores)}" if self.options.sweep == "cores" else ""
        )
        with tempfile.TemporaryDirectory(prefix="plfl-bench-") as name:
            self._show(f"{where}: {SYSTEMS['plfl'].label}", [])
            request = {
                "clients": num_clients,
                "device": self.options.device,
                "cores": cores,
                "rounds": self.options.rounds,
                "min_seconds": self.options.min_seconds,
                "max_seconds": self.options.max_seconds,
                "is_fused": self.options.is_fused,
                "folder": name if len(self.systems) > 1 else None,
            }
            answer = self._ask("ours", request, cores)
            ours = Measured("plfl", max(answer["rates"]), facts=_facts(answer))
            self._done(f"{where}: {SYSTEMS['plfl'].label}", ours)
            measured = [ours]
            for system in self.systems[1:]:
                measured.append(
                    self._measure_peer(system, where, Path(name), cores, answer["check_losses"])
                )
        shared = (
            "days",
            "num_params",
            "flop_per_client_step",
            "local_steps",
            "platform",
            "device_kind",
            "peak_bytes",
        )
        return {
            "clients": num_clients,
            "cores": cores,
            **{key: answer[key] for key in shared},
            "systems": [one.to_dict(ours.client_steps_per_second) for one in measured],
        }

    def _measure_peer(
        self, name: str, where: str, folder: Path, cores: int, losses: list[float]
    ) -> Measured:
        at = f"{where}: {SYSTEMS[name].label}"
        self._show(at, [])
        try:
            python = find_python(SYSTEMS[name].peer, lambda text: self._show(at, [text]))
            script = Path(__file__).parent / "peers" / f"{name}.py"
            answer = _call(
                [str(python), str(script), str(folder)],
                _environment(python, cores),
                self._pinned(cores),
            )
            check_losses(answer["check_losses"], losses)
            measured = Measured(name, max(answer["rates"]), facts=_facts(answer))
        except RunFailed as error:
            measured = Measured(name, reason=str(error))
        self._done(at, measured)
        return measured

    def _ask(self, module: str, request: dict[str, Any], cores: int) -> Any:
        """What one of our own modules answers in a process of its own."""
        python = Path(sys.executable)
        command = [str(python), "-m", f"plfl.bench.{module}", json.dumps(request)]
        return _call(command, _environment(python, cores), self._pinned(cores))

    def _pinned(self, cores: int) -> set[int]:
        return set(sorted(self.all_cores)[:cores])

    def _show(self, at: str, figures: list[str]) -> None:
        self.observer(Progress(at, figures, self.num_done, self.num_all))

    def _done(self, at: str, measured: Measured) -> None:
        self.num_done += 1
        rate = measured.client_steps_per_second
        self._show(
            at, [f"{rate:,.0f} client-steps/s" if rate else f"not measured: {measured.reason}"]
        )


def run_bench(
    options: Options, folder: Path, observer: Observer = lambda progress: None
) -> dict[str, Any]:
    """Measure, write result.json and report.html into a new folder, and return what was found."""
    bench = Bench(options, observer)
    runfolder.create(folder)
    begun, load = time.perf_counter(), os.getloadavg()[0]
    points = bench.run()
    result = summarise(points, options, load) | {"seconds": time.perf_counter() - begun}
    write_json(folder / "result.json", result)
    write_report(folder)
    return result


def summarise(points: list[dict[str, Any]], options: Options, load: float) -> dict[str, Any]:
    """The result: figures of the first federation by name, then all of them; `load` is what others
    kept busy.
    """
    first = points[0]
    rates = {one["name"]: one["client_steps_per_second"] for one in first["systems"]}
    ratios = {
        f"ratio_vs_{one['name']}": one["ratio"] for one in first["systems"] if one["name"] != "plfl"
    }
    return {
        "client_steps_per_second": rates,
        **ratios,
        "roofline_fraction": first["roofline_fraction"],
        "sweep": options.sweep,
        "points": points,
        "machine": {
            "processor": _processor_name(),
            "device": first["device_kind"],
            "cores": max(point["cores"] for point in points),
            "system": platform.platform(),
            "load_before": load,
        },
        "versions": {"plfl": __version__, "python": platform.python_version()},
    }


def check_losses(found: list[float], expected: list[float]) -> None:
    """Refuse a system whose check rounds come to other losses: it does other work."""
    if len(found) != len(expected) or any(
        not abs(a - b) <= CHECK_TOLERANCE for a, b in zip(found, expected, strict=True)
    ):
        said, ours = ([f"{loss:.6f}" for loss in losses] for losses in (found, expected))
        raise RunFailed(
            f"it does other work: its losses are {', '.join(said)}, ours are {', '.join(ours)}"
        )


def usable_cores() -> set[int]:
    """The cores that this process may use."""
    return (
        os.sched_getaffinity(0)
        if hasattr(os, "sched_getaffinity")
        else set(range(os.cpu_count() or 1))
    )


@contextmanager
def pinned_to(cores: set[int]) -> Iterator[None]:
    """Processes that are started here run on these cores only, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _call(command: list[str], environment: dict[str, str], cores: set[int]) -> Any:
    """The JSON in the last line that a program prints; it and all that it started are gone
    afterwards.
    """
    with pinned_to(cores):
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    try:
        output, errors = process.communicate(timeout=_LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"it took longer than {_LONGEST_SECONDS} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = output.strip().splitlines()
    if process.returncode or not lines:
        said = errors.strip().splitlines() or [f"it ended with status {process.returncode}"]
        raise RunFailed(said[-1].strip())
    return json.loads(lines[-1])


def _environment(python: Path, cores: int) -> dict[str, str]:
    """Variables for a program: as many BLAS threads as cores; a peer's own packages only."""
    found = {
        **os.environ,
        **_QUIET,
        "OPENBLAS_NUM_THREADS": str(cores),
        "MKL_NUM_THREADS": str(cores),
    }
    if python != Path(sys.executable):
        found.pop("PYTHONPATH", None)
    return found


def _facts(answer: dict[str, Any]) -> dict[str, Any]:
    return {
        key: answer[key] for key in ("rates", "warmup_seconds", "how", "versions", "check_losses")
    }


def _say_cores(cores: int) -> str:
    return f"{cores} core{'s' if cores > 1 else ''}"


def _processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
