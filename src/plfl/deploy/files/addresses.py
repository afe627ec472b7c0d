"""Names and addresses in the files of a federation, each refused with an example of a right one."""

import ipaddress
import re

from plfl.errors import BadInput, require

MAX_ID = 200  # characters of a client's id
OFF = "off"  # stands in server.toml for a page that is not shown
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_ANY_HOST = (
    "write the name or address by which clients reach the server, such as fl.example.org or "
    "192.0.2.7"
)


def check_id(client: object) -> str:
    """The id, if it can be one: any text that is not blank, and not longer than `MAX_ID`."""
    if not isinstance(client, str):
        raise BadInput(f"a client's id is a text such as house-7, not {client!r}")
    require(
        client.strip(),
        f"a client's id must not be empty or blank, as {client!r} is",
        "write one such as house-7",
    )
    require(
        len(client) <= MAX_ID,
        f"the id {client[:20]!r}... has {len(client)} characters",
        f"{MAX_ID} are allowed",
    )
    require(is_unicode(client), f"the id {client!r} is not valid Unicode", "write it as UTF-8")
    return client


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; bytes of a command line may not be."""
    return text.encode(errors="ignore").decode() == text


def check_host(host: object) -> str:
    """The host, if clients can reach one by it: a DNS name or an IP address, without scheme, port
    or brackets.
    """
    if not isinstance(host, str) or not host:
        raise BadInput(f"host = {host!r} is no host", _ANY_HOST)
    address = _parse_ip(host)
    require(
        address is None or not (address.is_unspecified or address.is_multicast),
        f"host = {host!r} is an address that nobody can connect to",
        _ANY_HOST,
    )
    require(
        host.isascii(),
        f"host = {host!r} has letters beyond ASCII",
        "write the name as DNS has it (xn--...)",
    )
    require(
        address is not None or _is_dns_name(host),
        f"host = {host[:80]!r} is neither a DNS name nor an IP address",
        _ANY_HOST,
    )
    return host


def _is_dns_name(host: str) -> bool:
    labels = host.split(".")
    is_named = all(_LABEL.fullmatch(label) for label in labels) and not labels[-1].isdigit()
    return is_named and len(host) <= 253


def check_port(port: object) -> int:
    """The port, if it is a number from 1 to 65535."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise BadInput(
            f"port = {port!r} is no port", "write a number from 1 to 65535, such as 9092"
        )
    return port


def join_address(host: str, port: int) -> str:
    """Host and port in one text.

    >>> join_address("fl.example.org", 9092), join_address("::1", 9092)
    ('fl.example.org:9092', '[::1]:9092')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: object) -> tuple[str, int]:
    """Undo `join_address`; the host may be anything."""
    found = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})", str(address))
    if found is None:
        raise BadInput(
            f"{address!r} is no address",
            "write host:port, such as fl.example.org:9092 or [::1]:9092",
        )
    return found[1] or found[2], check_port(int(found[3]))


def split_address(address: object) -> tuple[str, int]:
    """Undo `join_address`, and check both parts."""
    host, port = parse_address(address)
    return check_host(host), port


def check_address(address: object) -> str:
    """An address that clients, or a browser, can connect to."""
    return join_address(*split_address(address))


def check_page(page: object) -> str:
    """An address to show a page at, or `OFF`."""
    try:
        return OFF if page == OFF else check_address(page)
    except BadInput as error:
        raise BadInput(f"page = {page!r}: {error}", f"or write page = {OFF!r}") from None


def check_listen(address: object) -> str:
    """An address of a machine with a port, or nothing; names are of no use here."""
    if address == "":
        return ""
    host, port = parse_address(address)
    require(
        _parse_ip(host),
        f"{address!r} has no IP address",
        f"write one of this machine's, such as 10.0.0.7:{port}",
    )
    return join_address(host, port)


def _parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:  # a zone, as in fe80::1%eth0, is of one machine
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None
