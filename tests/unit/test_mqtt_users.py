"""A user that changes loses the connections that were made with what it was."""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.errors import NotAuthenticated
from onelog.protocols.mqtt.packets import Connack, Connect, Disconnect
from tests.support.mqtt import Client, Node, dial, serving

ALICE = {"username": "alice", "password": b"secret-1"}


async def change_password(node: Node) -> None:
    await node.hub.authenticator.users.set_password("alice", "secret-2")


async def disable(node: Node) -> None:
    await node.hub.authenticator.users.set_disabled("alice", True)


async def remove(node: Node) -> None:
    await node.hub.authenticator.users.remove("alice")


@pytest.mark.parametrize("change", [change_password, disable, remove])
async def test_a_user_that_is_changed_or_removed_loses_its_connections(tmp_path, change):
    async with serving(tmp_path) as node:
        users = node.hub.authenticator.users
        await users.add("alice", "secret-1")
        await users.add("bob", "secret-1")
        new = await node.client("new", **ALICE)
        old = await node.client("old", version=4, **ALICE)
        others = [
            await node.client("bob", username="bob", password=b"secret-1"),
            await node.client("nobody"),
        ]
        await change(node)
        told = await new.receive(Disconnect)
        assert told.reason == 0x98
        assert "alice" in (told.properties.reason_string or "")
        with pytest.raises(asyncio.IncompleteReadError):
            await old.receive(Disconnect)
        for client in others:
            await client.sync()


async def test_a_client_that_is_logging_in_while_its_user_is_removed_is_refused(tmp_path):
    """The password was right, and the session is being made."""
    async with serving(tmp_path) as node:
        users, sessions = node.hub.authenticator.users, node.broker.sessions
        await users.add("alice", "secret-1")
        entered, attach = asyncio.Event(), sessions.attach

        async def slow_attach(*args, **options):
            entered.set()
            await removed.wait()
            return await attach(*args, **options)

        removed = asyncio.Event()
        sessions.attach = slow_attach
        reader, writer = await dial(node.port)
        client = Client(reader, writer, 5)
        await client.send(Connect(client_id="c", version=5, **ALICE))
        await entered.wait()
        await users.remove("alice")
        removed.set()
        assert (await client.receive(Connack)).reason == 0x86
        await client.drop()
        await node.gone("c")
        assert "c" not in node.hub.sessions
        with pytest.raises(NotAuthenticated):
            await node.hub.authenticator.password("alice", b"secret-1")


@pytest.mark.parametrize(("version", "code"), [(5, 0x85), (4, 0x85)])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("connected", [False, True])
async def test_a_session_is_the_users_who_made_it(tmp_path, version, code, clean, connected):
    """Nobody else gets its backlog, its subscriptions or its connection; anonymous is one user."""
    async with serving(tmp_path) as node:
        users = node.hub.authenticator.users
        await users.add("alice", "secret-1")
        await users.add("bob", "secret-1")
        mine = await node.client("c", clean=False, expiry_s=600, **ALICE)
        await mine.subscribe("t", 1)
        if not connected:
            await mine.drop()
            await node.gone("c")
        for login in ({"username": "bob", "password": b"secret-1"}, {}):
            reader, writer = await dial(node.port)
            thief = Client(reader, writer, version)
            node.clients.append(thief)
            await thief.send(Connect(client_id="c", version=version, clean_start=clean, **login))
            assert (await thief.receive(Connack)).reason == code
        if connected:
            await mine.sync()
        again = await node.client("c", clean=False, expiry_s=600, **ALICE)
        assert again.connack.session_present
        await again.publish("t", "still mine")
        assert await again.take() == ["still mine"]
