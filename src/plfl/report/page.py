"""`report.html` of a run, a study, an adaptation or a benchmark: a single HTML file that needs no
network, made from the stored files alone.

Which of them it is, the folder's files tell. Nothing is trained, and JAX is not loaded.
"""

import json
from pathlib import Path

from jinja2 import UndefinedError

from plfl.errors import Damaged
from plfl.report.pages import adapt, bench, run, study
from plfl.report.render import read
from plfl.storage import write_text

# The results of an adaptation; those of everything else are in result.json.
ADAPTATION = "adapt.json"
_MAKERS = {
    "an adaptation": adapt.make_page,
    "a study": study.make_page,
    "a benchmark": bench.make_page,
    "a run": run.make_page,
}
# What a page raises that is made of something else.
_WRONG = (KeyError, TypeError, AttributeError, IndexError, IsADirectoryError, UndefinedError)


def write_report(folder: Path) -> Path:
    """Make `report.html` from the files in a finished run's, study's, adaptation's or benchmark's
    folder, and return its path.
    """
    is_adaptation = (folder / ADAPTATION).is_file()
    result = read(folder / (ADAPTATION if is_adaptation else "result.json"), json.loads)
    keys = result if isinstance(result, dict) else ()
    kind = "a study" if "runs" in keys else "a benchmark" if "points" in keys else "a run"
    kind = "an adaptation" if is_adaptation else kind
    try:
        page = _MAKERS[kind](folder, result)
    except _WRONG as error:
        raise Damaged(
            f"the results in {folder} are not those of {kind} ({error!r})",
            "restore them, or run again",
        ) from error
    path = folder / "report.html"
    write_text(path, page)
    return path
