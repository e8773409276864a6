"""Long requests that are gathered in one buffer, on both kernels, fed by calls and by a socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import pytest

FRAME = bytes(range(256)) * 2048  # 512 KiB
BEGUN = 1000


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


class Taker:
    """Notes what a `FrameInput` hands on; the first `begin` reads begin a long frame."""

    def __init__(self, kernel: Any, begin: int = 0) -> None:
        self.input = kernel.FrameInput(self.take_read, self.take_frame)
        self.reads: list[bytes] = []
        self.frames: list[tuple[bytes, int]] = []
        self.begin = begin
        self.changed = asyncio.Event()

    def take_read(self, data: bytes) -> None:
        assert type(data) is bytes
        if self.begin:
            self.begin -= 1
            self.input.expect(data, len(FRAME))
        else:
            self.reads.append(data)
        self.changed.set()

    def take_frame(self, frame: bytearray, gathered: int) -> None:
        assert type(frame) is bytearray
        self.frames.append((bytes(frame), gathered))
        self.changed.set()


def test_what_is_not_expected_goes_on_as_it_came(kernel) -> None:
    taker = Taker(kernel)
    taker.input.receive(b"one")
    taker.input.receive(b"two")
    assert taker.reads == [b"one", b"two"]
    assert not taker.input.has_moved()


@pytest.mark.parametrize("step", [1000, 65_536, len(FRAME)])
def test_a_frame_is_whole_however_it_is_read_and_the_rest_goes_on(kernel, step: int) -> None:
    taker = Taker(kernel)
    taker.input.expect(memoryview(FRAME)[:BEGUN], len(FRAME))
    data = FRAME[BEGUN:] + b"behind"
    for at in range(0, len(data), step):
        taker.input.receive(data[at : at + step])
    assert taker.frames == [(FRAME, len(FRAME) - BEGUN)]
    assert b"".join(taker.reads) == b"behind"


def test_a_read_may_end_one_long_frame_and_begin_the_next(kernel) -> None:
    taker = Taker(kernel, begin=1)
    taker.input.expect(FRAME[:-10], len(FRAME))
    taker.input.receive(FRAME[-10:] + FRAME[:BEGUN])
    taker.input.receive(FRAME[BEGUN:])
    assert taker.frames == [(FRAME, 10), (FRAME, len(FRAME) - BEGUN)]


def test_a_frame_that_grows_has_moved_and_one_that_does_not_has_not(kernel) -> None:
    taker = Taker(kernel)
    taker.input.expect(b"x", 100)
    assert taker.input.has_moved()
    assert not taker.input.has_moved()
    taker.input.receive(b"y")
    assert taker.input.has_moved()


def test_a_frame_shorter_than_its_beginning_is_refused(kernel) -> None:
    with pytest.raises(ValueError, match="more than a frame"):
        kernel.FrameInput(print, print).expect(b"xyz", 2)


def test_after_the_end_nothing_is_handed_on(kernel) -> None:
    taker = Taker(kernel)
    taker.input.expect(b"x", 2)
    taker.input.end()
    taker.input.receive(b"yz")
    assert taker.frames == []
    assert taker.reads == []


class Protocol:
    """A connection of a set whose reads go to a taker."""

    def __init__(self, taker: Taker) -> None:
        self.data_received: Callable[[bytes], None] = taker.input.receive
        self.lost = asyncio.Event()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self.lost.set()


async def one_connection(kernel: Any, taker: Taker, sent: bytes) -> None:
    loop = asyncio.get_running_loop()
    sockets = kernel.SocketSet(loop)
    ours, peer = socket.socketpair()
    peer.setblocking(False)
    protocol = Protocol(taker)
    sockets.add(ours.detach(), protocol, None)
    with contextlib.suppress(ConnectionError):
        await loop.sock_sendall(peer, sent)
    peer.close()
    await protocol.lost.wait()
    sockets.close()


def test_a_socket_fills_long_frames_and_what_is_between_them_goes_on(kernel) -> None:
    async def run() -> None:
        taker = Taker(kernel, begin=1)
        # The first read begins the frame, however long it is.
        await asyncio.wait_for(one_connection(kernel, taker, FRAME + b"behind"), 20)
        assert [frame for frame, _gathered in taker.frames] == [FRAME]
        assert b"".join(taker.reads) == b"behind"

    asyncio.run(run())


def test_a_peer_that_goes_in_the_middle_of_a_frame_leaves_no_frame(kernel) -> None:
    async def run() -> None:
        taker = Taker(kernel, begin=1)
        await asyncio.wait_for(one_connection(kernel, taker, FRAME[:-1]), 20)
        assert taker.frames == []
        assert taker.reads == []

    asyncio.run(run())
