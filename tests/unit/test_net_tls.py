"""TLS contexts: errors that name the file, and certificates that change while running."""

from __future__ import annotations

import ssl

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from onelog.base.clock import ManualClock
from onelog.base.errors import ConfigError
from onelog.net import Tls, TlsSettings
from onelog.net.tls import CHECK_INTERVAL_S, server_context


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path, authority):
    leaf = authority.issue_cert("localhost")
    write(tmp_path, leaf)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path


def write(directory, leaf) -> None:
    (directory / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    (directory / "key.pem").write_bytes(leaf.private_key_pem.bytes())


def settings(directory, **changes) -> TlsSettings:
    return TlsSettings(
        cert_file=str(directory / "cert.pem"), key_file=str(directory / "key.pem"), **changes
    )


def test_a_context_takes_tls_1_2_at_least_and_asks_for_no_certificate(files):
    context = server_context(settings(files))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE


def test_the_least_version_can_be_raised(files):
    context = server_context(settings(files, version_min="1.3"))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("mode", "verify"), [("optional", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)]
)
def test_client_certificates_are_verified_against_the_ca(files, mode, verify):
    chosen = settings(files, client_cert=mode, client_ca_file=str(files / "ca.pem"))
    context = server_context(chosen)
    assert context.verify_mode == verify
    assert len(context.get_ca_certs()) == 1


def broken_cases():
    def missing(files):
        (files / "cert.pem").unlink()

    def directory(files):
        (files / "key.pem").unlink()
        (files / "key.pem").mkdir()

    def swapped(files):
        text = (files / "cert.pem").read_bytes()
        (files / "cert.pem").write_bytes((files / "key.pem").read_bytes())
        (files / "key.pem").write_bytes(text)

    def no_key(files):
        (files / "key.pem").write_text("hello")

    def other_key(files):
        other = trustme.CA().issue_cert("localhost")
        (files / "key.pem").write_bytes(other.private_key_pem.bytes())

    def locked_key(files):
        key = serialization.load_pem_private_key((files / "key.pem").read_bytes(), None)
        (files / "key.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )

    return [
        (missing, r"mqtts\.cert_file = .*cert\.pem.*No such file"),
        (directory, r"mqtts\.key_file = .*key\.pem.*Is a directory"),
        (swapped, r"mqtts\.cert_file = .*cert\.pem.*no certificate"),
        (no_key, r"mqtts\.key_file = .*key\.pem.*no private key"),
        (other_key, r"mqtts\.key_file = .*is not the key of the certificate"),
        (locked_key, r"mqtts\.key_file = .*has a password"),
    ]


@pytest.mark.parametrize(
    ("spoil", "message"), broken_cases(), ids=[case[0].__name__ for case in broken_cases()]
)
def test_a_file_that_cannot_be_used_is_named_with_the_problem(files, spoil, message):
    spoil(files)
    with pytest.raises(ConfigError, match=message):
        server_context(settings(files), "mqtts")


def test_client_certificates_without_a_ca_are_refused(files):
    with pytest.raises(ConfigError, match=r"needs tls\.client_ca_file"):
        server_context(settings(files, client_cert="required"))


def test_a_ca_file_without_certificates_is_named(files):
    (files / "ca.pem").write_text("nothing")
    chosen = settings(files, client_cert="required", client_ca_file=str(files / "ca.pem"))
    with pytest.raises(ConfigError, match=r"client_ca_file = .*ca\.pem.*no certificates"):
        server_context(chosen)


def test_a_renewed_certificate_is_taken_without_a_restart(files, authority):
    clock = ManualClock()
    tls = Tls(settings(files), clock)
    first = tls.context
    write(files, authority.issue_cert("localhost", "renewed.example"))
    assert tls.context is first  # the files are not looked at for each connection
    clock.advance(CHECK_INTERVAL_S)
    assert tls.context is not first
    assert tls.reloads == 1


def test_renewed_files_that_cannot_be_used_leave_the_old_ones_in_place(files, authority):
    clock = ManualClock()
    tls = Tls(settings(files), clock)
    first = tls.context
    (files / "cert.pem").write_text("half a file")
    clock.advance(CHECK_INTERVAL_S)
    assert tls.context is first
    write(files, authority.issue_cert("localhost"))
    clock.advance(CHECK_INTERVAL_S)
    assert tls.context is not first
