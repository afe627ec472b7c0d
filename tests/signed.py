"""The headers with which a client's calls say who it is, as Flower's own client makes them."""

from base64 import b64encode
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from plfl.deploy.files import certificates


def sign(key, seconds=0.0):
    """Signed with the private key in a file, by a clock that is ahead by some seconds."""
    private = key.read_bytes()
    at = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    signature = load_ssh_private_key(private, None).sign(at.encode(), ec.ECDSA(hashes.SHA256()))
    public = certificates.as_pem(certificates.public_of(private))
    return {
        "flwr-public-key": b64encode(public).decode(),
        "flwr-timestamp": at,
        "flwr-signature": b64encode(signature).decode(),
    }
