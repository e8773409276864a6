"""What both kernels promise about sockets of our own, over real connections and on both loops."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="the system has no epoll")

READ_MAX = 256 * 1024
READS_MAX = 4


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts its passes: a set that wakes for nothing would spin it."""

    passes = 0

    def _run_once(self):
        self.passes += 1
        super()._run_once()


LOOPS = {"asyncio": CountingLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["pure", "_native"])
def kernel(request):
    """The kernel, interpreted and compiled; skipped where it was not built."""
    return pytest.importorskip(f"onelog.kernel.{request.param}", exc_type=ImportError)


@pytest.fixture(params=["epoll", "io_uring"])
def make_set(request, kernel):
    """Makes a set, whose sends go by io_uring in one of the two cases: all of them."""
    if request.param == "epoll":
        return kernel.SocketSet
    try:
        kernel.probe_ring()
    except OSError as error:
        pytest.skip(f"no ring: {error}")
    return lambda loop: kernel.SocketSet(loop, 1)


@pytest.fixture(params=sorted(LOOPS))
def run(request, make_set):
    """Runs a test on a loop, with a set. No error may go unseen, and nothing may stay open."""

    def on_loop(test: Callable[[Bench], Any]) -> None:
        seen: list[dict[str, Any]] = []

        async def main() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: seen.append(context))
            bench = Bench(make_set(loop))
            async with asyncio.timeout(20):
                await test(bench)
            await bench.end()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.get_loop()
            before = open_files()
            runner.run(main())
            assert open_files() == before
        assert not seen

    return on_loop


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Noted:
    """A protocol that notes its calls; `on_data` acts in its place."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.received: list[bytes] = []
        self.transport: Any = None
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        self.on_data: Callable[[bytes], None] = lambda _data: None
        self.stays = False
        self.fails_in = ""
        self.faults: list[tuple[str, str]] = []

    def faulted(self, method: str, error: Exception) -> None:
        self.faults.append((method, str(error)))

    def note(self, call: str) -> None:
        self.calls.append(call)
        self.changed.set()
        if self.fails_in == call:
            raise ValueError(f"a fault in {call}")

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        assert data
        self.received.append(data)
        self.note("data")
        self.on_data(data)

    def eof_received(self) -> bool:
        self.note("eof")
        return self.stays

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")

    def connection_lost(self, error: Exception | None) -> None:
        assert not self.lost.done()
        self.lost.set_result(error)
        self.note("lost")

    @property
    def text(self) -> bytes:
        return b"".join(self.received)


class Bench:
    """A set, and connections of which it has one end."""

    def __init__(self, sockets: Any) -> None:
        self.set = sockets
        self.loop = asyncio.get_running_loop()
        self.made: list[Noted] = []
        self.peers: list[socket.socket] = []

    def connect(self, room: int = 0) -> tuple[Noted, socket.socket]:
        """A connection whose ends have small buffers, if `room` says so, and its peer."""
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            peer = socket.socket()
            if room:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
            peer.connect(listening.getsockname())
            peer.setblocking(False)
            fd, address = self.set.accept(listening)
            assert address == peer.getsockname()
            listening.setblocking(False)
            assert self.set.accept(listening) is None
        noted = Noted()
        noted.transport = self.set.add(fd, noted, address)
        self.made.append(noted)
        self.peers.append(peer)
        return noted, peer

    async def read(self, peer: socket.socket, size: int) -> bytes:
        """So many bytes, or fewer at the end of the stream."""
        found = bytearray()
        while len(found) < size:
            data = await self.loop.sock_recv(peer, min(size - len(found), 65_536))
            if not data:
                break
            found += data
        return bytes(found)

    async def passes(self, count: int = 3) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for noted in self.made:
            noted.transport.abort()
            with contextlib.suppress(Exception):
                await noted.lost
        await self.passes()
        self.set.close()
        assert self.set.is_closed
        for peer in self.peers:
            peer.close()


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


BLOB = bytes(range(256)) * 8192  # 2 MiB


# -- reading


def test_packets_that_came_together_are_one_read(run):
    async def main(bench):
        noted, peer = bench.connect()
        for packet in (b"one", b"two", b"three"):
            peer.send(packet)
        await noted.until(lambda: noted.text == b"onetwothree")
        assert noted.received == [b"onetwothree"]
        peer.send(b"more")
        await noted.until(lambda: len(noted.received) == 2)

    run(main)


def test_many_bytes_come_whole_and_in_order(run):
    async def main(bench):
        noted, peer = bench.connect()
        await bench.loop.sock_sendall(peer, BLOB)
        await noted.until(lambda: len(noted.text) == len(BLOB))
        assert noted.text == BLOB
        assert max(map(len, noted.received)) <= READ_MAX

    run(main)


def test_a_flood_leaves_the_others_their_turn(run):
    async def main(bench):
        flood, fed = bench.connect()
        quiet, peer = bench.connect()
        order = []
        flood.on_data = lambda _data: order.append("flood")
        quiet.on_data = lambda _data: order.append("quiet")
        sending = asyncio.create_task(bench.loop.sock_sendall(fed, BLOB * 4))
        await flood.until(lambda: len(flood.received) > 0)
        at = len(order)
        peer.send(b"x")
        await quiet.until(lambda: bool(quiet.received))
        assert order[at:].count("flood") <= 3 * READS_MAX  # of wake-ups before it was there
        await sending
        await flood.until(lambda: len(flood.text) == len(BLOB) * 4)

    run(main)


def test_a_pause_holds_back_what_comes_and_loses_nothing(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.transport.pause_reading()
        noted.transport.pause_reading()
        assert not noted.transport.is_reading()
        peer.send(b"early")
        await bench.passes(10)
        assert noted.calls == []
        noted.transport.resume_reading()
        noted.transport.resume_reading()
        assert noted.transport.is_reading()
        await noted.until(lambda: noted.text == b"early")
        noted.transport.pause_reading()
        noted.transport.resume_reading()  # in the same pass: nothing has changed
        peer.send(b"late")
        await noted.until(lambda: noted.text == b"earlylate")

    run(main)


def test_a_protocol_may_pause_in_the_middle_of_its_read(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.on_data = lambda _data: noted.transport.pause_reading()
        await bench.loop.sock_sendall(peer, bytes(2 * READ_MAX))
        await noted.until(lambda: bool(noted.received))
        await bench.passes(10)
        assert len(noted.received) == 1
        noted.on_data = lambda _data: None
        noted.transport.resume_reading()
        await noted.until(lambda: len(noted.text) == 2 * READ_MAX)

    run(main)


def test_another_protocol_can_be_set(run):
    async def main(bench):
        first, peer = bench.connect()
        second = Noted()
        first.transport.set_protocol(second)
        assert first.transport.get_protocol() is second
        peer.send(b"x")
        await second.until(lambda: bool(second.received))
        assert not first.received
        first.transport.set_protocol(first)

    run(main)


# -- writing


def test_what_is_written_in_one_pass_goes_out_together(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.transport.write(b"one")
        noted.transport.writelines([b"two", b"", memoryview(b"three")])
        assert noted.transport.get_write_buffer_size() == 11
        with pytest.raises(BlockingIOError):
            peer.recv(100)
        await bench.passes(2)
        assert peer.recv(100) == b"onetwothree"
        assert noted.transport.get_write_buffer_size() == 0
        assert noted.calls == []

    run(main)


def test_an_answer_to_a_read_needs_no_timer(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.on_data = noted.transport.write
        soon, more = bench.connect()
        soon.on_data = lambda data: bench.loop.call_soon(soon.transport.write, data)
        peer.send(b"x")
        more.send(b"y")
        await noted.until(lambda: bool(noted.received))
        await soon.until(lambda: bool(soon.received))
        await bench.passes()
        assert (peer.recv(9), more.recv(9)) == (b"x", b"y")

    run(main)


def test_a_wake_up_ticks_and_sends_before_the_loop_goes_on(run, kernel):
    async def main(bench):
        passing = kernel.pass_of(bench.loop)
        publisher, sending = bench.connect()
        subscriber, listening = bench.connect()
        order = []

        def tick() -> None:
            order.append("tick")
            subscriber.transport.write(b"message")
            publisher.transport.write(b"answer")

        def data(_data: bytes) -> None:
            bench.loop.call_soon(after)
            passing.call_soon(tick)

        def after() -> None:
            order.append("after")
            order.append(listening.recv(100))
            order.append(sending.recv(100))

        publisher.on_data = data
        sending.send(b"x")
        await publisher.until(lambda: bool(publisher.received))
        await bench.passes()
        assert order == ["tick", "after", b"message", b"answer"]

    run(main)


def test_a_fault_in_a_read_keeps_neither_the_tick_nor_the_answers_of_others(run, kernel):
    async def main(bench):
        passing = kernel.pass_of(bench.loop)
        made = [bench.connect() for _ in range(3)]
        ticks = []

        def tick() -> None:
            ticks.append(1)
            for noted, _peer in made:
                noted.transport.write(b"done")

        def data(_data: bytes) -> None:
            if not ticks:
                passing.call_soon(tick)
            raise ValueError("a fault in a read")

        made[0][0].on_data = made[1][0].on_data = data
        for _noted, peer in made:
            peer.send(b"x")
        assert str(await made[0][0].lost) == "a fault in a read"
        await made[2][0].until(lambda: bool(made[2][0].received))
        assert await bench.read(made[2][1], 4) == b"done"
        assert await bench.read(made[0][1], 4) == b""
        assert made[0][0].faults == [("data_received", "a fault in a read")]

    run(main)


@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_connection_may_end_while_its_answer_is_collected(run, kernel, how):
    async def main(bench):
        passing = kernel.pass_of(bench.loop)
        noted, peer = bench.connect()
        other, listening = bench.connect()

        def tick() -> None:
            noted.transport.write(b"answer")
            other.transport.write(b"message")
            getattr(noted.transport, how)()

        noted.on_data = lambda _data: passing.call_soon(tick)
        peer.send(b"x")
        assert await noted.lost is None
        assert await bench.read(peer, 9) == (b"answer" if how == "close" else b"")
        assert await bench.read(listening, 7) == b"message"

    run(main)


def test_a_peer_that_is_gone_before_its_answer_harms_nobody_else(run, kernel):
    async def main(bench):
        passing = kernel.pass_of(bench.loop)
        noted, peer = bench.connect()
        other, listening = bench.connect()

        def tick() -> None:
            reset(peer)
            noted.transport.write(b"answer")
            other.transport.write(b"message")

        noted.on_data = lambda _data: passing.call_soon(tick)
        peer.send(b"x")
        assert isinstance(await noted.lost, OSError)
        assert await bench.read(listening, 7) == b"message"

    run(main)


def test_a_tick_in_the_wake_up_of_another_set_is_sent_in_the_same_pass(run, kernel, make_set):
    async def main(bench):
        passing = kernel.pass_of(bench.loop)
        other = Bench(make_set(bench.loop))
        publisher, sending = bench.connect()
        subscriber, listening = other.connect()
        heard = []

        def data(_data: bytes) -> None:
            bench.loop.call_soon(lambda: heard.append(listening.recv(100)))
            passing.call_soon(lambda: subscriber.transport.write(b"message"))

        publisher.on_data = data
        sending.send(b"x")
        await publisher.until(lambda: bool(publisher.received))
        await bench.passes()
        assert heard == [b"message"]
        await other.end()

    run(main)


def test_a_pass_of_many_sends_serves_all_although_some_peers_do_not_read(run):
    """More sends than one call takes, full sockets, many pieces and peers that are gone."""

    async def main(bench):
        made = [bench.connect(4096 if at % 50 == 0 else 0) for at in range(300)]
        gone = {7, 70, 299}
        for at in gone:
            reset(made[at][1])
        await bench.passes()
        for at, (noted, _peer) in enumerate(made):
            if at % 50 == 0:
                noted.transport.write(BLOB[: 1 << 16])
            noted.transport.writelines([b"%d," % at, b"x" * 2000] * (1 + at % 3))
        for at, (noted, peer) in enumerate(made):
            wanted = (b"%d," % at + b"x" * 2000) * (1 + at % 3)
            if at % 50 == 0:
                wanted = BLOB[: 1 << 16] + wanted
            if at in gone:
                await noted.lost
            else:
                assert await bench.read(peer, len(wanted)) == wanted
                assert not noted.lost.done()

    run(main)


def test_more_than_the_high_mark_goes_out_at_once(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.transport.write(bytes(100_000))
        assert noted.transport.get_write_buffer_size() == 0
        assert noted.calls == []
        assert await bench.read(peer, 100_000) == bytes(100_000)

    run(main)


@pytest.mark.parametrize("pieces", [1, 5000], ids=["one piece", "many pieces"])
def test_a_peer_that_does_not_read_pauses_the_protocol_and_gets_everything(run, pieces):
    async def main(bench):
        noted, peer = bench.connect(room=8192)
        size = len(BLOB) // pieces
        chunks = [BLOB[at : at + size] for at in range(0, len(BLOB), size)]
        noted.transport.writelines(chunks)
        assert noted.calls == ["pause"]  # within the call
        waiting = noted.transport.get_write_buffer_size()
        assert 0 < waiting < len(BLOB)
        noted.transport.write(b"more")
        assert noted.transport.get_write_buffer_size() == waiting + 4
        await bench.passes(10)
        assert await bench.read(peer, len(BLOB) + 4) == BLOB + b"more"
        await noted.until(lambda: "resume" in noted.calls)
        assert noted.calls == ["pause", "resume"]
        assert noted.transport.get_write_buffer_size() == 0

    run(main)


def test_who_is_told_to_go_on_may_write_at_once(run):
    async def main(bench):
        noted, peer = bench.connect(room=8192)
        left = 5

        def fill() -> None:
            nonlocal left
            while left and noted.calls.count("pause") == noted.calls.count("resume"):
                left -= 1
                noted.transport.write(BLOB[:500_000])

        noted.resume_writing = lambda: (noted.note("resume"), fill())
        fill()
        assert await bench.read(peer, 2_500_000) == BLOB[:500_000] * 5
        assert left == 0

    run(main)


def test_bytes_are_sent_as_they_were_when_they_were_written(run):
    async def main(bench):
        noted, peer = bench.connect()
        words = bytearray(b"before")
        noted.transport.write(words)
        words[:] = b"after and longer"
        large = bytearray(b"v" * 5000)
        view = memoryview(large)[1000:3000]
        noted.transport.write(view)
        assert await bench.read(peer, 2006) == b"before" + b"v" * 2000
        view.release()
        large.clear()  # nobody has it any more

    run(main)


def test_marks_are_as_asyncio_has_them(run):
    async def main(bench):
        noted, _peer = bench.connect()
        transport = noted.transport
        assert transport.get_write_buffer_limits() == (16_384, 65_536)
        transport.set_write_buffer_limits(1000)
        assert transport.get_write_buffer_limits() == (250, 1000)
        transport.set_write_buffer_limits(low=100)
        assert transport.get_write_buffer_limits() == (100, 400)
        transport.set_write_buffer_limits(high=50, low=50)
        transport.set_write_buffer_limits()
        assert transport.get_write_buffer_limits() == (16_384, 65_536)
        for high, low in ((10, 20), (10, -1)):
            with pytest.raises(ValueError, match="must be"):
                transport.set_write_buffer_limits(high, low)

    run(main)


def test_marks_that_are_lowered_count_for_what_waits(run):
    async def main(bench):
        noted, _peer = bench.connect()
        noted.transport.write(bytes(2000))
        noted.transport.set_write_buffer_limits(high=1000)
        assert noted.calls == ["pause"]
        await noted.until(lambda: noted.calls == ["pause", "resume"])

    run(main)


# -- the end of one direction


@pytest.mark.parametrize("size", [0, 10, len(BLOB)])
def test_the_end_is_said_behind_everything_and_the_peer_is_still_heard(run, size):
    async def main(bench):
        noted, peer = bench.connect(room=8192)
        noted.transport.write(BLOB[:size])
        assert noted.transport.can_write_eof()
        noted.transport.write_eof()
        noted.transport.write_eof()
        with pytest.raises(RuntimeError):
            noted.transport.write(b"x")
        assert await bench.read(peer, size + 1) == BLOB[:size]
        peer.send(b"thank you")
        await noted.until(lambda: noted.text == b"thank you")
        peer.close()
        assert await noted.lost is None
        assert noted.calls[-2:] == ["eof", "lost"]

    run(main)


def test_a_peer_that_sends_no_more_ends_the_connection_after_its_answer(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.on_data = noted.transport.write
        peer.send(b"last")
        peer.shutdown(socket.SHUT_WR)
        assert await bench.read(peer, 100) == b"last"
        assert await noted.lost is None
        assert noted.calls == ["data", "eof", "lost"]

    run(main)


def test_a_protocol_may_stay_when_its_peer_sends_no_more(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.stays = True
        peer.shutdown(socket.SHUT_WR)
        await noted.until(lambda: noted.calls == ["eof"])
        assert not noted.transport.is_reading()
        noted.transport.pause_reading()
        noted.transport.resume_reading()
        await settled(bench)
        assert noted.calls == ["eof"]
        noted.transport.write(b"still here")
        assert await bench.read(peer, 10) == b"still here"

    run(main)


async def settled(bench: Bench) -> None:
    """A while in which nothing is to happen: the loop sleeps."""
    await bench.passes(5)
    before = getattr(bench.loop, "passes", 0)
    await asyncio.sleep(0.05)
    assert getattr(bench.loop, "passes", 0) - before < 10


# -- the end


def test_closing_sends_what_waits_and_drops_what_comes_later(run):
    async def main(bench):
        noted, peer = bench.connect(room=8192)
        noted.transport.write(BLOB)
        noted.transport.close()
        noted.transport.close()
        assert noted.transport.is_closing()
        assert not noted.transport.is_reading()
        waiting = noted.transport.get_write_buffer_size()
        noted.transport.write(b"too late")
        noted.transport.pause_reading()
        noted.transport.resume_reading()
        assert noted.transport.get_write_buffer_size() == waiting > 0
        peer.send(b"nobody hears this")
        await settled(bench)
        assert "lost" not in noted.calls
        assert await bench.read(peer, len(BLOB)) == BLOB
        assert await noted.lost is None
        assert "data" not in noted.calls

    run(main)


def test_closing_sends_what_the_pass_collected(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.transport.write(b"good bye")
        noted.transport.close()
        assert noted.transport.get_write_buffer_size() == 0
        assert noted.calls == []  # not within the call
        assert await bench.read(peer, 100) == b"good bye"
        assert await noted.lost is None

    run(main)


def test_an_abort_drops_what_waits(run):
    async def main(bench):
        noted, peer = bench.connect(room=8192)
        noted.transport.write(BLOB)
        noted.transport.abort()
        assert noted.transport.get_write_buffer_size() == 0
        assert noted.calls == ["pause"]
        noted.transport.abort()
        assert await noted.lost is None
        with contextlib.suppress(ConnectionError):
            assert len(await bench.read(peer, len(BLOB))) < len(BLOB)

    run(main)


@pytest.mark.parametrize("how", ["close", "abort"])
def test_the_end_may_come_in_the_middle_of_a_read(run, how):
    async def main(bench):
        noted, peer = bench.connect()
        noted.on_data = lambda _data: getattr(noted.transport, how)()
        peer.send(b"x")
        assert await noted.lost is None
        assert noted.calls == ["data", "lost"]

    run(main)


def test_who_is_ended_by_another_in_the_same_wake_up_is_not_read(run):
    async def main(bench):
        pairs = [bench.connect() for _ in range(8)]

        def end_the_others(_data: bytes) -> None:
            for noted, _ in pairs:
                if not noted.received:
                    noted.transport.abort()

        for noted, _ in pairs:
            noted.on_data = end_the_others
        for _, peer in pairs:
            peer.send(b"x")  # all are ready before the loop runs
        await bench.passes(10)
        assert sum(bool(noted.received) for noted, _ in pairs) == 1
        assert sum(noted.lost.done() for noted, _ in pairs) == 7

    run(main)


def test_a_connection_that_is_gone_can_be_asked_and_told_anything(run):
    async def main(bench):
        noted, peer = bench.connect()
        transport = noted.transport
        assert transport.get_extra_info("sockname") == peer.getpeername()
        assert transport.get_extra_info("socket").getsockname() == peer.getpeername()
        assert transport.get_extra_info("ssl_object") is None
        assert transport.get_extra_info("other", 7) == 7
        transport.abort()
        await noted.lost
        await bench.passes()
        transport.write(b"x")
        transport.writelines([b"x"])
        transport.write_eof()
        transport.pause_reading()
        transport.resume_reading()
        transport.close()
        transport.abort()
        assert transport.is_closing()
        assert not transport.is_reading()
        assert transport.get_write_buffer_size() == 0
        assert transport.get_extra_info("peername") == peer.getsockname()
        assert transport.get_extra_info("socket") is None
        assert transport.get_extra_info("sockname", "gone") == "gone"
        assert noted.calls == ["lost"]

    run(main)


# -- errors


def test_a_reset_ends_the_connection_with_its_error(run):
    async def main(bench):
        noted, peer = bench.connect()
        reset(peer)
        assert isinstance(await noted.lost, ConnectionResetError)
        assert noted.calls == ["lost"]

    run(main)


def test_a_reset_of_a_connection_that_is_not_read_shows_when_it_is(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.transport.pause_reading()
        peer.send(b"x")
        await bench.passes(5)
        reset(peer)
        await settled(bench)
        assert noted.calls == []
        noted.transport.resume_reading()
        assert isinstance(await noted.lost, ConnectionResetError | None)
        assert noted.calls[-1] == "lost"

    run(main)


@pytest.mark.parametrize("closing", [False, True])
def test_a_reset_while_bytes_wait_ends_the_connection(run, closing):
    async def main(bench):
        noted, peer = bench.connect(room=8192)
        noted.transport.pause_reading()
        noted.transport.write(BLOB)
        if closing:
            noted.transport.close()
        await bench.passes(5)
        reset(peer)
        assert isinstance(await noted.lost, ConnectionResetError | BrokenPipeError)
        assert noted.calls == ["pause", "lost"]

    run(main)


def test_a_write_to_a_peer_that_is_gone_ends_the_connection_later(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.transport.pause_reading()
        reset(peer)
        noted.transport.write(bytes(200_000))
        assert noted.calls == []
        assert isinstance(await noted.lost, ConnectionResetError | BrokenPipeError)
        assert noted.calls == ["lost"]

    run(main)


@pytest.mark.parametrize("where", ["data", "eof"])
def test_a_fault_of_a_protocol_ends_its_connection_only(run, where):
    """I10."""

    async def main(bench):
        bad, poor = bench.connect()
        good, rich = bench.connect()
        bad.fails_in = where
        for peer in (poor, rich):
            peer.send(b"x")
        if where == "eof":
            poor.shutdown(socket.SHUT_WR)
        assert isinstance(await bad.lost, ValueError)
        await good.until(lambda: good.calls == ["data"])
        rich.send(b"y")
        await good.until(lambda: good.text == b"xy")
        assert bad.faults == [(f"{where}_received", f"a fault in {where}")]
        assert not good.faults

    run(main)


@pytest.mark.parametrize("where", ["pause", "resume", "lost"])
def test_a_fault_in_another_call_is_reported(run, where):
    async def main(bench):
        noted, peer = bench.connect(room=8192)
        noted.fails_in = where
        noted.transport.write(BLOB)
        assert await bench.read(peer, len(BLOB)) == BLOB
        await noted.until(lambda: "resume" in noted.calls)
        noted.transport.close()
        await noted.lost
        await bench.passes()
        method = "connection_lost" if where == "lost" else f"{where}_writing"
        assert noted.faults == [(method, f"a fault in {where}")]

    run(main)


# -- the set


def test_a_set_that_is_closed_serves_its_last_connections(run):
    async def main(bench):
        noted, peer = bench.connect()
        noted.on_data = noted.transport.write
        bench.set.close()
        bench.set.close()
        assert not bench.set.is_closed
        assert len(bench.set) == 1
        peer.send(b"x")
        assert await bench.read(peer, 1) == b"x"
        peer.close()
        await noted.lost
        await bench.passes()
        assert bench.set.is_closed
        assert len(bench.set) == 0

    run(main)


def test_many_connections_are_served_by_one_set(run):
    async def main(bench):
        pairs = [bench.connect() for _ in range(300)]  # more than one wake-up takes
        for noted, peer in pairs:
            noted.on_data = noted.transport.write
            peer.send(b"hello")
        for noted, peer in pairs:
            assert await bench.read(peer, 5) == b"hello"
            assert noted.received == [b"hello"]

    run(main)


def test_a_descriptor_that_is_used_again_has_a_new_transport(run):
    async def main(bench):
        for _ in range(20):
            noted, peer = bench.connect()
            noted.on_data = noted.transport.write
            peer.send(b"x")
            assert await bench.read(peer, 1) == b"x"
            peer.close()
            assert await noted.lost is None

    run(main)


def test_a_descriptor_that_cannot_be_watched_stays_the_callers(run):
    async def main(bench):
        with pytest.raises(PermissionError):
            bench.set.add(file.fileno(), Noted(), None)
        assert len(bench.set) == 0

    with Path(__file__).open() as file:  # a file is always ready: the system does not watch it
        run(main)
        assert file.read(3) == '"""'


def test_a_peer_of_ip_6_has_its_whole_address(run):
    async def main(bench):
        with socket.socket(socket.AF_INET6) as listening, socket.socket(socket.AF_INET6) as peer:
            try:
                listening.bind(("::1", 0))
            except OSError:
                pytest.skip("the machine has no IPv6")
            listening.listen()
            peer.connect(listening.getsockname())
            fd, address = bench.set.accept(listening)
            assert address == peer.getsockname()
            socket.close(fd)

    run(main)


def test_a_socket_that_cannot_be_accepted_from_is_an_error(run):
    async def main(bench):
        with socket.socket() as deaf, pytest.raises(OSError, match="Invalid argument"):
            bench.set.accept(deaf)

    run(main)


RING_AT_0 = """
import os
from onelog.kernel._native import probe_ring
os.close(0)
probe_ring()  # opens a ring with the lowest descriptor that is free, sends by it, and closes it
assert not os.path.lexists("/proc/self/fd/0"), os.readlink("/proc/self/fd/0")
os.open(os.devnull, os.O_RDONLY)
probe_ring()
assert os.readlink("/proc/self/fd/0") == os.devnull
"""


def test_a_ring_may_have_the_descriptor_0_and_closes_no_other():
    native = pytest.importorskip("onelog.kernel._native", exc_type=ImportError)
    try:
        native.probe_ring()
    except OSError as error:
        pytest.skip(f"no ring: {error}")
    subprocess.run([sys.executable, "-c", RING_AT_0], check=True, timeout=60)
