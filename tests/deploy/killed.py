"""A command on a federation, killed at each of its accesses to the disk in turn, and given again.

    python killed.py TOP init|add|revoke|renew

What existed before must be there afterwards, and the second attempt must leave a federation without
a fault. Writes the number of moments at which it was killed.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from plfl.data import sources  # noqa: F401 (what is imported later would be counted)
from plfl.deploy.files.inspection import inspect
from plfl.deploy.programs import provision
from plfl.errors import BadInput

TOP, COMMAND = Path(sys.argv[1]), sys.argv[2]
FOLDER = TOP / "pilot"
COMMANDS = {
    "init": lambda: provision.init(FOLDER, ["a", "b"]),
    "add": lambda: provision.add_client(FOLDER, "c"),
    "revoke": lambda: provision.revoke_client(FOLDER, "b"),
    "renew": lambda: provision.renew_server(FOLDER),
}
os.fsync = lambda descriptor: None  # what a killed process has written stays without
ACCESSES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def kill_at(number: int) -> None:
    left = number

    def hook(event: str, arguments: tuple) -> None:
        nonlocal left
        if event in ACCESSES and str(TOP) in str(arguments[0]):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def private_keys() -> dict[str, bytes]:
    files = [path for path in FOLDER.rglob("*.key") if path.name in ("node.key", "ca.key")]
    return {str(path): path.read_bytes() for path in files if "unfinished" not in str(path)}


def survives(number: int) -> bool:
    """Whether the command was over before it could be killed."""
    shutil.rmtree(TOP)
    TOP.mkdir()
    if COMMAND != "init":
        provision.init(FOLDER, ["a", "b"])
    before = private_keys()
    child = os.fork()
    if child == 0:
        kill_at(number)
        COMMANDS[COMMAND]()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    between = private_keys()
    assert before.items() <= between.items()
    is_made = COMMAND == "init" and FOLDER.exists()
    if not is_made:
        try:
            COMMANDS[COMMAND]()
        except BadInput as error:
            if "already" not in str(error):
                raise
        left = [
            path
            for path in TOP.rglob("*")
            if "unfinished" in path.name or path.name.endswith(".tmp")
        ]
        assert left == [], (number, left)
    assert between.items() <= private_keys().items()
    assert inspect(FOLDER) == [], number
    return status == 0


number = 0
while not survives(number):
    number += 1
sys.stdout.write(f"{number}\n")
