"""From a source as a person writes it (`generated:12`) to a panel."""

from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl

from plfl.config import GIVEN
from plfl.data.generated import generate
from plfl.data.panel import Panel, concatenate
from plfl.errors import BadInput


def load_sources(sources: Sequence[str]) -> Panel:
    """The clients of all sources as one panel, in the order of their ids."""
    if not sources:
        raise BadInput("no data: give at least one source, such as --data generated:12")
    return concatenate(load_source(source) for source in sources).sorted()


def load_source(source: str) -> Panel:
    """The panel of one source: KIND:WHAT?option=value&...

    >>> load_source("generated:2?days=7").ids
    ('b001', 'b002')
    """
    if source == GIVEN:
        raise BadInput("this run's data was given in Python; go on with plfl.run(resume=..., data=...) there")
    kind, colon, rest = source.partition(":")
    if not colon or kind not in _READERS:
        raise BadInput(
            f"unknown data source {source!r}; known kinds: {', '.join(_READERS)} (as in generated:12). "
            "Other data goes in from Python: plfl.run(config, data=panel)"
        )
    what, _, query = rest.partition("?")
    return _READERS[kind](source, what, dict(parse_qsl(query, keep_blank_values=True)))


def _generated(source: str, what: str, options: dict[str, str]) -> Panel:
    allowed = {"days": "days", "minutes": "minutes", "seed": "seed"}
    for name in options:
        if name not in allowed:
            raise BadInput(f"unknown option {name!r} in {source!r}; known: {', '.join(allowed)}")
    return generate(
        _integer(source, "the number of clients", what),
        **{allowed[name]: _integer(source, name, text) for name, text in options.items()},
    )


def _integer(source: str, name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise BadInput(f"{name} in {source!r} must be a whole number, as in generated:12?days=90") from None
    if value < 0:
        raise BadInput(f"{name} in {source!r} must not be negative, as in generated:12?days=90")
    return value


_READERS: dict[str, Callable[[str, str, dict[str, str]], Panel]] = {"generated": _generated}
