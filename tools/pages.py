"""Write docs/config.md from the config itself: `make docs`."""

from pathlib import Path

from plfl.config import Config

HEAD = """# Config fields

Every field of `plfl.Config`, for `--set key=value` on the command line, keyword arguments in Python and `config.toml`
in a run's folder. Durations are written `45min`, `3h` or `1d`; a bare number counts intervals of the data. Lists are
written as in JSON: `--set 'personal=["lstm.*"]'`. This page is made by `make docs`.

Optimizer fields without a default here take that of the chosen optimizer:

| optimizer | settings and defaults |
|---|---|
"""


def optimizer_rows() -> list[str]:
    """Each optimizer's own settings."""
    from plfl.federate.client import CLIENT_OPTIMIZERS
    from plfl.federate.server import SERVER_OPTIMIZERS
    from plfl.federation import CLIENT_SETTINGS, SERVER_SETTINGS

    rows = []
    for factories, fields in ((CLIENT_OPTIMIZERS, CLIENT_SETTINGS), (SERVER_OPTIMIZERS, SERVER_SETTINGS)):
        for name, factory in factories.items():
            defaults = factory.__kwdefaults__ or {}
            rows.append(
                f"| `{name}` | {', '.join(f'`{fields[key]}` {value:g}' for key, value in defaults.items())} |\n"
            )
    return rows


def field_rows() -> list[str]:
    """Name, default and meaning of every field."""
    rows = ["\n| field | default | meaning |\n|---|---|---|\n"]
    for name, field in Config.model_fields.items():
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        rows.append(f"| `{name}` | {'' if default is None else default} | {field.description} |\n")
    return rows


if __name__ == "__main__":
    page = Path(__file__).parents[1] / "docs" / "config.md"
    page.write_text("".join([HEAD, *optimizer_rows(), *field_rows()]))
