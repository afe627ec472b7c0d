"""Write docs/reference/config.md and checks.md from the code itself: `make docs`."""

from pathlib import Path

from plfl.config import Config
from plfl.data.rules import LEVELS, RULES
from plfl.errors import in_shell

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
CHECKS_HEAD = """# What the data doctor checks

`plfl check FILE` examines data before anything is trained, and every run examines its data in the
same way. Each rule has a code; `plfl check --explain PLF101` shows its entry below. Codes that
begin with 1 are about time, with 2 about values, with 3 about files. What a finding does to a run
is its level:

| level | effect |
|---|---|
| error | nothing can be read before it is fixed; exit status 2 |
| refused | the client is left out and named; with `--strict`, or if none remains, exit status 2 |
| repaired | the readings are merged, filled or left out, and counted |
| noted | nothing changes |

`plfl check` ends with status 2 if there is an error or a refused client, else with 0; `--json`
gives every finding with its count and first place (file, row, line, column, client, time). Findings
also stand in a run's `result.json` and report. Judgements that can be wrong are overruled by `--set
ignore=CODE` (PLF205, PLF207, PLF209). This page is made by `make docs`.

Beside `findings`, the JSON has `clients` (each meter that was read: `id`, `num_readings`,
`interval_minutes`, and `energy_kwh` over all its readings), `understood` and `command`, which reads
the file right (null if only a change of the file helps). `understood` has `columns` (`time`, `id`,
`load`, `register`, `covariates`, `skipped`), `unit`, `zone`, `stamps` (`start` or `end`),
`stamp_zone`, `format`, `layout`, `registers` and the five `lines`; what several tables differ in is
null there, and said of each in `tables`.
"""
HEAD = """# Config fields

Every field of `plfl.Config`, for `--set key=value` on the command line, keyword arguments in Python
and `config.toml` in a run's folder. Durations are written `45min`, `3h` or `1d`; a bare number
counts intervals of the data. Lists are written as in JSON: `--set 'personal=["lstm.*"]'`. This page
is made by `make docs`.

Fields of optimizers and aggregates without a default here take that of the chosen one:

| chosen | settings and defaults |
|---|---|
"""


def optimizer_rows() -> list[str]:
    """Each optimizer's own settings."""
    from plfl.federate.aggregate import AGGREGATES
    from plfl.federate.client import CLIENT_OPTIMIZERS
    from plfl.federate.plan import AGGREGATE_SETTINGS, CLIENT_SETTINGS, SERVER_SETTINGS
    from plfl.federate.server import SERVER_OPTIMIZERS

    rows = []
    choices = (
        (CLIENT_OPTIMIZERS, CLIENT_SETTINGS),
        (SERVER_OPTIMIZERS, SERVER_SETTINGS),
        (AGGREGATES, AGGREGATE_SETTINGS),
    )
    for factories, fields in choices:
        for name, factory in factories.items():
            if not (defaults := factory.__kwdefaults__):
                continue
            rows.append(
                f"| `{name}` | "
                f"{', '.join((f'`{fields[key]}` {value:g}' for key, value in defaults.items()))} "
                "|\n"
            )
    return rows


def field_rows() -> list[str]:
    """Name, default and meaning of every field."""
    rows = ["\n| field | default | meaning |\n|---|---|---|\n"]
    for name, field in Config.model_fields.items():
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        rows.append(
            f"| `{name}` | {('' if default is None else default)} | "
            f"{' '.join((field.description or '').split())} |\n"
        )
    return rows


def rule_sections() -> list[str]:
    """Each rule, the families in order."""
    assert {rule.level for rule in RULES.values()} <= set(LEVELS)
    return [
        f"\n### {r.code} {r.title} ({r.level})\n\n{r.why}\n\nFix: {in_shell(r.fix)}.\n"
        for r in RULES.values()
    ]


def make_pages() -> dict[str, str]:
    """Each page's text by its name."""
    return {
        "config.md": "".join([HEAD, *optimizer_rows(), *field_rows()]),
        "checks.md": "".join([CHECKS_HEAD, *rule_sections()]),
    }


if __name__ == "__main__":
    for page, text in make_pages().items():
        (REFERENCE / page).write_text(text)
