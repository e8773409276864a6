"""SCRAM against the RFC's own example and a client written from the RFC."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.errors import NotAuthenticated, ProtocolViolation
from onelog.security.identity import Identity
from onelog.security.scram import (
    MECHANISMS,
    MESSAGE_BYTES_MAX,
    Account,
    ScramCredential,
    ScramExchange,
    make_credential,
)

SECRET = bytes(32)
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ACCOUNTS = {item: Account("bob", 7, make_credential(item, "pencil")) for item in MECHANISMS}


def find(name, mechanism):
    return ACCOUNTS[mechanism] if name == "bob" else None


class Client:
    """RFC 5802, section 3, with nothing but hashlib."""

    def __init__(self, mechanism: str, name: str, password: str) -> None:
        self.hash = HASHES[mechanism]
        self.password = password.encode()
        self.nonce = secrets.token_hex(12)
        self.bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={self.nonce}"

    def first(self) -> bytes:
        return f"n,,{self.bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) > len(self.nonce) + 16
        salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(self.hash, self.password, salt, rounds)
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        stored_key = hashlib.new(self.hash, client_key).digest()
        without_proof = f"c=biws,r={fields['r']}"
        message = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(stored_key, message, self.hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self.hash)
        self.server_final = b"v=" + base64.b64encode(hmac.digest(server_key, message, self.hash))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def exchange(mechanism: str = "SCRAM-SHA-256", look=find) -> ScramExchange:
    return ScramExchange(mechanism, look, SECRET)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_right_password_logs_in_and_the_server_proves_itself(mechanism):
    client, server = Client(mechanism, "bob", "pencil"), exchange(mechanism)
    final = client.final(server.step(client.first()))
    assert not server.done
    assert server.step(final) == client.server_final
    assert server.done
    assert server.identity == Identity("bob", "scram", 7)


def test_the_example_of_rfc_7677():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    credential = ScramCredential(
        salt,
        4096,
        hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest(),
        hmac.digest(salted, b"Server Key", "sha256"),
    )
    server = ScramExchange(
        "SCRAM-SHA-256",
        lambda name, _: Account(name, 1, credential),
        SECRET,
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    )
    assert server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert (
        server.step(
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        )
        == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("bob", "pencils"), ("eve", "pencil")])
def test_a_wrong_password_and_an_unknown_user_fail_in_the_same_way(mechanism, name, password):
    client, server = Client(mechanism, name, password), exchange(mechanism)
    final = client.final(server.step(client.first()))
    with pytest.raises(NotAuthenticated, match="wrong name or password"):
        server.step(final)
    assert server.refusal == b"e=invalid-proof"
    assert server.identity is None


def salt_of(name: str, mechanism: str = "SCRAM-SHA-256", secret: bytes = SECRET) -> bytes:
    server = ScramExchange(mechanism, find, secret)
    answer = server.step(f"n,,n={name},r=abc".encode())
    return dict(part.split(b"=", 1) for part in answer.split(b","))[b"s"]


def test_an_unknown_user_always_gets_the_same_salt_of_the_usual_size():
    assert salt_of("eve") == salt_of("eve")
    assert salt_of("eve") != salt_of("mallory")
    assert salt_of("eve") != salt_of("eve", "SCRAM-SHA-512")
    assert salt_of("eve") != salt_of("eve", secret=b"x" * 32)
    assert len(salt_of("eve")) == len(salt_of("bob"))


def test_two_logins_have_different_nonces():
    first, second = (exchange().step(b"n,,n=bob,r=abc") for _ in range(2))
    assert first != second


def test_a_name_with_comma_and_equals_sign_is_unescaped():
    seen = []
    server = exchange(look=lambda name, _: seen.append(name))
    server.step(b"n,,n=a=2Cb=3Dc,r=abc")
    assert seen == ["a,b=c"]


def test_a_name_is_prepared_before_it_is_looked_up():
    seen = []
    exchange(look=lambda name, _: seen.append(name)).step("n,,n=\u2168,r=abc".encode())
    assert seen == ["IX"]


def test_a_user_that_changes_between_the_steps_does_not_log_in():
    accounts = {"now": ACCOUNTS["SCRAM-SHA-256"]}
    server = exchange(look=lambda _name, _mechanism: accounts["now"])
    client = Client("SCRAM-SHA-256", "bob", "pencil")
    final = client.final(server.step(client.first()))
    accounts["now"] = accounts["now"]._replace(revision=8)
    with pytest.raises(NotAuthenticated):
        server.step(final)
    assert not server.done


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=bob",
        b"n,,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=bob,r=",
        b"n,,n=bob,r=a\x7fc",
        b"n,,n=b=41b,r=abc",
        b"n,,m=x,n=bob,r=abc",
        b"n,a=root,n=bob,r=abc",
        b"p=tls-unique,,n=bob,r=abc",
        b"x,,n=bob,r=abc",
        b"n,,n=bob,n=eve,r=abc",
        b"\xff\xfe",
        b"n,,n=\xc3\x28,r=abc",
        "n,,n=\ue000,r=abc".encode(),
    ],
)
def test_a_first_message_that_is_wrong_ends_the_login(message):
    server = exchange()
    with pytest.raises(NotAuthenticated):
        server.step(message)
    assert server.refusal.startswith(b"e=")
    with pytest.raises(ProtocolViolation):
        server.step(b"n,,n=bob,r=abc")


def test_a_message_over_the_limit_is_refused():
    with pytest.raises(NotAuthenticated, match="at most"):
        exchange().step(b"n,,n=bob,r=" + b"x" * MESSAGE_BYTES_MAX)


@pytest.mark.parametrize("change", ["nonce", "binding", "proof-size", "no-proof"])
def test_a_final_message_that_was_tampered_with_is_refused(change):
    client, server = Client("SCRAM-SHA-256", "bob", "pencil"), exchange()
    final = client.final(server.step(client.first()))
    head, _, proof = final.rpartition(b",p=")
    wrong = {
        "nonce": head + b"x,p=" + proof,
        "binding": final.replace(b"c=biws", b"c=eSws"),
        "proof-size": head + b",p=AAAA",
        "no-proof": head,
    }[change]
    with pytest.raises(NotAuthenticated):
        server.step(wrong)
    assert not server.done


def test_there_is_no_step_after_success():
    client, server = Client("SCRAM-SHA-256", "bob", "pencil"), exchange()
    server.step(client.final(server.step(client.first())))
    with pytest.raises(ProtocolViolation):
        server.step(client.first())


@given(st.lists(st.binary(max_size=80), max_size=3))
def test_any_bytes_are_refused_and_nothing_else(messages):
    """I10."""
    server = exchange()
    for message in messages:
        try:
            server.step(message)
        except (NotAuthenticated, ProtocolViolation):
            continue
    assert not server.done


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_in_the_fields_is_refused_and_nothing_else(name, rest):
    """I10."""
    server = exchange()
    try:
        server.step(f"n,,n={name},r=abc{rest}".encode("utf-8", "surrogatepass"))
        server.step(f"c=biws,r=abc{rest},p={name}".encode("utf-8", "surrogatepass"))
    except (NotAuthenticated, ProtocolViolation):
        pass
    assert not server.done
