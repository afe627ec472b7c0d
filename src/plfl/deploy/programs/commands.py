"""`plfl federation ...`: making the files of a federation, running its server and clients."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from plfl.config import parse_settings
from plfl.deploy.files.settings import read_client
from plfl.deploy.files.state import read_life
from plfl.errors import RunFailed, plain, require

app = typer.Typer(
    help="A real federation: a server, and meters on machines of their own.",
    epilog=(
        "Examples: `plfl federation demo` · `plfl federation init pilot --clients "
        "house-1,house-2` · `plfl federation backup plfl/server.toml server.tar` · `plfl "
        "federation restore server.tar plfl`"
    ),
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The operator's folder, which init made.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS, for tests; has to be said on both sides.")
]


def _say(*lines: str, is_error: bool = False) -> None:
    # Lines for a terminal, whatever ids and reasons are in them.
    for line in lines:
        typer.echo(plain(line), err=is_error)


def _report(is_json: bool, found: Mapping[str, Any], *lines: str) -> None:
    # What a command has to say: as JSON, or in words.
    _say(*([json.dumps(found)] if is_json else lines))


@app.command(
    epilog=(
        "Examples: `plfl federation init pilot --clients house-1,house-2 --host fl.example.org` · "
        "`plfl federation init pilot --data bundled:CA`"
    )
)
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new folder; it stays with the operator.")
    ],
    clients: Annotated[
        str | None,
        typer.Option(
            metavar="IDS", help="Ids with commas between them; all of --data if left out."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Give each client its own readings of a source."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The name or address by which clients reach the server.")
    ] = "localhost",
    port: Annotated[int, typer.Option(help="The port for that.")] = 9092,
    recipe: Annotated[
        str, typer.Option(help="What is trained; server.toml says it afterwards.")
    ] = "paper",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A config field of the run; may be repeated."
        ),
    ] = None,
    is_json: Json = False,
) -> None:
    """Make everything that a federation needs: an authority, certificates, keys, settings, and a
    README.

    The README says which folder goes to which machine. Nothing that exists is overwritten.
    """
    from plfl.deploy.programs import provision

    ids = None if clients is None else [client.strip() for client in clients.split(",")]
    require(
        clients is not None or data is not None,
        "a federation needs clients",
        "give --clients house-1,house-2, or --data SOURCE",
    )
    run: dict[str, Any] = {"recipe": recipe, "settings": parse_settings(settings or [])}
    if data is None:
        made = provision.init(folder, ids or [], host=host, port=port, run=run)
    else:
        made = provision.init_from_data(folder, data, ids, host=host, port=port, run=run)
    _report(
        is_json,
        {
            "folder": str(made.folder),
            "server": str(made.server),
            "clients": {client: str(path) for client, path in made.clients.items()},
            "valid_until": made.valid_until.isoformat(),
        },
        f"{made.folder}: a server and {len(made.clients)} clients; README.md says what goes where",
        f"  plfl federation server {made.server}",
        f"  plfl federation client {next(iter(made.clients.values()))}",
    )


@app.command("add-client", epilog="Example: `plfl federation add-client pilot house-3`")
def add_client(
    folder: Folder,
    client: Annotated[str, typer.Argument(metavar="ID", help="The new client's id.")],
    data: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Its readings, if known.")
    ] = None,
    is_json: Json = False,
) -> None:
    """Make the files of one more client; copy server/keys and server/roster.json to the server
    afterwards.
    """
    from plfl.deploy.programs import provision

    path = provision.add_client(folder, client, data=data)
    _report(is_json, {"client": client, "settings": str(path)}, f"{client}: {path.parent}")


@app.command(
    "revoke-client",
    epilog="Example: `plfl federation revoke-client pilot house-3 --reason 'moved out'`",
)
def revoke_client(
    folder: Folder,
    client: Annotated[str, typer.Argument(metavar="ID", help="The client's id.")],
    reason: Annotated[str, typer.Option(help="Why; it stands on the roster.")] = "",
    is_json: Json = False,
) -> None:
    """Take a client off the federation for good; copy server/keys and server/roster.json to the
    server afterwards.
    """
    from plfl.deploy.programs import provision

    member = provision.revoke_client(folder, client, reason)
    _report(
        is_json,
        {"client": client, "revoked": str(member.revoked)},
        f"{client} is revoked; its id and key are never used again",
    )


@app.command(
    "renew-server", epilog="Example: `plfl federation renew-server pilot --host fl.example.org`"
)
def renew_server(
    folder: Folder,
    host: Annotated[
        str | None, typer.Option(help="One more name by which clients reach the server.")
    ] = None,
    is_json: Json = False,
) -> None:
    """Make a new certificate and key for the server; clients need nothing."""
    from plfl.deploy.programs import provision

    made = provision.renew_server(folder, host)
    _report(
        is_json,
        {
            "certificate": str(made.certificate),
            "valid_until": made.valid_until.isoformat(),
            "kept": str(made.kept),
        },
        f"{made.certificate} is valid until {made.valid_until:%Y-%m-%d}",
    )


@app.command(epilog="Example: `plfl federation server pilot/server/server.toml`")
def server(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="server.toml.")],
    is_insecure: Insecure = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last round; it does so anyway.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Run the server of a federation: it goes on where it was, and ends when all rounds are done.

    A page with its rounds is at http://127.0.0.1:9093, or where server.toml says. Logs go to
    standard error and to log.txt in its folder. Ctrl-C or SIGTERM stops it; nothing is lost.
    """
    from plfl.deploy.programs.server import run_server
    from plfl.deploy.programs.status import read_status

    run_server(config, is_insecure=is_insecure)
    if is_json:
        _say(json.dumps(read_status(config)))


@app.command(epilog="Example: `plfl federation client pilot/clients/house-1/client-house-1.toml`")
def client(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="client-<id>.toml.")],
    is_insecure: Insecure = False,
    is_once: Annotated[
        bool, typer.Option("--once", help="End when one run of the federation is over.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Run a client of a federation: it answers the server from its own data, by its own policy,
    until it is stopped.

    Logs go to standard error and to log.txt in its folder. Ctrl-C or SIGTERM stops it; nothing is
    lost.
    """
    from plfl.deploy.programs.client import run_client

    run_client(config, is_insecure=is_insecure, is_once=is_once)
    if is_json:
        own = read_client(config)
        _say(json.dumps({"client": own.id, "folder": str(own.folder)}))


@app.command(
    epilog=(
        "Examples: `plfl federation status plfl/server.toml` · `... status "
        "plfl/client-house-1.toml`"
    )
)
def status(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="server.toml, or client-<id>.toml.")
    ],
    is_json: Json = False,
) -> None:
    """Say where a server stands: its rounds, who answered, who did not and why, and what went over
    the network.

    Of a server and of a client: whether it runs, was stopped, failed and why, or is finished.
    """
    from plfl.deploy.programs.status import describe_in_words, read_status

    if config.name.startswith("client-"):
        own = read_client(config)
        life = read_life(own.folder)
        _report(is_json, {"client": own.id, "process": life._asdict()}, f"{own.id} is {life}")
    else:
        found = read_status(config)
        _report(is_json, found, *describe_in_words(found))


@app.command(
    epilog=(
        "Examples: `plfl federation backup plfl/server.toml server.tar` · `... plfl/client-a.toml "
        "a.tar`"
    )
)
def backup(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="server.toml, or client-<id>.toml.")
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new file; it will hold private keys.")
    ],
    is_json: Json = False,
) -> None:
    """Write all that a server or a client needs to go on elsewhere into one file, also while it
    runs.

    Not in it: a client's readings, and logs. Nothing that exists is overwritten.
    """
    from plfl.deploy.programs.backup import make_backup

    made = make_backup(config, file)
    _report(is_json, asdict(made), f"{file}: the {made.kind} {made.name}, {made.num_files} files")


@app.command(epilog="Example: `plfl federation restore server.tar plfl`")
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What plfl federation backup made.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    is_json: Json = False,
) -> None:
    """Put a server or a client back into a new folder, whole or not at all; it goes on with the run
    that it was in.
    """
    from plfl.deploy.programs.backup import restore_backup

    made, config = restore_backup(file, folder)
    lines = [f"{config.parent}: the {made.kind} {made.name}, {made.num_files} files"]
    if made.kind == "client":
        place = read_client(config).data
        lines.append(f"its readings are not in a backup: they belong at {place}")
    lines.append(f"  plfl federation {made.kind} {config}")
    _report(is_json, {**asdict(made), "config": str(config)}, *lines)


@app.command(
    epilog="Examples: `plfl federation demo` · `plfl federation demo --rounds 5 --server fed_adam`"
)
def demo(
    clients: Annotated[int, typer.Option(min=1, help="How many of the bundled meters.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the federation.")] = 3,
    personal: Annotated[str, typer.Option(help="What stays at the clients: none or mlp.")] = "mlp",
    server_name: Annotated[str, typer.Option("--server", help="Server optimizer.")] = "fed_avg",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A config field; may be repeated."),
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep all files in this new folder.")
    ] = None,
    is_json: Json = False,
) -> None:
    """Run a whole federation on this machine: real processes, TLS and keys, bundled data; then
    compare with the loop.

    Exit status 1 if a parameter differs by more than 1e-6 from the simulation's.
    """
    from plfl.deploy.programs.demo import run_demo

    values = {**parse_settings(settings or []), "personal": personal, "server": server_name}
    tell = (lambda line: None) if is_json else (lambda line: _say(line, is_error=True))
    found = run_demo(clients, rounds, settings=values, folder=keep, observer=tell)
    _report(
        is_json,
        found,
        f"largest difference to the simulation: {found['max_abs_diff']:.2g}",
        f"each way, per client and round: {found['bytes_per_client_round']} bytes "
        f"({found['bytes_up_with_headers']} up and {found['bytes_down_with_headers']} down with "
        "headers)",
        f"seconds per round: {found['seconds_per_round']} (the first: "
        f"{found['seconds_of_first_round']})",
    )
    if found["max_abs_diff"] > 1e-6:
        raise RunFailed(f"a parameter differs by {found['max_abs_diff']:.2g} from the simulation's")
