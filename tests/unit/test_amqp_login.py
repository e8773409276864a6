"""Does a login that is refused show, and does a connection end with its token?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pamqp import encode
from pamqp import frame as frames
from structlog.testing import capture_logs

from onelog.base.clock import SystemClock
from onelog.protocols.amqp.connection import Connection as AmqpConnection
from onelog.security.authenticator import Authenticator, SecuritySettings
from onelog.security.tokens import TokenSettings
from tests.conformance.amqp_raw import Connection, Ended, Raw, Refused
from tests.support.amqp import Node, serving
from tests.unit.test_security_tokens import KEY, sign, write_keys


async def on(node: Node, work: Callable[[Raw], Any]) -> Any:
    def run() -> Any:
        with Raw(node.port) as raw:
            return work(raw)

    async with asyncio.timeout(30):
        return await asyncio.to_thread(run)


@contextlib.asynccontextmanager
async def with_tokens(node: Node, path: Path):
    keys = write_keys(path / "jwks.json", KEY)
    tokens = TokenSettings(jwks_file=keys, issuer="us", audience="broker")
    settings = SecuritySettings(tokens=tokens)
    node.hub.authenticator = await Authenticator.open(node.broker.store, SystemClock(), settings)
    yield
    await node.hub.authenticator.close()


def token(seconds: float) -> str:
    return sign(SystemClock(), exp=int(time.time()) + seconds)  # type: ignore[arg-type]


async def test_a_connection_ends_with_its_token(tmp_path):
    async with serving(tmp_path) as node, with_tokens(node, tmp_path):

        def work(raw: Raw) -> None:
            raw.open(user="any", password=token(2)).channel().sync()
            with pytest.raises(Refused, match="CONNECTION_FORCED - the token has expired"):
                raw.expect(0, Connection.UpdateSecretOk, 10)

        await on(node, work)


async def test_a_token_that_is_renewed_keeps_the_connection(tmp_path):
    async with serving(tmp_path) as node, with_tokens(node, tmp_path):

        def work(raw: Raw) -> None:
            channel = raw.open(user="any", password=token(2)).channel()
            raw.send(0, Connection.UpdateSecret(new_secret=token(60), reason="renew"))
            raw.expect(0, Connection.UpdateSecretOk)
            time.sleep(2.5)
            channel.sync()

        await on(node, work)


@pytest.mark.parametrize("secret", ["wrong", "a.b.c", ""])
async def test_a_token_is_not_renewed_with_something_else(tmp_path, secret):
    async with serving(tmp_path) as node, with_tokens(node, tmp_path):

        def work(raw: Raw) -> None:
            raw.open(user="any", password=token(60))
            raw.send(0, Connection.UpdateSecret(new_secret=secret, reason="renew"))
            with pytest.raises(Refused) as refused:
                raw.expect(0, Connection.UpdateSecretOk)
            assert refused.value.short == "connection 530"

        await on(node, work)


@pytest.mark.parametrize("told", [True, False])
async def test_a_refused_login_is_logged_with_its_name(tmp_path, told):
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> None:
            capabilities = {"authentication_failure_close": told}
            with pytest.raises((Refused, Ended)):
                raw.open(user="mallory", password="guess", capabilities=capabilities)

        with capture_logs() as lines:
            await on(node, work)
        (line,) = [row for row in lines if row["event"] == "an AMQP login was refused"]
        assert (line["user"], line["mechanism"]) == ("mallory", "PLAIN")
        assert line["peer"].startswith("127.0.0.1:")
        assert "guess" not in str(lines)


async def test_lines_of_a_connection_name_its_user(tmp_path):
    async with serving(tmp_path) as node:
        await node.hub.authenticator.users.add("alice", "secret")

        def work(raw: Raw) -> None:
            raw.open(user="alice", password="secret")
            raw.send_frame(9, 0, b"")
            with pytest.raises((Refused, Ended)):
                raw.expect(0, Connection.UpdateSecretOk)

        with capture_logs() as lines:
            await on(node, work)
        (line,) = [row for row in lines if row["event"] == "an AMQP connection is closed"]
        assert line["user"] == "alice"


@pytest.mark.parametrize("field", ["LOGIN", "PASSWORD"])
@pytest.mark.parametrize("value", [1 << 40, 7, None, {"a": 1}, [300], ["a"], True])
async def test_a_login_that_is_no_text_is_refused_at_once(tmp_path, field, value):
    """A number is not so many bytes, and nobody waits for the answer."""
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> None:
            raw.begin()
            table = {"LOGIN": "guest", "PASSWORD": "guest"} | {field: value}
            response = encode.field_table(table)[4:].decode("utf-8", "surrogateescape")
            with pytest.raises(Refused) as refused:
                raw.log_in(mechanism="AMQPLAIN", response=response)
            assert refused.value.short == "connection 403"

        await on(node, work)


async def test_a_fault_while_a_login_is_checked_is_told(tmp_path):
    async with serving(tmp_path) as node:

        def fault(name: str, secret: bytes) -> None:
            raise RuntimeError("a bug")

        node.hub.authenticator.recall = fault  # type: ignore[method-assign, assignment]

        def work(raw: Raw) -> None:
            with pytest.raises(Refused) as refused:
                raw.open()
            assert refused.value.short == "connection 541"

        await on(node, work)
        assert node.hub.broker.troubles.count("amqp-connection") == 1


async def test_nothing_is_sent_behind_the_close_of_who_did_not_wait_for_the_tune(tmp_path):
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> None:
            raw.begin()
            start_ok = Connection.StartOk(
                client_properties={}, mechanism="PLAIN", response="\0guest\0guest", locale="en_US"
            )
            raw.send_bytes(frames.marshal(start_ok, 0) + frames.marshal(Connection.TuneOk(), 0))
            with pytest.raises(Refused) as refused:
                raw.expect(0, Connection.Tune)
            assert refused.value.short == "connection 504"
            with pytest.raises(Ended):
                raw.expect(0, Connection.Tune)

        await on(node, work)


async def test_one_secret_is_checked_at_a_time(tmp_path):
    async with serving(tmp_path) as node, with_tokens(node, tmp_path):

        def work(raw: Raw) -> None:
            raw.open(user="any", password=token(60))
            update = frames.marshal(Connection.UpdateSecret(new_secret=token(70), reason=""), 0)
            raw.send_bytes(update * 2)
            with pytest.raises(Refused, match="while another one is checked") as refused:
                raw.expect(0, Connection.CloseOk)
            assert refused.value.short == "connection 504"

        await on(node, work)


async def test_secrets_that_are_not_checked_cost_no_task_each(tmp_path, monkeypatch):
    """They are answered as they come: a flood of them must not fill the memory."""
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> None:
            raw.open()
            monkeypatch.setattr(AmqpConnection, "run", None)
            update = frames.marshal(Connection.UpdateSecret(new_secret="x", reason=""), 0)
            raw.send_bytes(update * 3)
            for _ in range(3):
                raw.expect(0, Connection.UpdateSecretOk)

        await on(node, work)
