"""`plfl check`: the data doctor."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from plfl.cli.console import MAX_ROWS, answer, make_table, right, say, status
from plfl.config import Config, parse_settings
from plfl.errors import BadInput, in_shell

if TYPE_CHECKING:
    from plfl.data.panel import Panel
    from plfl.data.readings import Understood
    from plfl.data.rules import Rule
    from plfl.runs.doctor import Diagnosis, Group


def check(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...", help="Files, or other data sources such as bundled:CA."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a config field; may be repeated."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="CODE", help="Say what a rule means, or `all` rules.")
    ] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print what was found as one JSON object.")
    ] = False,
) -> None:
    """Examine data: what is wrong, where, and how to fix it.

    Exit status 2 if anything cannot be read or a client would be left out of a run, else 0.
    """
    if explain is not None:
        _explain(explain, is_json=is_json)
        return
    if not sources:
        raise BadInput(
            "nothing to check", "write plfl check meters.csv, or plfl check --explain PLF101"
        )
    values = parse_settings(settings or [])
    from plfl.runs.doctor import examine

    with status("reading ..."):
        diagnosis = examine(sources, Config(**values))
    answer(diagnosis.to_dict(), lambda: print_diagnosis(diagnosis), is_json=is_json)
    if not diagnosis.is_usable:
        raise typer.Exit(2)


def _explain(code: str, *, is_json: bool) -> None:
    from plfl.data.rules import RULES

    asked = code.strip().upper()
    if asked != "ALL" and asked not in RULES:
        near = difflib.get_close_matches(asked, RULES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise BadInput(f"there is no rule {code!r}", f"{hint}plfl check --explain all lists them")
    chosen = RULES.values() if asked == "ALL" else [RULES[asked]]
    rules = [replace(rule, fix=in_shell(rule.fix)) for rule in chosen]
    answer({"rules": [vars(rule) for rule in rules]}, lambda: print_rules(rules), is_json=is_json)


def print_rules(rules: "list[Rule]") -> None:
    """Each rule with its meaning and the way out."""
    for rule in rules:
        title = Text(f"{rule.code} {rule.title} ({rule.level})", "bold")
        say(title, f"  {rule.why}", f"  Fix: {rule.fix}")


def print_diagnosis(diagnosis: "Diagnosis") -> None:
    """What the doctor found: how each table was read, the data in one line, a table of faults, and
    the way out of each; at the end the command that reads the data right.
    """
    print_understood(diagnosis.understood, diagnosis.panel)
    say(f"{', '.join(diagnosis.sources)}: {_describe(diagnosis)}", soft_wrap=True)
    if diagnosis.findings:
        _print_findings(diagnosis)
    else:
        say("Nothing found.")
    if diagnosis.command:
        what = "Use it" if diagnosis.is_usable else "Try"
        say(f"{what}: {diagnosis.command}", soft_wrap=True)


def print_understood(tables: "Sequence[Understood]", panel: "Panel | None") -> None:
    """How each table was read, in five lines."""
    from plfl.runs.understanding import describe

    for first, *others in (describe(table, panel) for table in tables[:MAX_ROWS]):
        say(Text(first, "bold"), *(f"  {line}" for line in others), soft_wrap=True)


def _print_findings(diagnosis: "Diagnosis") -> None:
    groups = diagnosis.groups()
    heads = ["code", "fault", "effect", *right("count", "clients")]
    say(make_table(heads, map(_group_row, groups)))
    for first in (group.first for group in groups):
        where = f" first at {first.place}" if str(first.place) else ""
        fix = Text(f"       {in_shell(first.fix)}", "dim")
        say(f"{first.code}{where}: {first.detail}", fix, soft_wrap=True)
    if refused := diagnosis.refused:
        named = ", ".join([*refused[:MAX_ROWS], *(["..."] if len(refused) > MAX_ROWS else [])])
        say(f"A run would leave out {len(refused):,}: {named}", soft_wrap=True)


def _group_row(group: "Group") -> list[str | Text]:
    rule = group.first.rule
    level = Text(rule.level, "red" if rule.level in ("error", "refused") else "")
    clients = f"{group.num_clients:,}" if group.num_clients else ""
    return [rule.code, rule.title, level, f"{group.count:,}", clients]


def _describe(diagnosis: "Diagnosis") -> str:
    panel = diagnosis.panel
    if panel is None:
        return "no client can be read" if diagnosis.findings else "nothing"
    facts = diagnosis.to_dict()
    num = facts["num_clients"]
    inputs = ", ".join(["load", *panel.covariate_names, *panel.static_names])
    times = f"{panel.num_times:,} x {facts['interval']} from {facts['start']}"
    return f"{num:,} client{'s' if num != 1 else ''} can take part · {times} · {inputs}"
