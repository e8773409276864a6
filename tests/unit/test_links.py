"""Inner links over real sockets: connections of a pair, calls, credit, suspicion, bad company."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import msgspec
import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import (
    ConfigError,
    InvalidRequest,
    NotLeader,
    OnelogError,
    Timeout,
    Unavailable,
)
from onelog.base.limits import LINK_CALLS_MAX, LINK_WINDOW_BYTES
from onelog.cluster.frames import (
    AckFeed,
    CloseFeed,
    CloseReason,
    FeedBatches,
    FeedLane,
    MarkFeed,
)
from onelog.cluster.link import connection as connection_module
from onelog.cluster.link import pair as pair_module
from onelog.cluster.link.address import LinkAddress, parse_address
from onelog.cluster.link.calls import encode_call
from onelog.cluster.link.codec import encode_frames
from onelog.cluster.link.connection import LINK_TROUBLE, REST_BYTES_MAX
from onelog.cluster.link.credit import ReceiveCredit
from onelog.cluster.link.layout import LinkKind, frame
from onelog.cluster.link.links import LinkIdentity
from onelog.cluster.link.listening import BoundInner, inner_opening
from onelog.cluster.link.security import LinkSecurity, read_secret
from tests.support.link_proxy import LinkProxy
from tests.support.links import (
    BOTH,
    GREETING,
    Node,
    Wire,
    accepting,
    frames_in,
    greeted,
    introduce,
    linked,
    nodes,
    until_ended,
)
from tests.support.listening import run_on

SECRET = LinkSecurity(secret=b"a secret of at least 16 bytes")
LOOPS = ("asyncio", "uvloop")


def batch(feed: int, data: bytes) -> FeedBatches:
    return FeedBatches(feed, 1, 2, 3, 0, 0, data)


@pytest.fixture
def fast(monkeypatch):
    """Looks every 50 ms, so that silence is found after 0.2 s."""
    monkeypatch.setattr(connection_module, "PING_S", 0.05)
    monkeypatch.setattr(pair_module, "SILENT_S", 0.2)


# -- pairs


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_three_nodes_have_two_connections_per_pair_dialled_by_the_lower_id(loop, kind, tmp_path):
    async def main():
        folder = tmp_path if kind == "unix" else None
        async with nodes(1, 2, 3, security=SECRET, folder=folder) as made:
            await linked(*made)
            for node in made:
                for other, pair in node.links.pairs.items():
                    assert set(pair.connections) == BOTH
                    for connection in pair.connections.values():
                        assert connection.dials == (node.number < other)
                        assert connection.agreed.peer.epoch == 10 + other
                        assert connection.agreed.peer.data_uuid == f"uuid-{other}"
                assert not node.heard.suspicions

    run_on(loop, main)


@pytest.mark.parametrize("loop", LOOPS)
def test_frames_of_both_lanes_and_directions_arrive_in_order(loop):
    async def main():
        async with nodes(1, 2) as (one, two):
            await linked(one, two)
            sent = [batch(7, b"x" * size) for size in (1, 70_000, 300_000)] + [AckFeed(1, 2, 9, 8)]
            for source, target in ((one, two), (two, one)):
                for lane in FeedLane:
                    for each in sent:
                        assert source.links.send(target.number, lane, each)
            for node, other in ((one, 2), (two, 1)):
                await node.heard.until(lambda node=node: len(node.heard.frames) == 8)
                for lane in FeedLane:
                    got = [each for sender, at, each in node.heard.frames if at is lane]
                    assert got == sent
                assert {sender.node for sender, _, _ in node.heard.frames} == {other}
                assert {sender.epoch for sender, _, _ in node.heard.frames} == {10 + other}

    run_on(loop, main)


def test_all_that_is_due_in_a_pass_is_one_write():
    async def main():
        _, wire, _ = made = greeted()
        connection = made[0]
        for n in range(50):
            connection.send(AckFeed(n, 1, 5, 4))
        for n in range(3):
            connection.send(batch(n, b"data"))
        connection.send(MarkFeed(1, 1, 1, 0, 0))
        assert not wire.writes
        await asyncio.sleep(0)
        assert wire.writes == 1
        assert [kind for kind, *_ in frames_in(wire.written)] == [
            LinkKind.ACK, LinkKind.BATCHES, LinkKind.MARK,
        ]  # fmt: skip
        connection.end("test")

    asyncio.run(main())


def test_without_a_link_nothing_is_sent_and_nothing_is_kept():
    async def main():
        async with nodes(1, 2) as (one, _two):
            assert not one.links.send(2, FeedLane.LIVE, AckFeed(1, 1, 1, 1))
            assert one.links.room(2, FeedLane.LIVE) == 0
            with pytest.raises(Unavailable, match="no link to node 2"):
                await one.links.call(2, "ask", None, int, 1.0)

    run_on("uvloop", main)


def test_a_node_that_is_not_known_is_refused_until_it_is():
    async def main():
        async with nodes(1, 2) as (one, two):
            one.links.know(2, two.inner.address)
            await until_ended(one, 2, "not known here")
            assert not one.heard.ups
            await linked(one, two)

    run_on("uvloop", main)


def test_a_lost_connection_is_dialled_again_and_the_other_one_stays():
    async def main():
        async with nodes(1, 2) as (one, two):
            await linked(one, two)
            bulk = two.links.pairs[1].connections[FeedLane.BULK]
            two.links.pairs[1].connections[FeedLane.LIVE].end("test")
            await one.heard.until(lambda: len(one.heard.ups) == 3)
            assert one.heard.downs == [(one.heard.ups[0][0], FeedLane.LIVE)]
            assert two.links.pairs[1].connections[FeedLane.BULK] is bulk
            assert "test" in one.links.pairs[2].last_end
            assert not one.heard.suspicions

    run_on("uvloop", main)


def test_a_new_registration_is_heard_in_a_new_hello():
    async def main():
        async with nodes(1, 2) as (one, two):
            await linked(one, two)
            fresh = LinkIdentity(cluster_id="c1", node=1, epoch=99, data_uuid="uuid-1")
            one.links.register(fresh)
            await two.heard.until(lambda: {row[0].epoch for row in two.heard.ups[-2:]} == {99})
            await two.heard.until(lambda: two.heard.lanes[1] == BOTH)

    run_on("uvloop", main)


def test_a_node_with_an_older_registration_is_refused():
    async def main():
        async with nodes(1, 2) as (one, two):
            two.links.know(1, one.inner.address, epoch=50)
            one.links.know(2, two.inner.address)
            await until_ended(one, 2, "registration 11")
            assert not two.heard.ups

    run_on("uvloop", main)


# -- who may come


def test_without_security_only_this_machine_is_bound_and_dialled():
    far = LinkAddress(host="0.0.0.0")
    with pytest.raises(ConfigError, match="onelog cluster certs"):
        BoundInner(far, LinkSecurity(), SystemClock())

    async def main():
        async with nodes(1) as (one,):
            one.links.know(2, LinkAddress(host="192.0.2.1", port=1))
            await one.heard.until(lambda: bool(one.heard.suspicions))
            assert "no security" in one.heard.suspicions[0][1]

    run_on("uvloop", main)


def test_nodes_with_different_secrets_do_not_speak():
    async def main():
        other = LinkSecurity(secret=b"another secret, as long as it")
        async with nodes(1, security=SECRET) as (one,), nodes(2, security=other) as (two,):
            introduce(one, two)
            await until_ended(one, 2, "proof is wrong")
            assert not one.heard.ups
            assert not two.heard.ups
            assert two.links.counters.violations

    run_on("uvloop", main)


def test_a_secret_is_read_from_a_file_and_has_a_least_length(tmp_path):
    file = tmp_path / "secret"
    file.write_text("  0123456789abcdef\n")
    assert read_secret(str(file), "key") == b"0123456789abcdef"
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="openssl rand"):
        read_secret(str(file), "key")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret(str(tmp_path / "none"), "key")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:7", LinkAddress(host="10.0.0.1", port=7)),
        ("[::1]:70", LinkAddress(host="::1", port=70)),
        ("unix:/run/x", LinkAddress(path="/run/x")),
    ],
)
def test_an_address_is_a_host_with_a_port_or_a_path(text, expected):
    assert parse_address(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", "host", "host:", "host:0", "host:65536", ":9", "host:x"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidRequest):
        parse_address(text)


# -- calls


@pytest.mark.parametrize("loop", LOOPS)
def test_a_call_is_answered_or_raises_what_was_raised_there(loop):
    async def main():
        async def double(node, raw):
            return msgspec.msgpack.decode(raw) * 2 + node

        async def refuse(_node, _raw):
            raise NotLeader("it is led elsewhere")

        async def broken(_node, _raw):
            raise ZeroDivisionError

        async with nodes(1, 2) as (one, two):
            two.links.handlers.update(double=double, refuse=refuse, broken=broken)
            await linked(one, two)
            assert await one.links.call(2, "double", 21, int, 5.0) == 43
            with pytest.raises(NotLeader, match="led elsewhere"):
                await one.links.call(2, "refuse", None, int, 5.0)
            with pytest.raises(OnelogError, match="see the log of that node"):
                await one.links.call(2, "broken", None, int, 5.0)
            assert two.troubles.count("inner-call") == 1
            with pytest.raises(InvalidRequest, match="no inner call 'other'"):
                await one.links.call(2, "other", None, int, 5.0)
            results = await asyncio.gather(
                *(one.links.call(2, "double", n, int, 5.0) for n in range(200))
            )
            assert results == [2 * n + 1 for n in range(200)]

    run_on(loop, main)


def test_a_call_ends_at_its_deadline_on_both_sides_and_its_outcome_is_unknown():
    async def main():
        ended = asyncio.Event()

        async def hang(_node, _raw):
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with nodes(1, 2) as (one, two):
            two.links.handlers["hang"] = hang
            await linked(one, two)
            with pytest.raises(Timeout, match="not known"):
                await one.links.call(2, "hang", None, int, 0.05)
            await asyncio.wait_for(ended.wait(), 5)
            connection = one.links.pairs[2].connections[FeedLane.LIVE]
            assert not len(connection.asking)

    run_on("uvloop", main)


def test_a_call_that_is_given_up_is_cancelled_there():
    async def main():
        begun, ended = asyncio.Event(), asyncio.Event()

        async def hang(_node, _raw):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with nodes(1, 2) as (one, two):
            two.links.handlers["hang"] = hang
            await linked(one, two)
            task = asyncio.create_task(one.links.call(2, "hang", None, int, 60.0))
            await asyncio.wait_for(begun.wait(), 5)
            task.cancel()
            await asyncio.wait_for(ended.wait(), 5)

    run_on("uvloop", main)


def test_a_call_whose_link_breaks_has_an_unknown_outcome():
    async def main():
        begun, ended = asyncio.Event(), asyncio.Event()

        async def hang(_node, _raw):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with nodes(1, 2) as (one, two):
            two.links.handlers["hang"] = hang
            await linked(one, two)
            task = asyncio.create_task(one.links.call(2, "hang", None, int, 60.0))
            await asyncio.wait_for(begun.wait(), 5)
            one.links.pairs[2].connections[FeedLane.LIVE]._transport.abort()
            with pytest.raises(Timeout, match="broke"):
                await task
            await asyncio.wait_for(ended.wait(), 5)

    run_on("uvloop", main)


def test_calls_under_way_are_bounded_on_both_sides():
    async def main():
        owner_connection, wire, owner = greeted()

        async def hang(_node, _raw):
            await asyncio.Event().wait()

        owner.handlers["hang"] = hang
        for number in range(1, LINK_CALLS_MAX + 3):
            owner_connection.data_received(encode_call("hang", None, 60.0, number))
        await asyncio.sleep(0)
        refused = frames_in(wire.written)
        assert [(kind, flags) for kind, flags, _, _ in refused] == [(LinkKind.ANSWER, 1)] * 2
        tasks = [
            asyncio.ensure_future(owner_connection.call("x", None, 60.0))
            for _ in range(LINK_CALLS_MAX)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="try again later"):
            await owner_connection.call("x", None, 60.0)
        owner_connection.end("test")
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


# -- credit


def test_a_sender_stops_without_credit_and_hears_when_there_is_some():
    async def main():
        async with nodes(1, 2) as (one, two):
            await linked(one, two)
            sent, data = 0, b"x" * 100_000
            while one.links.room(2, FeedLane.LIVE) > 0:  # the loop has not run: no credit came back
                one.links.send(2, FeedLane.LIVE, batch(1, data))
                sent += 1
            assert LINK_WINDOW_BYTES <= sent * len(data) < LINK_WINDOW_BYTES + len(data)
            await one.heard.until(lambda: bool(one.heard.rooms))
            assert one.heard.rooms == [(2, FeedLane.LIVE)]
            await two.heard.until(lambda: len(two.heard.frames) == sent)
            for _ in range(500):
                if one.links.room(2, FeedLane.LIVE) <= 0:
                    await one.heard.until(lambda: one.links.room(2, FeedLane.LIVE) > 0)
                one.links.send(2, FeedLane.LIVE, batch(1, data))
            await two.heard.until(lambda: len(two.heard.frames) == sent + 500)

    run_on("uvloop", main)


def test_batches_without_credit_wait_in_order_and_acknowledgements_pass_them():
    async def main():
        async with nodes(1, 2) as (one, two):
            await linked(one, two)
            large = [batch(n, b"x" * 1_000_000) for n in range(1, 20)]
            mark, ack = MarkFeed(19, 1, 9, 0, 0), AckFeed(50, 1, 1, 1)
            for each in (*large, mark, ack):
                one.links.send(2, FeedLane.LIVE, each)
            assert one.links.room(2, FeedLane.LIVE) <= 0
            await two.heard.until(lambda: len(two.heard.frames) == 21)
            got = [each for _, _, each in two.heard.frames]
            assert [each.feed for each in got if isinstance(each, FeedBatches)] == [*range(1, 20)]
            assert got[-1] == mark
            assert got.index(ack) < 15
            await one.heard.until(lambda: bool(one.heard.rooms))

    run_on("uvloop", main)


def test_a_copy_that_closes_its_feed_is_heard_before_the_answer_to_the_next_ping():
    """It does not wait for credit: else a leader would take it for one that still copies."""

    async def main():
        async with nodes(1, 2) as (one, two):
            await linked(one, two)
            large = [batch(n, b"x" * 1_000_000) for n in range(1, 20)]
            by_copy = CloseFeed(50, 2, CloseReason.FENCED, by_copy=True)
            by_leader = CloseFeed(51, 2, CloseReason.OVER)
            for each in (*large, by_leader, by_copy):
                one.links.send(2, FeedLane.LIVE, each)
            await two.heard.until(lambda: len(two.heard.frames) == 21)
            got = [each for _, _, each in two.heard.frames]
            assert got.index(by_copy) < 15
            assert got[-1] == by_leader

    run_on("uvloop", main)


def test_an_answered_ping_says_since_when_nothing_of_the_peer_is_missing(fast):
    async def main():
        loop = asyncio.get_running_loop()
        async with nodes(1, 2) as (one, two):
            assert one.links.answered_at(2) == float("-inf")
            await linked(one, two)
            begun = loop.time()
            async with asyncio.timeout(20):
                while one.links.answered_at(2) < begun:  # noqa: ASYNC110 - nobody is told of it
                    await asyncio.sleep(0.01)
            assert one.links.answered_at(2) <= loop.time()
            await two.links.close()
            await one.heard.until(lambda: one.links.answered_at(2) == float("-inf"))

    run_on("uvloop", main)


class _Keeping(ReceiveCredit):
    """As if nothing were ever dealt with."""

    def free(self, size: int) -> int | None:
        del size
        return None


def test_a_peer_that_sends_beyond_its_credit_loses_its_link_only():
    async def main():
        connection, wire, owner = greeted()
        connection._incoming = _Keeping(LINK_WINDOW_BYTES)
        piece = b"".join(map(bytes, encode_frames([batch(1, b"x" * 1_000_000)])))
        for _ in range(12):
            if not wire.is_closing():
                connection.data_received(piece)
        assert "credit was used up" in connection.ended
        assert len(owner.frames) == 9
        assert owner.counters.violations == 1

    asyncio.run(main())


# -- bad company


def test_three_frames_in_one_read_and_one_frame_in_three_reads_are_all_taken():
    async def main():
        connection, _wire, owner = greeted()
        three = b"".join(
            map(
                bytes, encode_frames([AckFeed(1, 1, 1, 1), batch(2, b"b"), MarkFeed(3, 1, 1, 1, 1)])
            )
        )
        connection.data_received(three)
        assert len(owner.frames) == 3
        one = bytes(encode_frames([AckFeed(4, 1, 1, 1)])[0])
        for part in (one[:3], one[3:12], one[12:]):
            connection.data_received(part)
        assert len(owner.frames) == 4
        connection.end("test")

    asyncio.run(main())


def test_frames_that_come_with_the_proof_may_be_long():
    async def main():
        connection, _wire, owner = accepting()
        long = b"".join(map(bytes, encode_frames([batch(1, b"x" * 100_000)])))
        connection.data_received(GREETING + long + long[:50])
        connection.data_received(long[50:])
        assert [len(one.data) for one in owner.frames] == [100_000] * 2
        connection.end("test")

    asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0x7FFF_FFFF) + b"\x13",
        struct.pack(">I", 0xFFFF_FFFF),
        struct.pack(">I", 2) + b"\x13\x00",
        frame(99),
        frame(LinkKind.HELLO),
        frame(LinkKind.PING, b"1234567"),
        frame(LinkKind.CREDIT, bytes(8)),
        frame(LinkKind.CREDIT, b"\xff" * 8),
        frame(LinkKind.CALL, b"\xc1", 1),
        frame(LinkKind.CALL, bytes(5 * 1024 * 1024), 1),
        frame(LinkKind.ANSWER, b"", 1, 7),
        frame(LinkKind.CANCEL, b"x", 1),
        frame(LinkKind.BYE, b"\xc1"),
    ],
)
def test_bytes_that_lie_end_the_link_with_a_reason(data):
    async def main():
        connection, wire, owner = greeted()
        connection.data_received(data)
        assert wire.is_closing()
        assert owner.counters.violations == 1
        assert [kind for kind, *_ in frames_in(wire.written)] == [LinkKind.BYE]
        await connection.closed

    asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 5000) + b"\1", b"\x16\x03\x01\x02\x00\1\0\1"],
)
def test_a_peer_that_does_not_begin_with_hello_is_turned_away(data):
    assert inner_opening(data[:8]) == b""

    async def main():
        async with nodes(1, 2) as (one, two):
            await linked(one, two)
            address = two.inner.address
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(data)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            assert one.links.pairs[2].connections[FeedLane.LIVE].ended is None

    run_on("uvloop", main)


def test_a_peer_that_never_finishes_its_handshake_is_cut_off(monkeypatch):
    monkeypatch.setattr(connection_module, "SHAKE_S", 0.1)

    async def main():
        async with nodes(2) as (two,):
            address = two.inner.address
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(GREETING[:-1])
            said = await asyncio.wait_for(reader.read(), 5)
            assert b"no handshake" in said or b"not known" in said
            writer.close()

    run_on("uvloop", main)


def test_a_peer_that_writes_and_never_reads_is_cut_off_with_bounded_memory():
    """It asks and asks, and takes no answer."""

    async def main():
        connection, wire, owner = greeted()

        async def large(_node, _raw):
            return bytes(1_000_000)

        owner.handlers["large"] = large
        for number in range(1, 1000):
            if wire.is_closing():
                break
            wire.unread = len(wire.written)
            connection.data_received(encode_call("large", None, 60.0, number))
            for _ in range(3):
                await asyncio.sleep(0)
        assert "does not read" in connection.ended
        assert len(wire.written) < REST_BYTES_MAX + (180 << 20)

    asyncio.run(main())


def test_a_peer_that_answers_no_ping_is_cut_off_although_it_talks(fast):
    async def main():
        connection, wire, _owner = greeted()
        for _ in range(500):
            if wire.is_closing():
                break
            connection.data_received(frame(LinkKind.PING, bytes(8)))
            await asyncio.sleep(0.01)
        assert "no ping was answered" in connection.ended

    asyncio.run(main())


def test_a_fault_of_ours_in_taking_a_frame_ends_that_link_only():
    async def main():
        async with nodes(1, 2, 3) as (one, two, three):
            await linked(one, two, three)

            def fail(_frame):
                raise ZeroDivisionError

            two.heard.on_frame = fail
            one.links.send(2, FeedLane.LIVE, AckFeed(1, 1, 1, 1))
            await one.heard.until(lambda: bool(one.heard.downs))
            assert two.troubles.count(LINK_TROUBLE) == 1
            assert two.links.pairs[3].connections.keys() == BOTH
            assert one.links.pairs[3].connections.keys() == BOTH
            await one.heard.until(lambda: one.heard.lanes[2] == BOTH)

    run_on("uvloop", main)


def test_a_frame_that_cannot_be_written_ends_its_link_only():
    async def main():
        async with nodes(1, 2, 3) as (one, two, three):
            await linked(one, two, three)
            one.links.send(2, FeedLane.LIVE, AckFeed(-1, 1, 1, 1))
            await one.heard.until(lambda: bool(one.heard.downs))
            assert one.troubles.count(LINK_TROUBLE) == 1
            assert one.links.pairs[3].connections.keys() == BOTH
            await one.heard.until(lambda: one.heard.lanes[2] == BOTH)

    run_on("uvloop", main)


# -- suspicion


def test_a_refused_connection_is_suspicion_at_once_for_both_sides():
    """A process that was killed: its sockets are closed, its port refuses."""

    async def main():
        async with nodes(1, 2, 3) as (one, two, three):
            await linked(one, two, three)
            begun = asyncio.get_running_loop().time()
            await two.close()
            for node in (one, three):
                await node.heard.until(lambda node=node: bool(node.heard.suspicions))
                assert [row[0] for row in node.heard.suspicions] == [2]
            assert asyncio.get_running_loop().time() - begun < pair_module.SILENT_S

    run_on("uvloop", main)


def test_a_silent_peer_is_suspected_and_trusted_again_when_it_speaks(fast):
    async def main():
        with LinkProxy() as proxy:
            async with nodes(1, 2) as (one, two):
                front = proxy.front(2, two.inner.address)
                one.links.know(2, front)
                two.links.know(1, one.inner.address)
                await one.heard.until(lambda: one.heard.lanes.get(2) == BOTH)
                proxy.part(1, 2)
                await one.heard.until(lambda: bool(one.heard.suspicions))
                await two.heard.until(lambda: bool(two.heard.suspicions))
                assert "silent" in one.heard.suspicions[0][1]
                proxy.heal()
                await one.heard.until(lambda: one.heard.suspicions[-1] == (2, None))
                await two.heard.until(lambda: two.heard.suspicions[-1] == (1, None))
                await one.heard.until(lambda: one.heard.lanes[2] == BOTH)

    run_on("uvloop", main)


def test_a_link_that_is_idle_stays(fast):
    async def main():
        async with nodes(1, 2) as (one, two):
            await linked(one, two)
            await asyncio.sleep(0.6)
            assert not one.heard.downs
            assert 0 < one.links.pairs[2].connections[FeedLane.LIVE].rtt_s < 1
            row = next(one.links.rows())
            assert row.lanes == ("live", "bulk")
            assert row.rtt_ms is not None
            names = {sample.name: sample.value for sample in one.links.samples()}
            assert names["onelog_cluster_links"] == 2

    run_on("uvloop", main)


def test_a_node_that_was_stopped_itself_does_not_blame_its_peer(fast):
    """The loop of a node stands still for longer than the silence; then it reads what waited."""

    async def main():
        connection, _wire, _owner = greeted()
        connection.data_received(frame(LinkKind.PING, bytes(8)))
        time.sleep(0.5)  # noqa: ASYNC251 - that is what is tried
        await asyncio.sleep(0.01)
        assert connection.ended is None
        connection.end("test")

    asyncio.run(main())


def test_a_unix_socket_is_for_its_user_only(tmp_path):
    bound = BoundInner(LinkAddress(path=str(tmp_path / "n.sock")), LinkSecurity(), SystemClock())
    try:
        assert (tmp_path / "n.sock").stat().st_mode & 0o777 == 0o600
    finally:
        asyncio.run(bound.close())
    assert not (tmp_path / "n.sock").exists()


def test_sockets_of_a_closed_node_are_gone():
    async def main():
        async with nodes(1, 2) as (one, two):
            await linked(one, two)
            address = two.inner.address
            await two.close()
            with socket.socket() as sock:
                assert sock.connect_ex((address.host, address.port)) != 0

    run_on("uvloop", main)


async def test_a_connection_that_comes_while_the_node_stops_is_closed():
    node = Node(1, LinkSecurity(), LinkAddress(host="127.0.0.1"))
    early = node.links.accept()
    await node.close()
    for connection in (early, node.links.accept()):
        wire = Wire()
        wire.protocol = connection
        connection.connection_made(wire)
        assert wire.is_closing()
        assert not wire.written
        await asyncio.sleep(0)


async def test_a_link_whose_last_frames_find_the_peer_gone_ends_without_an_error():
    connection, wire, owner = greeted()
    connection.send(AckFeed(1, 2, 3, 4))
    wire.writelines = lambda _pieces: wire.close()  # as uvloop's does when the socket is broken
    connection.end("the node stops")
    assert connection.ended == "the node stops"
    assert not owner.troubles.standing()
