"""`report.html` of a run or a study: a single HTML file that needs no network, made from the stored
files alone.

Which of the two it is, the folder's result.json tells: a study's has runs. Nothing is trained, and
JAX is not loaded.
"""

import json
from pathlib import Path

from plfl.errors import Damaged
from plfl.report.files import read
from plfl.report.run_page import make_run_page
from plfl.report.study_page import make_study_page
from plfl.storage import write_text


def write_report(folder: Path) -> Path:
    """Make `report.html` from the files in the folder of a finished run or study, and return its
    path.
    """
    result = read(folder / "result.json", json.loads)
    is_study = isinstance(result, dict) and "runs" in result
    make = make_study_page if is_study else make_run_page
    try:
        page = make(folder, result)
    except (KeyError, TypeError, AttributeError, IndexError, IsADirectoryError) as error:
        kind = "a study" if is_study else "a run"
        raise Damaged(
            f"the results in {folder} are not those of {kind} ({error!r})",
            "restore them, or run again",
        ) from error
    path = folder / "report.html"
    write_text(path, page)
    return path
