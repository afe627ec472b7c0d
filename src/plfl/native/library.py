"""The compiled kernels: made once per machine and processor, kept in the cache folder, loaded once
per process.
"""

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import jax

from plfl.native.layout import header
from plfl.storage import cache_folder, processor

SOURCE = Path(__file__).with_name("kernels.c")
TARGETS = (
    "plfl_lstm",
    "plfl_lstm_forward",
    "plfl_lstm_backward",
    "plfl_dense_forward",
    "plfl_dense_backward",
    "plfl_band",
    "plfl_cut_days",
    "plfl_days_forward",
    "plfl_days_backward",
    "plfl_adam",
    "plfl_adam_ams",
)
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared")
# What compilers call it; the first that works is taken.
_FOR_THIS_PROCESSOR = (("-march=native",), ("-mcpu=native",), ())
_lock = threading.Lock()
log = logging.getLogger("plfl")


def begin() -> None:
    """Compile and load the kernels meanwhile, so that the first question need not wait."""
    threading.Thread(target=is_available, daemon=True).start()


def is_available() -> bool:
    """Whether the kernels can be called; the first question compiles and loads them."""
    with _lock:
        return _load()


@cache
def _load() -> bool:
    if os.environ.get("PLFL_NATIVE", "1") == "0":
        return False
    try:
        library = ctypes.CDLL(str(_compiled()))
    except (OSError, subprocess.SubprocessError) as error:
        log.warning(
            "no native kernels (%s): XLA computes the same, and training takes about three times "
            "as long; install GCC 9 or newer, or Clang (PLFL_NATIVE=0 goes without, and is silent)",
            error,
        )
        return False
    for name in TARGETS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return True


def _compiled() -> Path:
    """The library's file, made if it is not there yet."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise OSError("there is no C compiler: neither cc nor gcc nor clang")
    stat = Path(compiler).resolve().stat()
    parts = [
        SOURCE.read_text(),
        header(),
        compiler,
        f"{stat.st_size} {stat.st_mtime_ns}",
        version("jaxlib"),
        processor(),
    ]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    folder = cache_folder() / "native"
    path = folder / f"kernels-{name}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        compile_kernels(compiler, path)
    if hasattr(os, "getuid") and path.stat().st_uid not in (os.getuid(), 0):
        raise OSError(f"{path} belongs to another user")
    return path


def compile_kernels(
    compiler: str, path: Path, targets: Sequence[Sequence[str]] = _FOR_THIS_PROCESSOR
) -> None:
    """Compile the kernels to a file, which appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        (Path(folder) / "layout.h").write_text(header())
        for target in targets:
            command = [
                compiler,
                *_FLAGS,
                *target,
                *(f"-I{place}" for place in (folder, jax.ffi.include_dir())),
                *(str(SOURCE), "-o", str(made), "-lm"),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode == 0:
                made.replace(path)
                return
    problem = (done.stderr.strip() or f"status {done.returncode}").splitlines()[0]
    raise OSError(f"{compiler} cannot compile them: {problem}")
