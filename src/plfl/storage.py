"""Files that survive: written whole or not at all, flushed to the disk, and checked when they are
read.

Arrays are safetensors with their own digest in the header, so that one file copied elsewhere can
still be verified. Facts about them are JSON under one key: equal content gives equal files, byte
for byte.
"""

import fcntl
import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from plfl.errors import BadInput, Damaged


def digest(arrays: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and bytes: equal digests mean equal arrays, bit for bit."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        value = np.asarray(arrays[name], order="C")
        total.update(f"{name}:{value.dtype.str}:{value.shape}".encode())
        total.update(value.tobytes())
    return total.hexdigest()


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
    put_in_place(temporary, path)


def put_in_place(temporary: Path, path: Path) -> None:
    """Flush a finished file to the disk and give it its name."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for text."""
    write_bytes(path, text.encode())


@contextmanager
def locked(path: Path, refusal: str, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock file for this process alone; after so many seconds of waiting for another one,
    refuse.
    """
    until = time.monotonic() + seconds
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= until:
                    raise BadInput(refusal) from None
                time.sleep(0.2)
        yield


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> str:
    """Write named arrays and facts about them as safetensors, and return their digest."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    sha256 = _digest_with(arrays, facts)
    header = {"plfl": json.dumps({**facts, "sha256": sha256}, sort_keys=True)}
    with path.open("wb") as file:
        file.write(save(arrays, header))
        file.flush()
        os.fsync(file.fileno())
    return sha256


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The named arrays and facts of a file, after checking its digest."""
    try:
        with safe_open(path, framework="numpy") as file:
            facts: dict[str, str] = json.loads((file.metadata() or {}).get("plfl", "{}"))
            names = file.keys()  # it is no dict
            arrays = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read ({error})") from error
    others = {name: fact for name, fact in facts.items() if name != "sha256"}
    if _digest_with(arrays, others) != facts.get("sha256"):
        raise Damaged(f"{path} is damaged: its content does not match its checksum")
    return arrays, facts


def _digest_with(arrays: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> str:
    return hashlib.sha256(f"{digest(arrays)}{sorted(facts.items())}".encode()).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write plain values as JSON; inf and NaN are refused."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def cache_folder() -> Path:
    """Where things are kept that can be made again: `plfl` in PLFL_CACHE_DIR, or in the user's
    cache folder.
    """
    named = os.environ.get("PLFL_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    return Path(named or Path.home() / ".cache") / "plfl"


def processor() -> str:
    """A short name of this machine's kind of processor: programs compiled for one may not run on
    another.
    """
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = [line for line in lines if line.startswith(("model name", "flags", "Features"))][:2]
    return hashlib.sha256("".join([platform.machine(), *features]).encode()).hexdigest()[:12]


def file_name(client: str) -> str:
    """A file name for any id: other characters are escaped, and a very long id is shortened to a
    digest.

    >>> file_name("meter 7/A")
    'meter%207%2FA.safetensors'
    """
    return f"{safe_name(client)}.safetensors"


def safe_name(client: str) -> str:
    """What stands for any id in the name of a file or folder; different ids have different ones.

    >>> safe_name("meter 7/A")
    'meter%207%2FA'
    """
    name = quote(client, safe="", errors="surrogatepass")
    if name.startswith("."):
        name = name.replace(".", "%2E")
    if len(name) > 150:
        sha256 = hashlib.sha256(client.encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{name[:100]}-{sha256[:16]}"
    return name
