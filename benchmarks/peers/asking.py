"""How `plfl bench` asks other systems: in this interpreter if it has them, else in an environment
of their own.

Environments are made once, with venv and pip, in the user's cache folder. What is installed is what
the extra `bench` of our own package asks for, and nowhere else written down. A peer whose check
rounds come to other losses than ours is refused.
"""

import fcntl
import importlib.util
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

from plfl.bench.run import call
from plfl.errors import RunFailed
from plfl.storage import cache_folder

PACKAGES = {"torch": ("numpy", "torch"), "flower": ("numpy", "torch", "flwr", "ray")}
"""What each kind of peer imports; Ray comes with Flower's simulation."""
CHECK_TOLERANCE = 1e-4
"""By how much a peer's mean loss in a check round may differ from ours."""
_HERE = Path(__file__).parent
_INSTALL_SECONDS = 1800


def write_work(folder: str, request: dict[str, Any]) -> list[float]:
    """Write the work down for peers, and return what their check rounds must come to."""
    command = [sys.executable, str(_HERE / "work.py"), folder, json.dumps(request)]
    return list(call(command, request["cores"])["check_losses"])


def ask(
    name: str, peer: str, folder: str, cores: int, losses: list[float], tell: Callable[[str], None]
) -> dict[str, Any]:
    """What a system of some kind answers that does the work in a folder; `RunFailed` says why
    not.
    """
    python = find_python(peer, tell)
    answer = dict(call([str(python), str(_HERE / f"{name}.py"), folder], cores))
    check_losses(answer["check_losses"], losses)
    return answer


def check_losses(found: list[float], expected: list[float]) -> None:
    """Refuse a system whose check rounds come to other losses: it does other work."""
    if len(found) != len(expected) or any(
        not abs(a - b) <= CHECK_TOLERANCE for a, b in zip(found, expected, strict=True)
    ):
        theirs, ours = (", ".join(f"{x:.6f}" for x in losses) for losses in (found, expected))
        raise RunFailed(f"it does other work: its losses are {theirs}, ours are {ours}")


def find_python(peer: str, tell: Callable[[str], None] = lambda text: None) -> Path:
    """An interpreter that can run this kind of peer, made if there is none; `RunFailed` says why
    there cannot be.
    """
    if all(importlib.util.find_spec(name) for name in PACKAGES[peer]):
        return Path(sys.executable)
    wanted = requirements(peer)
    mark = sha256(
        "\n".join([platform.python_version(), platform.machine(), *wanted]).encode()
    ).hexdigest()[:12]
    folder = cache_folder() / "bench" / f"{peer}-{mark}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "complete").exists():
                tell(f"installing {', '.join(wanted)} into {folder}, once")
                _make(folder, wanted)
    except OSError as error:
        raise RunFailed(f"no environment in {folder} ({error.strerror})") from error
    return folder / "bin" / "python"


def requirements(peer: str) -> list[str]:
    """What pip is asked for, as our own package's metadata has it."""
    try:
        stated = requires("plfl") or []
    except PackageNotFoundError as error:
        raise RunFailed(
            "plfl is not installed, so that its extra bench is unknown", "run pip install ."
        ) from error
    names = [
        text.partition(";")[0].strip()
        for text in stated
        if "extra" not in text or "'bench'" in text.replace('"', "'")
    ]
    return sorted(name for name in names if name.startswith(PACKAGES[peer]))


def _make(folder: Path, wanted: list[str]) -> None:
    """A fresh environment with these packages; nothing of it stays if that fails."""
    shutil.rmtree(folder, ignore_errors=True)
    install = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *wanted,
    ]
    for command in ([sys.executable, "-m", "venv", str(folder)], install):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
        except subprocess.TimeoutExpired as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise RunFailed(
                f"installing {', '.join(wanted)} took longer than {_INSTALL_SECONDS} s"
            ) from error
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            lines = [line for line in (done.stderr + done.stdout).splitlines() if "ERROR" in line]
            raise RunFailed(
                f"cannot install {', '.join(wanted)}: "
                f"{lines[-1] if lines else 'venv or pip failed'}"
            )
    (folder / "complete").touch()
