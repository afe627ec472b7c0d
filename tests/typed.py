"""The command line in this process: what somebody types, without the seconds in which a process
begins. Tests of signals, terminals and start-up start real ones.
"""

import io
import logging
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

from plfl.cli.app import main


def plfl(*args: str, cwd: Path) -> CompletedProcess:
    """What `plfl ...` says in a folder, and its status."""
    log = logging.getLogger("plfl")
    before = (sys.argv, list(sys.meta_path), log.level, list(log.handlers))
    sys.argv = ["plfl", *args]
    said = io.StringIO()
    complained = io.StringIO()
    status = 0
    try:
        with chdir(cwd), redirect_stdout(said), redirect_stderr(complained):
            main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.argv, sys.meta_path[:], level, handlers = before
        log.setLevel(level)
        log.handlers[:] = handlers
    return CompletedProcess(sys.argv, status, said.getvalue(), complained.getvalue())
