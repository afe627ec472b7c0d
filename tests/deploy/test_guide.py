"""The commands of the guide and of a federation's README, run as they stand: a folder per machine,
all on loopback.
"""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
import pytest

from plfl.data.generated import generate
from plfl.deploy.files.inspection import inspect
from plfl.deploy.files.settings import FREE
from plfl.deploy.programs.commands import app
from plfl.deploy.programs.supervise import free_port
from plfl.errors import BadInput, Damaged, Interrupted, RunFailed, Transient

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "howto" / "run_a_federation.md"
REFERENCE = DOCS / "reference" / "federation.md"
OPERATOR, SERVER, HOUSES = "the operator's machine", "fl.example.org", ("house-1", "house-2")
DEMO = "plfl federation demo"
TINY = {
    "hidden": 4,
    "days": 3,
    "batch": 8,
    "rounds": 2,
    "local_steps": 8,
    "tune_rounds": 0,
    "quantiles": [0.1, 0.5, 0.9],
}
SCP = """#!/bin/sh
# Copies to a folder that stands for the other machine.
shift
for last; do :; done
while [ $# -gt 1 ]; do cp -a "$1" "$MACHINES/${last%%:*}/${last#*:}" || exit 1; shift; done
"""


def blocks_of(text, kind="bash"):
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def commands_of(text):
    """Every command in the text's blocks, with the machine that it is for."""
    found = []
    for block in blocks_of(text):
        place = re.match(r"# on ([^;\n]+)", block)
        for line in block.splitlines():
            command = line.partition(" # ")[0].strip()
            if command and not command.startswith("#"):
                found.append((place[1] if place else "anywhere", command))
    return found


class Machines:
    """Folders that stand for machines, with `plfl` and an `scp` that copies between them."""

    def __init__(self, root, port):
        self.root, self.port = root, port
        (root / "bin").mkdir(parents=True)
        (root / "bin" / "scp").write_text(SCP)
        (root / "bin" / "plfl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m plfl "$@"\n')
        for name in ("scp", "plfl"):
            (root / "bin" / name).chmod(0o755)
        for name in (SERVER, *HOUSES):
            self.folder(name)
        self.env = {
            **os.environ,
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "MACHINES": str(root),
        }

    def folder(self, machine):
        """Where a machine's own files are."""
        place = self.root / machine
        place.mkdir(exist_ok=True)
        return place

    def adapt(self, command):
        """The same with loopback for the example host, where clients have to reach it."""
        return command.replace(f"--host {SERVER}", f"--host 127.0.0.1 --port {self.port}")

    def run(self, machine, command, seconds=300):
        done = subprocess.run(
            ["sh", "-c", self.adapt(command)],
            cwd=self.folder(machine),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, machine, command):
        """The command in the background; what it says goes to a file."""
        folder = self.folder(machine)
        with (folder / "said.txt").open("w") as said:
            process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                cwd=folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def by_unit(self, role, machine):
        """What the guide's unit starts, in the folder of a machine."""
        command = (
            unit_of(role)["ExecStart"]
            .replace("/opt/plfl/bin/plfl", "plfl")
            .replace("house-1", machine)
        )
        return command.replace("/var/lib/plfl", shlex.quote(str(self.folder(machine) / "plfl")))

    def said(self, machine):
        return (self.folder(machine) / "said.txt").read_text()

    def wait_for(self, machine, words, seconds=300):
        until = time.monotonic() + seconds
        while words not in self.said(machine):
            assert time.monotonic() < until, (
                f"{machine} did not say {words!r}\n{self.said(machine)}"
            )
            time.sleep(0.2)


def write_meter(path, row):
    """A meter's own readings, as a person has them: local time, and no id."""
    panel = generate(2, days=24)
    local = pd.to_datetime(panel.times(), utc=True).tz_convert("America/Chicago").tz_localize(None)
    pd.DataFrame({"ds": local, "y": panel.load[row]}).to_csv(path, index=False)


def add_lines(path, lines):
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def agree(home):
    """Write into a client's policy what differs from the recipe, as the guide says."""
    add_lines(
        home / "policy.toml",
        [f"{name} = {json.dumps(value)}" for name, value in TINY.items() if name not in FREE],
    )


def replace_in(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def unit_of(role):
    """The [Service] of the guide's unit for a server or a client."""
    for block in blocks_of(GUIDE.read_text(), "ini"):
        parser = configparser.ConfigParser(interpolation=None)
        parser.optionxform = str
        parser.read_string(block)
        if role in parser["Unit"]["Description"]:
            return parser["Service"]
    raise AssertionError(f"the guide has no unit for a {role}")


def follow_the_guide(machines, page):
    """Run its commands from the first to the last, and return what they printed and what the page
    showed.
    """
    printed = {}
    with ExitStack() as stack:
        for machine, command in commands_of(GUIDE.read_text()):
            if "federation server" in command:
                settings = machines.folder(machine) / "plfl" / "server.toml"
                add_lines(
                    settings, [f"{name} = {json.dumps(value)}" for name, value in TINY.items()]
                )
                replace_in(settings, "127.0.0.1:9093", page)
                server = stack.enter_context(machines.running(machine, command))
                machines.wait_for(machine, "listening on")
            elif "federation client" in command:
                stack.enter_context(machines.running("house-1", command))
                stack.enter_context(
                    machines.running("house-2", machines.by_unit("client", "house-2"))
                )
                machines.wait_for(SERVER, "round 1 of 2")
                with urllib.request.urlopen(f"http://{page}/", timeout=60) as answer:
                    printed["page"] = answer.read().decode()
            elif command.startswith("plfl check"):
                for row, house in enumerate(HOUSES):
                    home = machines.folder(house) / "plfl"
                    write_meter(home / "meter.csv", row)
                    add_lines(home / f"client-{house}.toml", ['timezone = "America/Chicago"'])
                    agree(home)
                    machines.run(house, command)
            elif command.startswith("plfl forecast"):
                assert server.wait(600) == 0, machines.said(SERVER)
                printed |= {house: machines.run(house, f"{command} --json") for house in HOUSES}
            elif "federation restore" in command:
                fresh = f"new-{machine}"
                shutil.copy(machines.folder(machine) / command.split()[3], machines.folder(fresh))
                printed[command] = machines.run(fresh, command)
            elif command != DEMO:
                printed[command] = machines.run(machine, command)
    return printed


@pytest.mark.e2e
def test_the_guide_leads_from_init_to_each_client_s_own_forecast(tmp_path):
    machines, page = Machines(tmp_path / "all", free_port()), f"127.0.0.1:{free_port()}"
    printed = follow_the_guide(machines, page)
    assert f"status page: http://{page}/\n" in machines.said(SERVER)
    assert re.search(r"<h1>(Round 1 of 2|All 2 rounds are done)</h1>", printed["page"])
    assert "round 1: 2 of 2" in printed["plfl federation status plfl/server.toml"]
    for house in HOUSES:
        state = machines.folder(house) / "plfl" / "state"
        assert (state / "report.html").is_file()
        result = json.loads((state / "result.json").read_text())
        assert [client["id"] for client in result["clients"]] == [house]
        assert [path.name for path in (state / "models").iterdir()] == [f"{house}.safetensors"]
        found = json.loads(printed[house])
        assert (found["meter"], len(found["points"])) == (house, 96)
        assert found["quality"] in (
            "model",
            "fallback:model-lost-of-late",
        )  # after two rounds it may well have
    problems = inspect(machines.folder(SERVER) / "plfl")  # with the new roster and certificate
    assert [problem.message for problem in problems if problem.is_fatal] == []
    roster = json.loads((machines.folder(SERVER) / "plfl" / "roster.json").read_text())["clients"]
    assert [client["id"] for client in roster if client["revoked"] is None] == [
        "house-1",
        "house-3",
    ]


def guide_s(words, machine):
    """The guide's commands with these words, for a machine."""
    return [
        command
        for place, command in commands_of(GUIDE.read_text())
        if place == machine and words in command
    ]


@contextmanager
def federation_at_work(machines, houses=HOUSES):
    """The guide's server and clients; what the server says is at hand in the end."""
    with ExitStack() as stack:
        server = stack.enter_context(
            machines.running(SERVER, *guide_s("federation server", SERVER))
        )
        for house in houses:
            stack.enter_context(machines.running(house, machines.by_unit("client", house)))
        yield server


@pytest.mark.e2e
def test_a_server_and_a_client_that_broke_go_on_with_the_same_run_from_the_guide_s_backups(
    tmp_path,
):
    machines, rounds = Machines(tmp_path / "all", free_port()), 8
    for command in (*guide_s("federation init", OPERATOR), *guide_s("scp", OPERATOR)[:3]):
        machines.run(OPERATOR, command)
    state = machines.folder(SERVER) / "plfl" / "state"
    lines = [f"{name} = {json.dumps(value)}" for name, value in (TINY | {"rounds": rounds}).items()]
    add_lines(machines.folder(SERVER) / "plfl" / "server.toml", lines)
    replace_in(machines.folder(SERVER) / "plfl" / "server.toml", '"127.0.0.1:9093"', '"off"')
    for row, house in enumerate(HOUSES):
        write_meter(machines.folder(house) / "plfl" / "meter.csv", row)
        add_lines(
            machines.folder(house) / "plfl" / f"client-{house}.toml",
            ['timezone = "America/Chicago"'],
        )
        agree(machines.folder(house) / "plfl")
    with federation_at_work(machines):
        machines.wait_for(SERVER, f"round 2 of {rounds}")
        for machine in (SERVER, "house-1"):
            machines.run(machine, *guide_s("federation backup", machine))
    before = json.loads((state / "status.json").read_text())
    assert 2 <= before["round"] < rounds

    for machine in (SERVER, "house-1"):  # the rest of both is gone
        broken = machines.folder(machine) / "plfl"
        readings = broken / "meter.csv"
        broken.rename(broken.with_name("broken"))
        machines.run(machine, *guide_s("federation restore", machine))
        if machine != SERVER:
            shutil.copy(broken.with_name("broken") / readings.name, broken)
    with federation_at_work(machines) as server:
        assert server.wait(600) == 0, machines.said(SERVER)
    after = json.loads((state / "status.json").read_text())
    assert (after["run"], after["round"]) == (before["run"], rounds)
    assert re.search(r"going on after round \d", machines.said(SERVER))
    shared = int(re.search(r"going on after round (\d+)", machines.said(SERVER))[1])
    assert shared >= 2
    assert after["history"][:shared] == before["history"][:shared]
    for house in HOUSES:
        home = machines.folder(house) / "plfl" / "state"
        assert [path.name for path in (home / "runs").iterdir()] == [after["run"]]
        assert "begin anew" not in (home / "log.txt").read_text()
        assert json.loads((home / "trained.json").read_text())["rounds"] >= rounds


@pytest.mark.e2e
def test_the_guide_s_demonstration_has_the_numbers_of_the_simulation(tmp_path):
    machines = Machines(tmp_path / "all", free_port())
    printed = machines.run("anywhere", DEMO, seconds=600)
    assert float(re.search(r"largest difference to the simulation: (\S+)", printed)[1]) <= 1e-6


def test_the_guide_has_every_command_of_a_federation_and_names_its_machine():
    commands = commands_of(GUIDE.read_text())
    assert {machine for machine, command in commands if command != DEMO} == {
        OPERATOR,
        SERVER,
        "house-1",
    }
    known = {command.name for command in app.registered_commands if command.name}
    known |= {command.callback.__name__ for command in app.registered_commands if not command.name}
    assert {
        command.split()[2] for _, command in commands if command.startswith("plfl federation")
    } == known


def test_the_units_run_the_guide_s_commands_and_stay_down_where_a_restart_is_of_no_use(tmp_path):
    commands = {
        command.split()[2]: command
        for _, command in commands_of(GUIDE.read_text())
        if "federation" in command
    }
    for role in ("server", "client"):
        unit = unit_of(role)
        said = unit["ExecStart"].replace("/opt/plfl/bin/plfl", "plfl").replace("/var/lib/", "")
        assert said == commands[role]
        assert unit["WorkingDirectory"] == unit["ReadWritePaths"] == "/var/lib/plfl"
        assert unit["RestartPreventExitStatus"] == "2"
        assert unit["UMask"] == "0077"
        assert int(unit["LimitNOFILE"]) >= 4096
    verify = shutil.which("systemd-analyze")
    if verify:
        for role, block in zip(
            ("server", "client"), blocks_of(GUIDE.read_text(), "ini"), strict=True
        ):
            path = tmp_path / f"plfl-{role}.service"
            path.write_text(
                block.replace("/opt/plfl/bin/plfl", sys.executable).replace(
                    "User=plfl", "User=root"
                )
            )
            done = subprocess.run([verify, "verify", str(path)], capture_output=True, text=True)
            assert path.name not in done.stderr, done.stderr


def test_every_exit_status_is_documented_and_the_units_restart_what_can_heal():
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", REFERENCE.read_text(), re.MULTILINE)
    known = {kind.exit_status for kind in (RunFailed, Transient, BadInput, Damaged, Interrupted)}
    assert {int(status) for status, _ in rows} == {0, 128 + signal.SIGTERM, *known}
    assert "a person has to correct something" in dict(rows)[str(BadInput.exit_status)]
    assert unit_of("server")["Restart"] == "on-failure"
    assert unit_of("client")["Restart"] == "always"


@pytest.mark.e2e
def test_the_readme_of_a_federation_can_be_followed(tmp_path):
    machines = Machines(tmp_path / "all", free_port())
    machines.run(OPERATOR, f"plfl federation init pilot --clients house-1,house-2 --host {SERVER}")
    pilot = machines.folder(OPERATOR) / "pilot"
    replace_in(pilot / "server" / "server.toml", '"127.0.0.1:9093"', '"off"')
    readme = (pilot / "README.md").read_text()
    commands = [command for _, command in commands_of(readme)]
    assert [command.split()[2] for command in commands] == ["server", "status", "client"]
    here = pilot.relative_to(machines.root)
    for later in re.findall(r"^\| `(plfl federation [^`]+)` \|", readme, re.MULTILINE):
        machines.run(here, later.replace(" ID", " house-3"))
    with machines.running(here, commands[0]):
        machines.wait_for(here, "listening on")
        home = here / "clients" / "house-1"
        assert f"in `{home.relative_to(here)}`" in readme
        with machines.running(home, commands[2]):
            machines.wait_for(home, "connected to")
            machines.wait_for(
                here, "house-1 refuses: this client's data cannot be read"
            )  # there is no meter.csv
        machines.run(here, commands[1])
