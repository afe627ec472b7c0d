"""One file that holds all of a server or a client that cannot be made again, and the way back from
it.

In it: settings, keys, certificates and roster; of a server's state the run and its checkpoints, of
a client's its personal layers, the secret of its draws, its count of rounds and its results. Not in
it: logs, what a start makes anew (Flower's database, the status), and a client's readings. A backup
of a program that runs is what a power cut at that moment would have left, from which it goes on by
itself.

The file is a tar archive, for its owner alone, whose last member is manifest.json with the SHA-256
of every other. It holds private keys: keep it as you keep them.
"""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from plfl._version import __version__
from plfl.deploy.files import state
from plfl.deploy.files.new_files import build_folder, name_new, write_new, writing
from plfl.deploy.files.settings import ClientSettings, ServerSettings, read_client, read_server
from plfl.errors import BadInput, Damaged, require

FORMAT = 1
_MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 64 * 1024**2
# What is in a state folder and not in a backup: names, or how they begin.
_LEFT_OUT = (
    *(state.LOG, state.LINK, state.LINK_SECRET, state.ENROLLED, state.STATUS, state.TRAFFIC),
    *(state.LIFE, "flower"),
)
_UNREADABLE = (
    *(tarfile.TarError, OSError, ValueError, LookupError),
    *(TypeError, AttributeError, RecursionError),
)


@dataclass(frozen=True)
class Backup:
    """What is in a backup."""

    kind: str  # server or client
    name: str  # the federation's, or the client's id
    config: str  # the settings' file in it
    num_files: int
    version: str  # that of plfl, with which it was made


class _Facts(NamedTuple):
    # What the manifest says of a file.
    sha256: str
    size: int


Settings = ServerSettings | ClientSettings
Files = Mapping[str, _Facts]


def make_backup(config: str | Path, target: str | Path) -> Backup:
    """Write all that the server or client of these settings needs into one new file."""
    path = Path(config).absolute()
    target = Path(target).absolute()
    settings: Settings = (read_client if path.name.startswith("client-") else read_server)(path)
    taken = f"{target} is there already, and a backup overwrites nothing"
    require(not target.exists(), taken, "choose another name")
    with writing(target.parent):
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)  # mode 0600
        try:
            with os.fdopen(descriptor, "w+b") as file:
                backup = _write_consistently(file, path, settings)
                file.flush()
                os.fsync(file.fileno())
            name_new(temporary, target)
        except FileExistsError:
            raise BadInput(taken, "choose another name") from None
        finally:
            temporary.unlink(missing_ok=True)
    return backup


def restore_backup(archive: str | Path, folder: str | Path) -> tuple[Backup, Path]:
    """Put everything of a backup into a new folder, or leave none; returns what it is and where its
    settings are.
    """
    archive = Path(archive)
    folder = Path(folder).absolute()
    with _opened(archive) as tar:
        backup, files = _read_manifest(archive, tar)
        members = _check_members(archive, tar, files)
        with writing(folder):
            is_empty = folder.is_dir() and not any(folder.iterdir())
            require(
                is_empty or not (folder.exists() or folder.is_symlink()),
                f"{folder} is there already, and restoring overwrites nothing",
                "choose a new folder",
            )
            folder.parent.mkdir(parents=True, exist_ok=True)
            build_folder(folder, lambda place: _extract(archive, tar, members, files, place))
    return backup, folder / backup.config


def _write_consistently(file: IO[bytes], path: Path, settings: Settings) -> Backup:
    # Write the archive; again if a file has changed meanwhile, so that all are of one moment.
    for _ in range(5):
        file.seek(0)
        file.truncate()
        before = _look(path, settings)
        try:
            found = _write_archive(file, path, settings, list(before))
        except FileNotFoundError:
            continue
        if _look(path, settings) == before:
            return found
    raise BadInput(
        f"{settings.folder} changes all the time, so that no backup of it would be whole",
        "stop the program for a moment",
    )


def _look(path: Path, settings: Settings) -> dict[Path, tuple[int, ...]]:
    # Every file that belongs into a backup, and how it can be told from a later one.
    found = {each: each.stat() for each in _needed(path, settings)}
    return {each: (seen.st_ino, seen.st_size, seen.st_mtime_ns) for each, seen in found.items()}


def _needed(path: Path, settings: Settings) -> Iterator[Path]:
    named = [path, *(value for _, value in settings if isinstance(value, Path))]
    if isinstance(settings, ClientSettings):
        named.append(settings.key.with_suffix(".pub"))
    for place in named:
        require(
            place.is_relative_to(path.parent),
            f"{place} is not below {path.parent}, where a backup begins",
            f"move it there and write its new place in {path.name}",
        )
        for each in sorted(place.rglob("*")) if place.is_dir() else [place]:
            parts = each.relative_to(place.parent).parts
            if each.is_file() and not _is_left_out(parts, is_state=place == settings.folder):
                yield each


def _is_left_out(parts: Sequence[str], *, is_state: bool) -> bool:
    # Hidden files are locks and what is being written.
    is_made_anew = is_state and len(parts) > 1 and parts[1].startswith(_LEFT_OUT)
    return is_made_anew or any(part.startswith(".") for part in parts)


def _write_archive(
    file: IO[bytes], path: Path, settings: Settings, needed: Sequence[Path]
) -> Backup:
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "kind": "client" if isinstance(settings, ClientSettings) else "server",
        "name": settings.id if isinstance(settings, ClientSettings) else settings.name,
        "config": path.name,
        "plfl": __version__,
        "made": state.now_in_words(),
        "files": {},
    }
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for each in needed:
            name = each.relative_to(path.parent).as_posix()
            manifest["files"][name] = _add(tar, name, each.read_bytes())._asdict()
        _add(tar, _MANIFEST, json.dumps(manifest, indent=1).encode())
    return _parse_manifest(manifest)[0]


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> _Facts:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o600
    tar.addfile(member, io.BytesIO(content))
    return _Facts(hashlib.sha256(content).hexdigest(), len(content))


def _opened(archive: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(archive, mode="r:")
    except OSError as error:
        raise BadInput(
            f"{archive} cannot be read ({error.strerror})", "give a file of plfl federation backup"
        ) from None
    except (tarfile.TarError, ValueError, EOFError):
        raise _damaged(archive, "it is no tar archive") from None


def _read_manifest(archive: Path, tar: tarfile.TarFile) -> tuple[Backup, Files]:
    # What an archive says that it holds, which is its last member.
    try:
        member = tar.getmembers()[-1]
        if member.name != _MANIFEST or not _is_plain(member) or member.size > _LARGEST_MANIFEST:
            raise LookupError
        manifest = json.loads(_content(tar, member).read())
        version = manifest["format"]
        made_by = manifest["plfl"]
        if version == FORMAT:
            backup, files = _parse_manifest(manifest)
    except _UNREADABLE:
        raise _damaged(archive, f"it has no {_MANIFEST} that can be read at its end") from None
    require(
        version == FORMAT,
        f"{archive} was made by plfl {made_by} in format {version!r}, and this is format {FORMAT}",
        f"restore it with plfl {made_by}",
    )
    for name in files:
        _check_name(archive, name)
    if backup.config not in files or "/" in backup.config:
        raise _damaged(archive, f"it does not hold its own settings, {backup.config}")
    return backup, files


def _parse_manifest(manifest: Mapping[str, Any]) -> tuple[Backup, Files]:
    files = {each: _Facts(**facts) for each, facts in manifest["files"].items()}
    kind, name, config, version = (manifest[key] for key in ("kind", "name", "config", "plfl"))
    texts = [name, config, version, *(facts.sha256 for facts in files.values())]
    are_texts = all(isinstance(each, str) for each in texts)
    are_sizes = all(type(facts.size) is int for facts in files.values())
    if kind not in ("server", "client") or not are_texts or not are_sizes:
        raise TypeError
    return Backup(kind, name, config, len(files), version), files


def _check_name(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    is_odd = path.is_absolute() or ".." in path.parts or not path.parts or path.as_posix() != name
    require(
        not is_odd and "\\" not in name and "\0" not in name,
        f"{archive} names a file outside of its folder, {name!r}",
        "nothing of it was restored",
    )


def _is_plain(member: tarfile.TarInfo) -> bool:
    # A file as such: no link, no device, no folder, nothing sparse.
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None  # as the member is plain
    return content


def _check_members(archive: Path, tar: tarfile.TarFile, files: Files) -> dict[str, tarfile.TarInfo]:
    # The members by name: exactly those of the manifest, each a plain file of the size that it
    # says.
    found: dict[str, tarfile.TarInfo] = {}
    for member in tar.getmembers()[:-1]:
        _check_name(archive, member.name)
        require(
            _is_plain(member),
            f"{archive} holds {member.name!r}, which is no plain file",
            "nothing of it was restored",
        )
        facts = files.get(member.name)
        if member.name in found or facts is None or member.size != facts.size:
            raise _damaged(archive, f"{member.name!r} is not as its {_MANIFEST} says")
        found[member.name] = member
    if missing := sorted(set(files) - set(found)):
        raise _damaged(archive, f"{missing[0]!r} is missing")
    return found


def _extract(
    archive: Path,
    tar: tarfile.TarFile,
    members: Mapping[str, tarfile.TarInfo],
    files: Files,
    place: Path,
) -> None:
    for name, member in members.items():
        # Once more, by Python's own rules.
        target = place / tarfile.data_filter(member, str(place)).name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            content = _content(tar, member).read()
        except tarfile.ReadError:
            raise _damaged(archive, "it is cut off") from None
        if hashlib.sha256(content).hexdigest() != files[name].sha256:
            raise _damaged(archive, f"{name!r} does not match its checksum")
        write_new(target, content, is_private=True)
    for folder in place.rglob("*/"):
        folder.chmod(0o700)


def _damaged(archive: Path, what: str) -> Damaged:
    return Damaged(
        f"{archive} is no whole backup: {what}", "nothing of it was restored. Take another one"
    )
