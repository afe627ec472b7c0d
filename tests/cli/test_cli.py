"""The command line as a person meets it: real processes, exit status, what is on which stream."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import typed

PLFL = [sys.executable, "-m", "plfl"]
SMALL = [
    "paper",
    "--data",
    "generated:2?days=10",
    "--set",
    "hidden=4",
    "--set",
    "mlp=[6]",
    "--set",
    "rounds=2",
    "--set",
    "local_steps=3",
]


def plfl(*args: str, cwd: Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*PLFL, *args], cwd=cwd, capture_output=True, text=True, timeout=300, **options
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    done = typed.plfl("run", *SMALL, "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


BAD_INPUT = {
    "unknown key": (["--set", "round=2"], "unknown config key 'round'; did you mean 'rounds'?"),
    "unknown key far from any": (
        ["--set", "zzzz=2"],
        "unknown config key 'zzzz'; known keys: recipe, data, seed",
    ),
    "setting without a value": (
        ["--set", "rounds"],
        "--set 'rounds' has no value; write --set key=value",
    ),
    "lookback 0": (["--set", "lookback=0"], "lookback = 0: must be longer than zero, such as 3h"),
    "horizon negative": (["--set", "horizon=-1h"], "horizon = '-1h': must be longer than zero"),
    "horizon no duration": (
        ["--set", "horizon=soon"],
        "horizon = 'soon': must be a duration such as 45min",
    ),
    "horizon no multiple": (
        ["--set", "horizon=20min"],
        "horizon 20min is not a multiple of the data's interval (15min)",
    ),
    "fraction 0": (["--set", "fraction=0"], "fraction = 0: input should be greater than 0"),
    "rounds 0": (["--set", "rounds=0"], "rounds = 0: input should be greater than or equal to 1"),
    "negative seed": (["--seed", "-1"], "seed = -1: input should be greater than or equal to 0"),
    "split": (
        ["--set", "split=[0.5,0.1,0.1]"],
        "split [0.5, 0.1, 0.1] must add up to 1, as in [0.8, 0.1, 0.1]",
    ),
    "client optimizer": (
        ["--set", "client=adm"],
        "client = 'adm': input should be 'adam', 'adam_ams', 'prox'",
    ),
    "setting of another optimizer": (
        ["--set", "tau=0.1"],
        "tau is not a setting of fed_avg; fed_avg has server_lr",
    ),
    "setting of another aggregate": (
        ["--set", "aggregate=median", "--set", "trim=0.1"],
        "trim is not a setting of median; median has none",
    ),
    "batch": (
        ["--set", "batch=9999"],
        "it has 960 readings and 753 training windows for batch = 9999",
    ),
    "pattern": (
        ["--set", "personal=mpl.*"],
        "personal pattern 'mpl.*' matches no parameter; the model has lstm.",
    ),
    "no clients": (["--data", "generated:0"], "generated:0 has no clients; ask for at least 1"),
    "unknown data": (
        ["--data", "meters.docx"],
        "unknown data source 'meters.docx'; a source is the path of a file",
    ),
    "data option": (
        ["--data", "generated:2?day=9"],
        "unknown option 'day' in 'generated:2?day=9'; known: days",
    ),
    "too short": (
        ["--data", "generated:2?days=1", "--set", "horizon=5h"],
        "it has 96 readings and no complete window in its validation part",
    ),
    "no gpu": (["--set", "device=gpu"], "device = gpu, but JAX sees none; install plfl[cuda]"),
    "unknown model": (["--set", "model=gru"], "unknown model 'gru'; known models: lstm_mlp"),
    "unwritable folder": (
        ["--out", "/dev/null/run"],
        "cannot write to /dev/null/run (Not a directory); choose another",
    ),
    "folder of another": (
        ["--out", "."],
        ". exists and is not empty; choose another --out DIR, or go on with --resume .",
    ),
    "no such run": (
        ["--resume", "nowhere"],
        "nowhere/config.toml cannot be read (No such file or directory); is nowhere the folder",
    ),
    "init without run": (
        ["--init", "nowhere"],
        "nowhere holds no checkpoint; is it the folder of a run?",
    ),
    "resume and out": (["--resume", "RUN", "--out", "x"], "leave out --out"),
    "resume other config": (
        ["--resume", "RUN", "--set", "batch=4"],
        "was run with batch = 16, not 4; a resumed run keeps",
    ),
    "resume other data": (
        ["--resume", "RUN", "--data", "generated:3"],
        "was run with data = ['generated:2?days=10'], not",
    ),
    "resume fewer rounds": (
        ["--resume", "RUN", "--set", "rounds=1"],
        "has 2 rounds already; set rounds to more",
    ),
    "resume other optimizer": (
        ["--resume", "RUN", "--set", "client=prox"],
        "was run with client = adam, not prox",
    ),
    "claim as number": (
        ["--set", "rounds=true"],
        "rounds = True: a number or a text is needed, not true",
    ),
    "recipe as setting": (
        ["--set", "recipe=x"],
        "the recipe is an argument of its own: plfl run x",
    ),
    "two seeds": (
        ["--set", "seed=1", "--seed", "2"],
        "--seed 2 and --set seed=1 contradict each other",
    ),
    "two starts": (
        ["--set", "init=pretrained", "--init", "none"],
        "--init none and --set init=pretrained contradict each other",
    ),
    "start that does not fit": (
        ["--init", "pretrained"],
        "'model' is analog there and lstm_mlp here; start from nothing: --set init=none",
    ),
    "endless number": (
        ["--set", "lookback=" + "9" * 400],
        "lookback is too long or too precise; write a duration such as 3h",
    ),
    "no list": (["--set", "split=0.5"], "write a list, as in [0.8, 0.1, 0.1]"),
    "huge data": (
        ["--data", "generated:10000000000"],
        "generated data goes up to 1,000,000 clients",
    ),
    "field as option": (["--rounds", "5"], "--rounds is a config field; write --set rounds=VALUE"),
    "unknown option": (["--bogus"], "No such option"),
}


@pytest.mark.parametrize("kind", BAD_INPUT)
def test_bad_input_is_one_line_with_the_fix_and_status_2(kind, finished, tmp_path):
    args, message = BAD_INPUT[kind]
    (tmp_path / "kept.txt").write_text("kept")
    small = [] if "--resume" in args else [SMALL[0], *SMALL[3:]] if "--data" in args else SMALL
    args = [str(finished) if arg == "RUN" else arg for arg in args]
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    done = typed.plfl("run", *small, *args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert kind == "unknown option" or done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    assert all(
        path.read_bytes() == content for path, content in before.items() if path.name != "log.txt"
    )


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("personal", "shared", "traffic"),
    [("none", 60276, 482208), ("mlp", 3500, 28000), ("all", 0, 0)],
)
def test_json_has_the_paper_s_counts(personal, shared, traffic, tmp_path):
    settings = [f"personal={personal}", "rounds=2", "local_steps=5"]
    done = typed.plfl(
        "run", "paper", *(word for s in settings for word in ("--set", s)), "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["num_params"], result["num_shared_params"]) == (60276, shared)
    assert result["bytes_up_per_client_round"] + result["bytes_down_per_client_round"] == traffic
    assert len(result["clients"]) == 12


@pytest.mark.e2e
def test_a_run_prints_its_table_to_stdout_and_its_progress_to_stderr(tmp_path):
    done = typed.plfl("run", *SMALL, cwd=tmp_path)
    assert re.search(r"mean .* \d\.\d{3}", done.stdout)
    assert re.search(r"round 2/2 · validation MASE \d\.\d+ · [\d,]+ client-steps/s", done.stderr)
    report = re.search(r"Report: (runs/paper-\S+/report.html)", done.stdout)
    assert (tmp_path / report[1]).stat().st_size > 10_000


@pytest.mark.e2e
def test_an_interrupted_run_is_saved_and_says_how_to_go_on(tmp_path):
    args = [*SMALL, "--set", "rounds=100000", "--set", "checkpoint_seconds=1000", "--out", "run"]
    process = subprocess.Popen(
        [*PLFL, "run", *args], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: "rounds 1 to" in read(tmp_path / "run" / "log.txt"))
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    at = int(
        re.search(
            r"stopped after round (\d+) of 100000.*plfl run --resume run", stderr.replace("\n", " ")
        )[1]
    )
    done = plfl("run", "--resume", "run", "--set", f"rounds={at + 1}", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["rounds"] == at + 1


@pytest.mark.e2e
def test_a_killed_run_resumes_to_the_same_files(tmp_path):
    args = [*SMALL, "--set", "rounds=300", "--set", "checkpoint_seconds=0"]
    assert plfl("run", *args, "--out", "whole", cwd=tmp_path).returncode == 0
    process = subprocess.Popen(
        [*PLFL, "run", *args, "--out", "killed"], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: (tmp_path / "killed" / "state.2").exists())
    process.kill()
    process.wait()
    done = plfl("run", "--resume", "killed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = [
        path.relative_to(tmp_path / "whole")
        for path in (tmp_path / "whole" / "state").rglob("*.safetensors")
    ]
    assert len(files) == 3
    assert all(
        (tmp_path / "whole" / f).read_bytes() == (tmp_path / "killed" / f).read_bytes()
        for f in files
    )


@pytest.mark.e2e
def test_a_disk_that_refuses_ends_the_run_with_status_1_and_keeps_the_last_checkpoint(
    finished, tmp_path
):
    """The limit on file sizes makes every larger write fail, as a full disk does."""
    resume = shlex.join([*PLFL, "run", "--resume", str(finished), "--set", "rounds=4"])
    before = (finished / "state" / "server.safetensors").read_bytes()
    environment = os.environ | {"PLFL_CACHE_DIR": str(tmp_path / "cache")}
    limited = ["bash", "-c", f"ulimit -f 2; exec {resume}"]  # 2 KiB
    done = subprocess.run(limited, capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stderr
    assert "round 2 is safe" in done.stderr
    assert "Traceback" not in done.stderr
    assert (finished / "state" / "server.safetensors").read_bytes() == before


@pytest.mark.e2e
def test_a_damaged_checkpoint_is_survived_with_a_warning(finished, tmp_path):
    typed.plfl("run", *SMALL, "--set", "checkpoint_seconds=0", "--out", "run", cwd=tmp_path)
    (tmp_path / "run" / "state" / "server.safetensors").write_bytes(b"rubbish")
    done = typed.plfl("run", "--resume", "run", cwd=tmp_path)
    assert done.returncode == 0
    assert "going on from round 1" in done.stderr.replace("\n", " ")


@pytest.mark.e2e
def test_an_unknown_recipe_is_refused_with_the_known_ones(tmp_path):
    done = typed.plfl("run", "papers", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "plfl: unknown recipe 'papers'; known recipes: forecast, paper\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.e2e
def test_when_every_checkpoint_is_damaged_the_status_is_2(tmp_path):
    typed.plfl("run", *SMALL, "--out", "run", cwd=tmp_path)
    for path in (tmp_path / "run").rglob("server.safetensors"):
        path.write_bytes(b"rubbish")
    done = typed.plfl("run", "--resume", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "every checkpoint in run is damaged" in done.stderr


def test_help_is_quick_and_has_an_example(tmp_path):
    """JAX and pyarrow are not imported for it."""
    code = (
        "import sys; from plfl.cli.app import app; app(['run', '--help'], standalone_mode=False);"
    )
    code += "assert not {'jax', 'pyarrow', 'optax'} & set(sys.modules), 'slow imports'"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    assert "plfl run --resume runs/NAME --set rounds=80" in " ".join(done.stdout.split())


def test_the_command_line_is_frozen():
    """A change here is a change for every script that calls plfl: make it on purpose."""
    import typer

    from plfl.cli.app import app

    group = typer.main.get_command(app)
    found = {
        name: sorted(o for p in c.params for o in p.opts if o.startswith("-"))
        for name, c in group.commands.items()
    }
    nested = {
        f"{group_name} {name}": sorted(o for p in c.params for o in p.opts if o.startswith("-"))
        for group_name in ("data", "federation")
        for name, c in group.commands[group_name].commands.items()
    }
    del found["data"], found["federation"]
    assert found | nested == {
        "run": [
            "--baselines",
            "--data",
            "--init",
            "--json",
            "--out",
            "--resume",
            "--seed",
            "--set",
            "--strict",
        ],
        "report": ["--json"],
        "forecast": ["--at", "--client", "--data", "--format", "--json", "--out", "--set"],
        "adapt": ["--curve", "--data", "--json", "--out", "--set"],
        "study": [
            "--data",
            "--folds",
            "--json",
            "--out",
            "--quick",
            "--resume",
            "--seeds",
            "--set",
        ],
        "check": ["--explain", "--json", "--set"],
        "bench": [
            *(
                "--clients",
                "--cores",
                "--device",
                "--fused",
                "--json",
                "--no-peers",
                "--out",
                "--peers",
                "--rounds",
                "--sweep",
            ),
        ],
        "data list": ["--json"],
        "data formats": ["--json"],
        "data convert": ["--json", "--out", "--set"],
        "data fetch": sorted(
            [
                "--state",
                "--buildings",
                "--out",
                "--upgrade",
                "--release",
                "--seed",
                "--workers",
                "--url",
                "--json",
            ]
        ),
        "federation init": [
            "--clients",
            "--data",
            "--host",
            "--json",
            "--port",
            "--recipe",
            "--set",
        ],
        "federation add-client": ["--data", "--json"],
        "federation revoke-client": ["--json", "--reason"],
        "federation renew-server": ["--host", "--json"],
        "federation server": ["--insecure", "--json", "--resume"],
        "federation client": ["--insecure", "--json", "--once"],
        "federation status": ["--json"],
        "federation backup": ["--json"],
        "federation restore": ["--json"],
        "federation demo": [
            "--clients",
            "--json",
            "--keep",
            "--personal",
            "--rounds",
            "--server",
            "--set",
        ],
    }


def test_report_rebuilds_the_page_without_training(finished, tmp_path):
    (finished / "report.html").unlink()
    code = (
        "import sys; from plfl.cli.app import app; app(['report', sys.argv[1]], "
        "standalone_mode=False);"
    )
    code += "assert 'jax' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code, str(finished)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (finished / "report.html").exists()
    assert typed.plfl("report", str(tmp_path), cwd=tmp_path).returncode == 2


def test_version():
    from plfl import __version__

    assert typed.plfl("--version", cwd=Path()).stdout == f"plfl {__version__}\n"


def wait_for(condition, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.e2e
@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_there_is_a_live_bar_and_no_line_is_too_wide(tmp_path, columns):
    terminal, end = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color"}
    command = [*PLFL, "run", *SMALL, "--out", "run"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=end, stdout=end, stderr=end, env=environment
    )
    os.close(end)
    shown = b""
    with suppress(OSError):  # the terminal ends with the process
        while piece := os.read(terminal, 4096):
            shown += piece
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert process.wait() == 0, text
    assert "round 2/2" in text
    assert "Report: run/report.html" in text
    assert max(len(line) for line in re.split(r"[\r\n]+", text)) <= columns
