"""Flower, which carries messages between server and clients; its words stay in here."""

from importlib.util import find_spec

from plfl.errors import BadInput

if find_spec("flwr") is None:
    raise BadInput(
        "a real federation needs the package flwr, which is not installed",
        "pip install 'plfl[flower]'",
    )
