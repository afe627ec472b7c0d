"""How big the house is: modules, lines, statements, complexity, beside what we allow ourselves.

    python tools/figures.py [ROOM]        the figures, and what is above its limit
                                          (a room: federate, deploy/files, ...)

A statement is one of Python's, docstrings and imports included. Complexity is 1, and 1 more for
each branch: if, loop, except, assert, case, each condition of a comprehension, each and/or. A
packed assignment gives a tuple to a tuple. Exits with 1 if anything is above its limit.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "plfl"
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.IfExp, ast.ExceptHandler, ast.Assert)
MOST_LINES = 500
MOST_COLUMNS = 100
MOST_BRANCHES = 10
LIMITS = {
    "files at the root": 8,
    f"modules above {MOST_LINES} lines": 0,
    f"lines above {MOST_COLUMNS} columns": 0,
    "statements": 22_200,  # no more than there are; the aim is 15,000
    f"functions of complexity above {MOST_BRANCHES}": 26,
    "packed assignments, % of assignments": 1.0,
    "words of README": 600,
}


class Place(NamedTuple):
    """Something that counts against a limit, and how much of it there is."""

    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.what}"


def complexity(function: ast.AST) -> int:
    """How many ways lead through a function."""
    ways = 1
    for node in ast.walk(function):
        if isinstance(node, (*BRANCHES, ast.match_case)):
            ways += 1
        elif isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            ways += 1 + len(node.ifs)
    return ways


def is_packed(node: ast.Assign) -> bool:
    """Whether a tuple is given to a tuple."""
    return isinstance(node.value, ast.Tuple) and any(
        isinstance(target, ast.Tuple) for target in node.targets
    )


def find_long(path: Path) -> Iterator[Place]:
    """Lines that are too long."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if len(line) > MOST_COLUMNS:
            yield Place(path, number, f"{len(line)} columns")


def measure(folder: Path) -> tuple[dict[str, float], list[Place]]:
    """Each figure of a folder of modules, and the places that count against a limit."""
    paths = sorted(folder.rglob("*.py"))
    trees = {path: list(ast.walk(ast.parse(path.read_text()))) for path in paths}
    nodes = [(path, node) for path, found in trees.items() for node in found]
    assigned = [(path, node) for path, node in nodes if isinstance(node, ast.Assign)]
    packed = [Place(path, node.lineno, "packed") for path, node in assigned if is_packed(node)]
    functions = [
        Place(path, node.lineno, f"{node.name} has complexity {complexity(node)}")
        for path, node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and complexity(node) > MOST_BRANCHES
    ]
    sizes = {path: len(path.read_text().splitlines()) for path in paths}
    large = [Place(path, 1, f"{n} lines") for path, n in sizes.items() if n > MOST_LINES]
    long = [place for path in paths for place in find_long(path)]
    readme = re.sub(r"<[^>]*>", " ", (ROOT / "README.md").read_text())
    figures = {
        "modules": len(paths),
        "lines": sum(sizes.values()),
        "files at the root": len([each for each in folder.iterdir() if each.is_file()]),
        f"modules above {MOST_LINES} lines": len(large),
        f"lines above {MOST_COLUMNS} columns": len(long),
        "statements": sum(isinstance(node, ast.stmt) for _, node in nodes),
        f"functions of complexity above {MOST_BRANCHES}": len(functions),
        "packed assignments, % of assignments": 100 * len(packed) / max(len(assigned), 1),
        "words of README": len(readme.split()),
    }
    return figures, [*large, *functions, *packed, *long]


def main() -> int:
    """Print them; 1 if anything is above its limit."""
    folder = SOURCE / sys.argv[1] if sys.argv[1:] else SOURCE
    figures, places = measure(folder)
    for name, value in figures.items():
        limit = LIMITS.get(name)
        print(f"{value:10,.1f}  {name}{'' if limit is None else f' (at most {limit:g})'}")
    if sys.argv[1:]:
        print(*places, sep="\n")
    return int(any(figures[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
