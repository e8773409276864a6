"""The control socket: who is heard, what is bounded, and that commands arrive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat

import pytest

from onelog.base.clock import SystemClock
from onelog.base.commands import Commands
from onelog.base.errors import AlreadyExists, InvalidRequest, NotFound, OnelogError, Unavailable
from onelog.metadata.local import LocalStore
from onelog.net import control
from onelog.net.control import FILE_NAME, REQUEST_BYTES_MAX, ControlServer, call
from onelog.security.commands import (
    AddUser,
    Answer,
    ListUsers,
    RemoveUser,
    SetDisabled,
    SetPassword,
    decode_answer,
    encode_command,
    run_command,
)
from onelog.security.hashing import HashThreads
from onelog.security.users import Users


@contextlib.asynccontextmanager
async def served(data_dir, handler):
    server = ControlServer(data_dir, handler)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def echo(request: bytes, uid: int = 0) -> bytes:
    return request.strip().upper()


def connected(data_dir) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    with control._short(data_dir) as name:
        sock.connect(name)
    return sock


async def test_a_message_gets_its_answer(tmp_path):
    async with served(tmp_path, echo):
        assert await asyncio.to_thread(call, tmp_path, b"hello") == b"HELLO"


async def test_only_the_owner_can_open_the_socket_and_it_goes_with_the_server(tmp_path):
    old = os.umask(0)
    try:
        async with served(tmp_path, echo):
            mode = (tmp_path / FILE_NAME).stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o600
    finally:
        os.umask(old)
    assert not (tmp_path / FILE_NAME).exists()


async def test_a_peer_of_another_user_is_not_heard(tmp_path, monkeypatch):
    async with served(tmp_path, echo):
        monkeypatch.setattr(control, "_user_of", lambda _writer: 2**31 - 2)
        with pytest.raises(Unavailable):
            await asyncio.to_thread(call, tmp_path, b"hello")


async def test_a_socket_that_a_killed_server_left_is_replaced(tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / FILE_NAME))
    with pytest.raises(Unavailable, match="takes no commands"):
        call(tmp_path, b"hello")
    async with served(tmp_path, echo):
        assert await asyncio.to_thread(call, tmp_path, b"hello") == b"HELLO"


async def test_a_data_directory_with_a_long_name_works(tmp_path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with served(deep, echo):
        assert await asyncio.to_thread(call, deep, b"hello") == b"HELLO"


async def test_a_message_without_an_end_is_bounded(tmp_path):
    """I8."""
    asked = []
    async with served(tmp_path, lambda message, _uid: asked.append(message)):
        with connected(tmp_path) as sock:
            await asyncio.to_thread(flood, sock)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.to_thread(sock.recv, 1) == b""
    assert asked == []


def flood(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for _ in range(64):
            sock.sendall(b"x" * REQUEST_BYTES_MAX)


async def test_connections_are_bounded(tmp_path, monkeypatch):
    """I8."""
    monkeypatch.setattr(control, "CONNECTIONS_MAX", 2)
    async with served(tmp_path, echo):
        with connected(tmp_path), connected(tmp_path), pytest.raises(Unavailable):
            await asyncio.to_thread(call, tmp_path, b"hello")


async def test_closing_ends_a_command_that_runs(tmp_path):
    started = asyncio.Event()

    async def forever(_request: bytes, _uid: int) -> bytes:
        started.set()
        await asyncio.Event().wait()
        return b""

    async with served(tmp_path, forever) as server:
        asking = asyncio.ensure_future(asyncio.to_thread(call, tmp_path, b"hello"))
        await started.wait()
        await server.close()
        with pytest.raises(Unavailable):
            await asking


async def test_without_a_server_the_call_says_so(tmp_path):
    with pytest.raises(Unavailable, match="takes no commands"):
        call(tmp_path, b"hello")


async def test_users_are_changed_through_the_socket(tmp_path):
    store = await LocalStore.open(tmp_path / "metadata.db", SystemClock())
    threads = HashThreads()
    users = Users(store, threads, SystemClock())

    async def ask(command) -> Answer:
        return decode_answer(await asyncio.to_thread(call, tmp_path, encode_command(command)))

    async with served(tmp_path, lambda message, _uid: run_command(users, message)):
        await ask(AddUser(name="bob", password='pen"cil \\n é'))
        with pytest.raises(AlreadyExists, match="'bob' exists"):
            await ask(AddUser(name="bob", password="long enough"))
        for weak in (
            AddUser(name="ann", password="seven77"),
            SetPassword(name="bob", password="B"),
        ):
            with pytest.raises(InvalidRequest, match="at least 8 characters"):
                await ask(weak)
        await ask(SetPassword(name="bob", password="crayon-1"))
        await ask(SetDisabled(name="bob", disabled=True))
        (bob,) = (await ask(ListUsers())).users
        assert (bob.name, bob.disabled) == ("bob", True)
        await ask(RemoveUser(name="bob"))
        with pytest.raises(NotFound):
            await ask(RemoveUser(name="bob"))
    await threads.close()
    await store.close()


@pytest.mark.parametrize(
    "message", [b"", b"{}", b"[]", b'{"type":"user.fly"}', b'{"type":"user.add"}', b"\xff"]
)
async def test_a_command_that_is_not_understood_is_an_error_and_nothing_else(message):
    with pytest.raises(InvalidRequest, match="not understood"):
        decode_answer(await run_command(None, message))


@pytest.mark.parametrize("message", [b"", b"[]", b"\xff", b'{"type":7}'])
async def test_a_message_that_is_no_command_reaches_nobody(message):
    with pytest.raises(InvalidRequest, match="not understood"):
        decode_answer(await Commands({}).run(message))


async def test_a_command_goes_to_the_room_of_its_subject_and_to_no_other():
    commands = Commands({"user": echo})
    assert await commands.run(b'{"type":"user.fly"}') == b'{"TYPE":"USER.FLY"}'
    for message in (b'{"type":"users.fly"}', b'{"type":""}', b"{}"):
        with pytest.raises(InvalidRequest, match="no command is about"):
            decode_answer(await commands.run(message))


def test_an_error_of_a_newer_server_is_still_an_error():
    with pytest.raises(OnelogError, match="strange"):
        decode_answer(b'{"error":"NewKind","message":"strange"}')
    with pytest.raises(InvalidRequest):
        decode_answer(b"what?")
