"""Templates filled in with values, by Jinja2 with autoescape: what comes from data is text, never
markup.

Python computes the values; the HTML and the SVG around them are in templates/. A page is one file
that needs no network: its looks and its only script stand in it, and its policy lets no other run.
"""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plfl.report import words

_TEMPLATES = Environment(
    loader=PackageLoader("plfl.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_LONGEST_NAME = 14  # characters of a row's name; the full one is in its tooltip and in the table


def shorten(name: str) -> str:
    """A name with its middle left out, where it is long."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:4]}…{name[5 - _LONGEST_NAME :]}"


_FORMATS = (words.ratio, words.number, words.count, words.amount, words.duration, words.listed)
_TEMPLATES.filters |= {form.__name__: form for form in (*_FORMATS, words.sentence, shorten)}
_TEMPLATES.filters |= {"plain": "{:g}".format, "grouped": "{:,}".format, "place": "{:.2f}%".format}


def render(template: str, **values: Any) -> Markup:
    """A template with its values."""
    return Markup(_TEMPLATES.get_template(template).render(values))


def render_page(template: str, *, script: str = "picker.js", **values: Any) -> str:
    """A whole page, with its looks and the one script that it may run."""
    style, code = (
        files("plfl.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")
        for name in ("style.css", script)
    )
    digest = b64encode(sha256(f"\n{code}".encode()).digest()).decode()
    own = {"style": Markup(style), "script": Markup(code), "digest": f"sha256-{digest}"}
    return str(render(template, **own, **values))
