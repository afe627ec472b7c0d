"""The processes that a server and a client keep alive: `python -m plfl.deploy.programs.child
rounds|answers ...`.
"""

import sys
from pathlib import Path

from plfl.deploy.programs.supervise import run_as_child


def main() -> None:
    """Do what the first argument names."""
    role, path, port, secret, *more = sys.argv[1:]

    def work() -> None:
        if role == "rounds":
            from plfl.deploy.flower.process import end_with_parent
            from plfl.deploy.programs.server import serve

            end_with_parent()
            serve(Path(path), int(port), Path(secret))
        else:
            from plfl.deploy.programs.client import answer

            answer(Path(path), int(port), Path(secret), is_once="once" in more)

    run_as_child(work)


if __name__ == "__main__":
    main()
