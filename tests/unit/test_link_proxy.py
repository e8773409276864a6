"""The proxy that disturbs links does what its names say, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from onelog.cluster.frames import AckFeed, FeedBatches, FeedLane
from onelog.cluster.link.address import LinkAddress
from tests.support.link_proxy import LinkProxy
from tests.support.links import BOTH, Node, nodes
from tests.support.listening import run_on


@pytest.fixture
def proxy():
    with LinkProxy() as made:
        yield made


def introduce_by(proxy: LinkProxy, *made: Node) -> None:
    """Everybody dials everybody through the proxy."""
    for node in made:
        front = proxy.front(node.number, node.inner.address)
        for other in made:
            if other is not node:
                other.links.know(node.number, front, node.identity.epoch)


async def until_linked(*made: Node) -> None:
    for node in made:
        others = [other.number for other in made if other is not node]
        await node.heard.until(
            lambda node=node, others=others: all(
                node.heard.lanes.get(other) == BOTH for other in others
            )
        )


@contextlib.asynccontextmanager
async def echo():
    """A server that sends back what comes, in the place of an etcd member."""

    ended = asyncio.Event()

    async def serve(reader, writer):
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield LinkAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        await asyncio.wait_for(ended.wait(), 5)


def test_links_pass_as_they_are_and_the_dialler_is_known_by_its_hello(proxy):
    async def main():
        async with nodes(1, 2, 3) as made:
            introduce_by(proxy, *made)
            await until_linked(*made)
            one, two, _three = made
            one.links.send(2, FeedLane.LIVE, FeedBatches(1, 1, 1, 1, 0, 0, b"x" * 300_000))
            await two.heard.until(lambda: bool(two.heard.frames))
            pairs = {row for row in proxy.dialled if row[0] >= 0}
            assert pairs == {(1, 2), (1, 3), (2, 3)}

    run_on("uvloop", main)


def test_one_direction_of_one_pair_is_held_and_passes_after_healing(proxy):
    async def main():
        async with nodes(1, 2, 3) as made:
            introduce_by(proxy, *made)
            await until_linked(*made)
            one, two, three = made
            proxy.cut(1, 2)
            one.links.send(2, FeedLane.LIVE, AckFeed(1, 1, 1, 1))
            two.links.send(1, FeedLane.LIVE, AckFeed(2, 1, 1, 1))
            one.links.send(3, FeedLane.LIVE, AckFeed(3, 1, 1, 1))
            await one.heard.until(lambda: bool(one.heard.frames))
            await three.heard.until(lambda: bool(three.heard.frames))
            assert not two.heard.frames
            proxy.heal()
            await two.heard.until(lambda: bool(two.heard.frames))

    run_on("uvloop", main)


def test_a_delayed_direction_is_late_and_complete(proxy):
    async def main():
        async with echo() as upstream:
            front = proxy.front(9, upstream, source=1)
            reader, writer = await asyncio.open_connection(front.host, front.port)
            proxy.delay(1, 9, 0.5)
            begun = time.monotonic()
            writer.write(b"hello")
            assert await asyncio.wait_for(reader.readexactly(5), 30) == b"hello"
            assert time.monotonic() - begun >= 0.5
            proxy.delay(1, 9, 600.0)
            proxy.heal()
            writer.write(b"again")
            assert await asyncio.wait_for(reader.readexactly(5), 30) == b"again"
            writer.close()
            await writer.wait_closed()

    run_on("asyncio", main)


def test_what_is_lost_in_a_direction_is_late_and_complete(proxy):
    async def main():
        async with echo() as upstream:
            front = proxy.front(9, upstream, source=1)
            reader, writer = await asyncio.open_connection(front.host, front.port)
            proxy.lose(9, 1, 0.9)
            while proxy.losses(9, 1) == 0:
                writer.write(b"x")
                assert await asyncio.wait_for(reader.readexactly(1), 30) == b"x"
            assert proxy.losses(1, 9) == 0
            writer.close()
            await writer.wait_closed()

    run_on("asyncio", main)


def test_a_slow_direction_takes_its_time(proxy):
    async def main():
        async with echo() as upstream:
            front = proxy.front(9, upstream, source=1)
            reader, writer = await asyncio.open_connection(front.host, front.port)
            proxy.slow(9, 1, 10_000)
            begun = time.monotonic()
            for _ in range(4):
                writer.write(b"x" * 1000)
                await asyncio.wait_for(reader.readexactly(1000), 5)
            assert time.monotonic() - begun >= 0.25
            writer.close()
            await writer.wait_closed()

    run_on("asyncio", main)


def test_a_halved_read_is_cut_in_the_middle_and_the_link_comes_back(proxy):
    async def main():
        async with nodes(1, 2) as made:
            introduce_by(proxy, *made)
            await until_linked(*made)
            one, two = made
            proxy.halve(1, 2)
            one.links.send(2, FeedLane.LIVE, FeedBatches(1, 1, 1, 1, 0, 0, b"x" * 3000))
            await one.heard.until(lambda: bool(one.heard.downs))
            assert not two.heard.frames
            await until_linked(*made)
            assert not two.links.counters.violations

    run_on("uvloop", main)


def test_a_refused_pair_is_ended_and_suspected_until_it_is_healed(proxy):
    async def main():
        async with nodes(1, 2, 3) as made:
            introduce_by(proxy, *made)
            await until_linked(*made)
            one, _two, three = made
            proxy.refuse(1, 2)
            await one.heard.until(lambda: bool(one.heard.suspicions))
            assert one.links.pairs[3].connections.keys() == BOTH
            assert not three.heard.downs
            proxy.heal()
            await until_linked(*made)
            await one.heard.until(lambda: one.heard.suspicions[-1] == (2, None))

    run_on("uvloop", main)


def test_a_reset_pair_comes_back_without_suspicion(proxy):
    async def main():
        async with nodes(1, 2) as made:
            introduce_by(proxy, *made)
            await until_linked(*made)
            one, _two = made
            proxy.reset(1, 2)
            await one.heard.until(lambda: len(one.heard.downs) == 2)
            await until_linked(*made)
            assert not one.heard.suspicions

    run_on("uvloop", main)
