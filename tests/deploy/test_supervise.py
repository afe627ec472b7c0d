"""Children that die are started again, those that are done or hopeless end everything, and nobody
is left behind.
"""

import logging
import subprocess
import sys
import threading
import time

import psutil
import pytest

from plfl.deploy.programs import supervise
from plfl.deploy.programs.supervise import Child, keep_alive, logged
from plfl.errors import BadInput, RunFailed

SETUP = (
    "import logging, sys, time; from plfl.deploy.programs.supervise import run_as_child; from "
    "plfl.errors import *; "
)


def child(code, name="worker", **more):
    import os

    return Child(name, [sys.executable, "-c", code], os.environ, **more)


def working(body):
    return SETUP + f"run_as_child(lambda: {body})"


def test_a_child_that_is_done_ends_the_others():
    other = child("import time; time.sleep(60)", "other")
    keep_alive([other, child(working("None"))], lambda: False)
    assert other.process.poll() is not None


@pytest.mark.parametrize(("kind", "error"), [("BadInput", BadInput), ("RunFailed", RunFailed)])
def test_a_child_that_cannot_help_it_ends_all_with_its_reason(kind, error):
    code = SETUP + f"\ndef work():\n    raise {kind}('the meter is not there')\nrun_as_child(work)"
    with pytest.raises(error, match="the meter is not there"):
        keep_alive([child(code)], lambda: False)


def test_a_child_that_is_killed_is_started_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(supervise, "_FIRST_WAIT", 0.1)
    mark = tmp_path / "mark"
    code = SETUP + (
        "import os, pathlib\n"
        f"mark = pathlib.Path({str(mark)!r})\n"
        "if not mark.exists():\n    mark.touch(); os.kill(os.getpid(), 9)\n"
        "run_as_child(lambda: logging.getLogger('plfl').info('here again'))"
    )
    keep_alive([child(code)], lambda: False)
    assert "worker ended unexpectedly (SIGKILL); starting it again" in caplog.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("Transient('the server is away')", "the server is away"),
        ("OSError(28, 'No space left')", "[Errno 28] No space"),
    ],
)
def test_a_child_that_is_hindered_is_started_again_with_its_own_reason(
    tmp_path, monkeypatch, caplog, error, words
):
    monkeypatch.setattr(supervise, "_FIRST_WAIT", 0.01)
    mark = tmp_path / "mark"
    code = SETUP + (
        "import pathlib\n"
        f"mark = pathlib.Path({str(mark)!r})\n"
        f"def work():\n    if not mark.exists():\n        mark.touch(); raise {error}\n"
        "run_as_child(work)"
    )
    keep_alive([child(code)], lambda: False)
    assert words in caplog.text
    assert "; trying again in 0.0 s" in caplog.text
    assert "Traceback" not in caplog.text
    assert "unexpectedly" not in caplog.text


def test_stopping_ends_a_child_that_does_not_listen(monkeypatch):
    monkeypatch.setattr(supervise, "_GRACE", 0.5)
    deaf = child(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', "
        "flush=True); time.sleep(60)"
    )
    stop = threading.Event()
    runner = threading.Thread(target=keep_alive, args=([deaf], stop.is_set))
    runner.start()
    while not deaf.tail:
        time.sleep(0.05)
    process = deaf.process
    stop.set()
    runner.join(10)
    assert process.returncode == -9


def test_a_child_ends_when_its_parent_was_killed(tmp_path):
    pid = tmp_path / "pid"
    inner = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); "
    inner += (
        "from plfl.deploy.flower.process import end_with_parent; end_with_parent(); time.sleep(60)"
    )
    start = (
        "import os, subprocess, sys; os.environ['PLFL_PARENT'] = str(os.getpid()); code = "
        f"{inner!r}; "
    )
    outer = child(start + "subprocess.run([sys.executable, '-c', code])")
    outer.start()
    until = time.monotonic() + 20
    while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    inside = psutil.Process(int(pid.read_text()))
    outer.process.kill()
    outer.process.wait()
    while (
        inside.is_running() and inside.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until
    ):
        time.sleep(0.1)
    assert not inside.is_running() or inside.status() == psutil.STATUS_ZOMBIE


def test_lines_of_other_programs_go_to_the_file_and_ours_to_both(tmp_path, capsys):
    code = "print('a line of theirs'); " + working(
        "logging.getLogger('plfl').warning('a line of ours')"
    )
    with logged(tmp_path):
        keep_alive([child(code)], lambda: False)
    shown, stored = capsys.readouterr().err, (tmp_path / "log.txt").read_text()
    assert "WARNING a line of ours" in shown
    assert "a line of theirs" not in shown
    assert "worker: a line of theirs" in stored
    assert "a line of ours" in stored
    assert logging.getLogger("plfl").handlers == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"cannot write to .*file"), logged(tmp_path / "file"):
        pass


def test_a_program_of_flower_s_whose_exit_is_interrupted_is_gone_with_its_threads():
    """Else a client that is revoked at the wrong moment would be there for ever."""
    program = """
import sys, threading, time, types
from plfl.deploy.flower import process

def interrupted():
    threading.Thread(target=time.sleep, args=(60,)).start()
    raise KeyboardInterrupt

sys.modules["flwr.supernode.cli"] = types.SimpleNamespace(flower_supernode=interrupted)
process._prepare_supernode = lambda key: None
sys.argv = ["process", "supernode", "--root-certificates", "ca.crt"]
process.main()
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=30)
    assert done.returncode == 1
