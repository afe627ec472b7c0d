"""What holds for the project as a whole: imports point one way, documents are true, nothing private
is named.
"""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from plfl.config import Config
from plfl.data.rules import RULES
from plfl.errors import in_shell

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "plfl"
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


def test_no_pickle_no_bare_except_no_print():
    for path in SOURCE.rglob("*.py"):
        assert not re.search(
            r"\bpickle\b|except:|\bprint\(", re.sub(r"(output|errors)\.print", "", path.read_text())
        ), path


def test_every_rule_is_documented_and_the_page_is_current():
    page = (ROOT / "docs" / "checks.md").read_text()
    for rule in RULES.values():
        assert (
            f"### {rule.code} {rule.title} ({rule.level})\n\n{rule.why}\n\nFix: {in_shell(rule.fix)}.\n"
            in page
        ), rule.code


def test_every_config_field_is_documented_and_the_page_is_current():
    page = (ROOT / "docs" / "config.md").read_text()
    for name, field in Config.model_fields.items():
        default = (
            ""
            if field.default is None
            else str(list(field.default) if isinstance(field.default, tuple) else field.default)
        )
        assert f"| `{name}` | {default} | {' '.join(field.description.split())} |".replace(
            "'", '"'
        ) in page.replace("'", '"'), name


def test_links_in_the_documents_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), (
                f"{page.name}: {target}"
            )


def test_no_file_names_a_path_of_one_machine():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in listed:
        if (
            name.endswith((".py", ".md", ".toml", ".txt", "Makefile", "run"))
            and name != "tests/test_conventions.py"
        ):
            assert not re.search(r"/root/|/work/|/home/", (ROOT / name).read_text()), name


def test_commands_in_the_readme_exist():
    from typer.main import get_command

    from plfl.cli.app import app

    commands = get_command(app).commands
    makefile = (ROOT / "Makefile").read_text()
    for block in re.findall(
        r"```(?:bash|sh|console)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    ):
        for line in block.splitlines():
            words = line.removeprefix("$ ").split()
            if words[:1] == ["plfl"]:
                command = commands[words[1]]
                command = command.commands[words[2]] if words[1] == "data" else command
                options = {o for p in command.params for o in p.opts}
                assert {w.split("=")[0] for w in words if w.startswith("--")} <= options, line
            elif words[:1] == ["make"]:
                assert f"\n{words[1]}:" in makefile, line
