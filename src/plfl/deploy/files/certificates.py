"""Keys and certificates of a federation, as bytes that files hold.

The authority (CA) signs the server's certificate, which clients check before they send anything;
its profile is that of RFC 5280, so that strict verifiers accept it. A client is known by a key of
its own, in the format of OpenSSH that Flower reads. Importing this module needs the package
`cryptography`; what imports it does so when it is needed.
"""

import base64
import hashlib
import ipaddress
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from plfl.errors import BadInput, require

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise BadInput(
        "keys and certificates need the package cryptography, which is not installed",
        "pip install 'plfl[flower]'",
    ) from None

AUTHORITY_DAYS = 3652  # ten years
# In every server's certificate, for clients on the same machine.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Pair(NamedTuple):
    """A private key and its certificate, both PEM."""

    key: bytes
    certificate: bytes


def make_authority(federation: str, now: datetime) -> Pair:
    """A new authority, which can sign the certificates of servers and nothing else."""
    key = ec.generate_private_key(ec.SECP384R1())
    # With digits of its own: two authorities must never be mistaken.
    name = _name(f"plfl {federation[:40]} {secrets.token_hex(4)}")
    builder = _builder(name, name, key, now, AUTHORITY_DAYS, is_authority=True)
    return _pair(key, builder.sign(key, hashes.SHA384()))


def issue(authority: Pair, hosts: Sequence[str], now: datetime, valid_days: int) -> Pair:
    """A new server key, and a certificate for it that holds the hosts and the loopback names."""
    signer, issuer = _load_authority(authority)
    _check_days(valid_days, issuer, now)
    key = ec.generate_private_key(ec.SECP256R1())
    names = tuple(dict.fromkeys([*hosts, *LOOPBACK]))
    subject = _name(names[0] if len(names[0]) <= 64 else "plfl server")
    above = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(subject, issuer.subject, key, now, valid_days, is_authority=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(above), critical=False
        )
        .sign(signer, hashes.SHA384())
    )
    return _pair(key, certificate)


def make_node_key() -> bytes:
    """A new private key for a client, in OpenSSH's format: ECDSA on P-384."""
    return ec.generate_private_key(ec.SECP384R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def public_of(private: bytes) -> bytes:
    """The public key of a client's private one."""
    try:
        key = serialization.load_ssh_private_key(private, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a passphrase
        raise BadInput(
            f"this is no private key in OpenSSH's format without a passphrase ({error})"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput("this is not an ECDSA key, which Flower wants")
    return _in_openssh(key.public_key()) + b"\n"


def fingerprint(public: bytes) -> str:
    """The SHA-256 of a client's public key, as `ssh-keygen -l` shows it."""
    _load_public(public)
    sha256 = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(sha256).decode().rstrip('=')}"


def fingerprint_of_pem(public: bytes) -> str:
    """The same of a public key in PEM, as Flower carries it."""
    try:
        return fingerprint(_in_openssh(serialization.load_pem_public_key(public)))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"this is no public key in PEM ({error})") from None


def as_pem(public: bytes) -> bytes:
    """A public key in OpenSSH's format as PEM."""
    return _load_public(public).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _load_public(public: bytes) -> serialization.SSHPublicKeyTypes:
    try:
        return serialization.load_ssh_public_key(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"this is no public key in OpenSSH's format ({error})") from None


def _in_openssh(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a PEM file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})") from None
    except ValueError:
        raise BadInput(f"{path} is no certificate in PEM format") from None


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority's key signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def belongs(key: bytes, certificate: x509.Certificate) -> bool:
    """Whether this private key (PEM) is the certificate's."""
    try:
        private = serialization.load_pem_private_key(key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return private.public_key() == certificate.public_key()


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The names and addresses that the certificate holds."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*names.get_values_for_type(x509.DNSName), *(str(address) for address in addresses))


def holds_host(certificate: x509.Certificate, host: str) -> bool:
    """Whether the certificate holds this name or address."""
    return _general_name(host.lower()) in [
        _general_name(name.lower()) for name in hosts_of(certificate)
    ]


def _load_authority(authority: Pair) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        signer = serialization.load_pem_private_key(authority.key, None)
        issuer = x509.load_pem_x509_certificate(authority.certificate)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a passphrase
        raise BadInput("ca/ca.key or ca/ca.crt is damaged", "restore both from a copy") from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or not belongs(authority.key, issuer):
        raise BadInput("ca/ca.key does not belong to ca/ca.crt", "restore both from a copy")
    return signer, issuer


def _check_days(valid_days: object, issuer: x509.Certificate, now: datetime) -> None:
    left = (issuer.not_valid_after_utc - now).days
    require(
        left >= 1,
        f"the authority's certificate ends on {issuer.not_valid_after_utc:%Y-%m-%d}, so it "
        "signs no more",
        "make a new federation with plfl federation init",
    )
    require(
        type(valid_days) is int and 1 <= valid_days <= left,
        f"valid_days = {valid_days!r}: write a number of days from 1 to {left}, when the "
        "authority's own ends",
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    valid_days: int,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    public = key.public_key()
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(is_authority, 0 if is_authority else None)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # for clients whose clocks are behind
        .not_valid_after(now + timedelta(days=valid_days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> Pair:
    return Pair(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        certificate.public_bytes(serialization.Encoding.PEM),
    )
