"""What holds for the project as a whole: imports point one way, documents are true, nothing private
is named.
"""

import ast
import pkgutil
import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "plfl"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LAYERS = [
    {"errors", "_version"},
    {"config", "storage"},
    {"native"},
    {"data", "recipes"},
    {"forecast"},
    {"federate", "report"},
    {"runs"},
    {"bench", "frames", "deploy"},
    {"cli", "__init__"},
    {"__main__"},
]
"""Each room may import from its own layer's room and from the layers above it in this list."""


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("plfl"):
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {
                alias.name.split(".")[1] for alias in node.names if alias.name.startswith("plfl.")
            }
    return rooms


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_imports_point_one_way(path):
    level = {room: k for k, layer in enumerate(LAYERS) for room in layer}
    own = room_of(path)
    for room in imported_rooms(path) - {own}:
        assert level[room] < level[own], f"{own} must not import {room}"


def test_federate_does_not_know_which_model_it_trains():
    for path in (SOURCE / "federate").rglob("*.py"):
        code = re.sub(r'""".*?"""|#.*', "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"lstm|mlp", code, re.IGNORECASE), path


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_every_module_says_what_it_is_for(path):
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc
    assert len(doc.splitlines()) <= 20


def test_the_house_keeps_its_figures():
    """Sizes, complexity and style, as tools/figures.py measures and limits them."""
    tool = runpy.run_path(str(ROOT / "tools" / "figures.py"))
    figures, _ = tool["measure"](SOURCE)
    assert {
        name: figures[name] for name, most in tool["LIMITS"].items() if figures[name] > most
    } == {}


def test_no_pickle_no_bare_except_no_print():
    for path in SOURCE.rglob("*.py"):
        assert not re.search(
            r"\bpickle\b|except:|\bprint\(", re.sub(r"(output|errors)\.print", "", path.read_text())
        ), path


@pytest.mark.parametrize("page", ["config.md", "checks.md"])
def test_pages_that_are_made_from_the_code_are_current(page):
    make_pages = runpy.run_path(str(ROOT / "tools" / "pages.py"))["make_pages"]
    assert (ROOT / "docs" / "reference" / page).read_text() == make_pages()[page], "run make docs"


def test_links_in_the_documents_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            if target.startswith("http"):
                continue
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors_of(place), f"{page.name}: {target}#{anchor}"


def anchors_of(page: Path) -> set[str]:
    """The names that headings can be linked by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tracked_texts() -> list[tuple[str, str]]:
    """Name and text of every file of the repository that people read."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    ends = (".py", ".md", ".toml", ".txt", "Makefile", "run")
    return [
        (name, (ROOT / name).read_text())
        for name in listed
        if name.endswith(ends) and name != "tests/test_conventions.py"
    ]


def test_no_file_names_a_path_of_one_machine():
    for name, text in tracked_texts():
        assert not re.search(r"/root/|/work/|/home/", text), name


def test_documents_that_files_name_exist():
    for name, text in tracked_texts():
        for document in re.findall(r"\bdocs/[\w/]+\.\w+", text):
            assert (ROOT / document).exists(), f"{name}: {document}"


def commands_in_documents() -> list[tuple[str, list[str]]]:
    """Every line of a shell block, with the words before its comment."""
    blocks = [
        (page.name, block)
        for page in PAGES
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    lines = [
        (name, line.split(" #")[0].split()) for name, block in blocks for line in block.splitlines()
    ]
    return [(name, words) for name, words in lines if words]


def test_commands_in_the_documents_exist():
    from typer.main import get_command

    from plfl.cli.app import app

    makefile = (ROOT / "Makefile").read_text()
    for page, words in commands_in_documents():
        if "plfl" in words[:4]:  # after mpiexec -n 4, too
            command, rest = get_command(app), words[words.index("plfl") + 1 :]
            while hasattr(command, "commands"):
                command = command.commands[rest.pop(0)]
            options = {option for parameter in command.params for option in parameter.opts}
            given = {word.split("=")[0] for word in rest if word.startswith("--")}
            assert given <= options, f"{page}: {' '.join(words)}"
        elif words[0] == "make":
            assert f"\n{words[1]}:" in makefile, f"{page}: {' '.join(words)}"


def test_functions_and_files_that_the_map_of_the_code_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = set(re.findall(r"[\w./<>-]+\.(?:py|c|h|md|toml|html|txt|csv)\b", text))
    for name in files:
        assert any((folder / name).exists() for folder in (ROOT, SOURCE)), name
    rooms = "|".join(path.stem for path in SOURCE.iterdir() if not path.name.startswith("_"))
    names = set(re.findall(rf"(?<![\w./])(?:{rooms})(?:\.\w+)+", text)) - files
    assert names
    for name in names:
        pkgutil.resolve_name(f"plfl.{name}")


def names_in(node):
    """What a piece of code names: functions, attributes, modules in texts such as commands."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name | ast.Attribute):
            yield each.id if isinstance(each, ast.Name) else each.attr
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value.rpartition(".")[2]


def names_reached(name):
    """What a function names, or one of its module that it calls; of a class, any of its methods."""
    parts = name.split(".")
    paths = [SOURCE.joinpath(*parts[:k]).with_suffix(".py") for k in range(len(parts), 0, -1)]
    tree = ast.parse(next(path for path in paths if path.is_file()).read_text())
    bodies = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bodies.setdefault(node.name, set()).update(names_in(node))
    if parts[-1] not in bodies:  # a module
        return set(names_in(tree))
    reached = set()
    waiting = {parts[-1]}
    while waiting:
        found = bodies[waiting.pop()]
        waiting |= (found - reached) & bodies.keys()
        reached |= found
    return reached


def test_functions_in_the_flows_call_what_is_indented_under_them():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for flow in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        above = []
        for indent, name in re.findall(r"^( {0,20})([a-z]\w*(?:\.\w+)+)", flow, re.MULTILINE):
            above = [each for each in above if each[0] < len(indent)]
            if above:
                assert name.split(".")[-1] in names_reached(above[-1][1]), f"{above[-1][1]}: {name}"
            above.append((len(indent), name))


def test_modules_that_the_documents_name_exist():
    for page in PAGES:
        for name in re.findall(r"\bplfl(?:\.\w+)+", page.read_text()):
            assert pkgutil.resolve_name(name) is not None, f"{page.name}: {name}"
