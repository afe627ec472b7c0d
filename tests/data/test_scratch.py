"""Large arrays in memory and in files."""

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from plfl.config import Config
from plfl.data import scratch as scratch_module
from plfl.data.generated import generate
from plfl.data.scratch import Scratch, blocks, copy_rows, forget, forgetting, machine_memory
from plfl.data.sources import load_frame, load_sources
from plfl.errors import RunFailed
from plfl.forecast.windows import make_task
from small import tiny_config, uneven_panel

MIB = 2**20


def is_in_file(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def test_arrays_are_in_memory_while_there_is_room_and_then_in_files(tmp_path):
    scratch = Scratch(tmp_path, in_memory=3 * MIB)
    first, second = scratch.empty((2 * MIB,), np.uint8), scratch.empty((2 * MIB,), np.uint8)
    assert (is_in_file(first), is_in_file(second)) == (False, True)


def test_room_in_memory_comes_back_with_the_array():
    scratch = Scratch(in_memory=3 * MIB)
    first = scratch.empty((2 * MIB,), np.uint8)
    part = first[5:]
    del first
    assert scratch.left == MIB  # somebody still looks at it
    del part
    gc.collect()
    assert scratch.left == 3 * MIB


def test_small_arrays_never_make_a_file():
    assert not is_in_file(Scratch(in_memory=0).empty((10, 10)))


def test_files_have_no_name(tmp_path):
    array = Scratch(tmp_path, in_memory=0).empty((MIB,))
    array[:] = 7
    assert is_in_file(array)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_yet_stands_for_its_disk(tmp_path):
    assert Scratch(tmp_path / "runs" / "mine").folder == tmp_path
    assert Scratch(Path("runs-of-tomorrow")).folder == Path.cwd()


def test_what_is_forgotten_is_still_there():
    array = Scratch(in_memory=0).empty((300, 2048))
    for row in forgetting(range(300), array):
        array[row] = row
    forget(array, array[3], np.zeros(3))
    np.testing.assert_array_equal(array[:, 5], np.arange(300))


def test_forgetting_gives_memory_back():
    array = Scratch(in_memory=0).empty((64 * MIB,), np.uint8)
    array[:] = 1
    held = resident()
    forget(array)
    assert held - resident() > 60 * MIB


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("in_memory", [0, 1024 * MIB])
def test_kept_arrays_are_equal_copies(in_memory):
    scratch = Scratch(in_memory=in_memory)
    rng = np.random.default_rng(0)
    arrays = [
        rng.random(n).astype(kind)
        for n in (3, 100_000, 0, 3_000_000)
        for kind in (np.float32, np.float64)
    ]
    kept = [scratch.keep(array) for array in arrays]
    for before, after in zip(arrays, kept, strict=True):
        np.testing.assert_array_equal(before, after)
        assert before.dtype == after.dtype


def test_rows_are_copied_in_the_order_given():
    source = np.arange(1200).reshape(600, 2)
    rows = np.random.default_rng(0).permutation(600)[:500]
    np.testing.assert_array_equal(copy_rows(source, np.empty((500, 2), int), rows), source[rows])
    np.testing.assert_array_equal(copy_rows(source, np.empty((600, 2), int)), source)


def test_blocks_cover_all_rows_once():
    assert [(b.start, b.stop) for b in blocks(5, 2)] == [(0, 2), (2, 4), (4, 5)]


def test_a_full_disk_is_told_before_anything_is_computed(tmp_path, monkeypatch):
    def no_room(descriptor, begin, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scratch_module.os, "posix_fallocate", no_room)
    with pytest.raises(
        RunFailed, match=r"has no room for 0.0 GiB of data that memory does not hold; make room"
    ):
        Scratch(tmp_path, in_memory=0).empty((MIB,))


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path, monkeypatch):
    def refuse(**options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(scratch_module.tempfile, "TemporaryFile", refuse)
    with pytest.raises(
        RunFailed,
        match=r"cannot make a file in .* \(Permission denied\); set .* TMPDIR, or out=DIR",
    ):
        Scratch(tmp_path, in_memory=0).empty((MIB,))


def test_the_machine_s_memory_is_known():
    assert 2**28 < machine_memory() < 2**50


def test_data_in_files_is_the_same_data(monkeypatch):
    monkeypatch.setattr(scratch_module, "_SMALL", 0)
    nowhere = Scratch(in_memory=0)
    panel = load_sources(
        ("generated:5?days=12", "generated:3?days=20&seed=1"), Config(), nowhere
    ).panel
    assert is_in_file(panel.load)
    assert is_in_file(panel.covariates)
    expected = load_sources(("generated:5?days=12", "generated:3?days=20&seed=1"), Config()).panel
    assert panel.fingerprint() == expected.fingerprint()
    assert (
        load_frame(generate(3, days=12), Config(), nowhere).panel.fingerprint()
        == generate(3, days=12).fingerprint()
    )


def test_a_task_in_files_is_the_same_task(monkeypatch):
    monkeypatch.setattr(scratch_module, "_SMALL", 0)
    panel = uneven_panel(5)
    panel.load[2] = np.nan  # left out
    mine, theirs = (
        make_task(panel, tiny_config(), (), Scratch(in_memory=room)) for room in (0, 1024 * MIB)
    )
    assert is_in_file(mine.series)
    assert is_in_file(mine.panel.load)
    np.testing.assert_array_equal(mine.series, theirs.series)
    assert mine.panel.fingerprint() == theirs.panel.fingerprint()
    assert mine.panel.ids == theirs.panel.ids
