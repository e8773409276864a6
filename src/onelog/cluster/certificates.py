"""Makes the certificates of inner links: an authority of the cluster's own, and one per node.

Rules: the authority signs nodes of one cluster and nothing else: who has a certificate of it is a
node. Its key is needed only to make certificates and belongs on no node. Keys are EC P-256, files
of keys have mode 0600, and every file is replaced whole, so that a running node never reads half.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from onelog.base.errors import ConfigError
from onelog.cluster.link.security import node_name

CA_FILE: Final = "ca.pem"
CA_KEY_FILE: Final = "ca-key.pem"
CA_DAYS: Final = 3650
_BEFORE: Final = datetime.timedelta(hours=1)
"""Clocks of nodes differ a little."""


def make_certificates(
    folder: Path, nodes: Sequence[int], hosts: Sequence[str], days: int
) -> list[Path]:
    """Certificates and keys of nodes, new ones in place of old ones; all files that were written.

    The authority in the folder signs them; where there is none, it is made. Raises ConfigError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    if not (folder / CA_FILE).exists() and not (folder / CA_KEY_FILE).exists():
        written += _make_authority(folder)
    authority, key = _load_authority(folder)
    for node in nodes:
        written += _make_node(folder, authority, key, node, hosts, days)
    return written


def node_files(folder: Path, node: int) -> tuple[Path, Path]:
    """Where the certificate and the key of a node are."""
    return folder / f"{node_name(node)}.pem", folder / f"{node_name(node)}-key.pem"


def _make_authority(folder: Path) -> list[Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "OneLog cluster")])
    made = (
        _builder(name, key.public_key(), CA_DAYS)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder / CA_KEY_FILE, _pem(key), 0o600)
    _write(folder / CA_FILE, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return [folder / CA_FILE, folder / CA_KEY_FILE]


def _load_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        authority = x509.load_pem_x509_certificate((folder / CA_FILE).read_bytes())
        key = serialization.load_pem_private_key((folder / CA_KEY_FILE).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"the authority in {str(folder)!r} cannot be used ({error}): both {CA_FILE} and"
            f" {CA_KEY_FILE} are needed; in an empty folder a new one is made"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != (
        authority.public_key()
    ):
        raise ConfigError(f"{str(folder / CA_KEY_FILE)!r} is not the key of {CA_FILE} beside it")
    return authority, key


def _make_node(
    folder: Path,
    authority: x509.Certificate,
    signs: ec.EllipticCurvePrivateKey,
    node: int,
    hosts: Sequence[str],
    days: int,
) -> list[Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_name(node))])
    names: list[x509.GeneralName] = [x509.DNSName(node_name(node)), *map(_general, hosts)]
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    made = (
        _builder(name, key.public_key(), days)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key()), critical=False
        )
        .sign(signs, hashes.SHA256())
    )
    cert_file, key_file = node_files(folder, node)
    _write(key_file, _pem(key), 0o600)
    _write(cert_file, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return [cert_file, key_file]


def _builder(name: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as out:
        os.fchmod(out.fileno(), mode)
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)
