"""Sessions that are behind and are served together: each gets all of its messages, in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from onelog.protocols.mqtt import convoy
from tests.support.mqtt import Client, Node, serving, until


async def made(node: Node, name: str, text: str, qos: int = 1, **options) -> None:
    """A session that has subscribed and left."""
    client = await node.client(name, clean=False, expiry_s=300)
    await client.subscribe(text, qos=qos, **options)
    await client.disconnect()
    await node.gone(name)


async def back(node: Node, name: str, **options) -> Client:
    return await node.client(name, clean=False, expiry_s=300, **options)


async def published(node: Node, *rows: tuple[str, str]) -> None:
    client = await node.client("publisher")
    for topic, payload in rows:
        assert await client.publish(topic, payload) == 0


def counted(monkeypatch, node: Node) -> list[int]:
    """The offsets of the batches that the convoy reads."""
    seen, read = [], node.hub.convoy.read

    def noted(source, offset):
        seen.append(int(offset))
        return read(source, offset)

    monkeypatch.setattr(node.hub.convoy, "read", noted)
    return seen


@pytest.fixture(params=["large", "small"])
def shares(request, monkeypatch):
    """Everything in one share, or many shares of a message or two."""
    if request.param == "small":
        monkeypatch.setattr(convoy, "AHEAD_RECORDS", 3)
        monkeypatch.setattr(convoy, "STRETCH_OFFSETS", 7)
        monkeypatch.setattr(convoy, "SHARE_RECORDS", 2)
        monkeypatch.setattr(convoy, "SHARE_BYTES", 200)
        monkeypatch.setattr(convoy, "CALL_BYTES", 100)
    return request.param


async def test_a_batch_is_visited_once_for_all_sessions_that_need_it(tmp_path, monkeypatch):
    async with serving(tmp_path) as node:
        for number in range(8):
            await made(node, f"s{number}", "t")
        await published(node, ("t", "a"), ("other", "b"), ("t", "c"))
        seen = counted(monkeypatch, node)
        clients = await asyncio.gather(*(back(node, f"s{number}") for number in range(8)))
        for client in clients:
            assert await client.take(2) == ["a", "c"]
            assert await client.is_silent()
        assert len(seen) < 8 * 2


@pytest.mark.warm
async def test_sessions_that_keep_coming_are_waited_for_and_go_together(tmp_path, monkeypatch):
    monkeypatch.setattr(convoy, "LOOK_S", 0.2)
    monkeypatch.setattr(convoy, "GATHER_TIMES", 1e6)
    monkeypatch.setattr(convoy, "GATHER_S", 30)
    everything = ["1", "2", "3"]
    async with serving(tmp_path) as node:
        ride, held, shares = node.hub.convoy, {}, []
        take, run = ride.take, ride._run
        for number in range(7):
            await made(node, f"s{number}", "t")
        await published(node, *(("t", text) for text in everything))

        def hold(session, reading) -> bool:
            held[session.client_id] = (session, reading)
            return True

        monkeypatch.setattr(ride, "take", hold)
        clients = [await back(node, f"s{number}") for number in range(7)]
        monkeypatch.setattr(ride, "take", take)
        monkeypatch.setattr(ride, "_run", lambda: (shares.append(1), run()))
        assert take(*held["s0"])
        assert await clients[0].take(3) == everything
        assert len(shares) == 1
        for number in (1, 2):  # in one pass: more may follow
            assert take(*held[f"s{number}"])
        for number in range(3, 7):
            await asyncio.sleep(0.02)
            assert take(*held[f"s{number}"])
        for client in clients[1:]:
            assert await client.take(3) == everything
        assert len(shares) == 2


async def test_a_session_that_comes_alone_is_served_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(convoy, "LOOK_S", 60.0)
    async with serving(tmp_path) as node:
        for name in ("a", "b"):
            await made(node, name, "t")
        await published(node, ("t", "1"), ("t", "2"))
        for name in ("a", "b"):
            client = await back(node, name, receive_maximum=1)
            assert await client.take(2) == ["1", "2"]


async def test_sessions_that_keep_coming_hold_nobody_up(tmp_path, monkeypatch):
    """Looks follow one another while others come, but the time for that is bounded."""
    monkeypatch.setattr(convoy, "LOOK_S", 0.02)
    monkeypatch.setattr(convoy, "GATHER_S", 0.02)
    async with serving(tmp_path) as node:
        names = [f"s{number}" for number in range(3)]
        for name in names:
            await made(node, name, "t")
        await published(node, ("t", "1"))
        ride = node.hub.convoy
        coming = True

        async def keep_coming() -> None:
            while coming:
                ride._came = True
                await asyncio.sleep(0.001)

        crowd = asyncio.create_task(keep_coming())
        for client in await asyncio.gather(*(back(node, name) for name in names)):
            assert await client.take(1) == ["1"]
        coming = False
        await crowd


@pytest.mark.parametrize("seed", range(4))
async def test_many_sessions_get_their_messages_in_order(tmp_path, shares, seed):
    """I5. Sessions of one topic stand at different places, and come and go while others ride."""
    chance = random.Random(f"{shares} {seed}")
    async with serving(tmp_path) as node:
        names = [f"s{number}" for number in range(12)]
        wanted: dict[str, list[str]] = {name: [] for name in names}
        topics = {name: f"t/{number % 4}" for number, name in enumerate(names)}
        publisher = await node.client("publisher")
        number = 0
        for name in names:
            await made(node, name, topics[name])
            for _ in range(chance.randrange(8)):
                topic = f"t/{chance.randrange(5)}"
                assert await publisher.publish(topic, str(number)) == 0
                for other in names[: names.index(name) + 1]:
                    if topics[other] == topic:
                        wanted[other].append(str(number))
                number += 1
        rooms = {name: chance.choice([1, 2, 100]) for name in names}

        async def drain(name: str) -> None:
            await asyncio.sleep(chance.random() / 50)
            client = await back(node, name, receive_maximum=rooms[name])
            assert await client.take(len(wanted[name])) == wanted[name]
            assert await client.is_silent()

        await asyncio.gather(*(drain(name) for name in names))
        assert all(session.ride is None for session in node.hub.sessions.values())
        assert len(node.hub.convoy.fanout) == 0
        await until(lambda: all(s.output.live for s in node.hub.sessions.values()))
        assert node.hub.counters.caught_up >= sum(map(len, wanted.values()))


async def test_a_session_that_leaves_on_the_way_comes_back_to_what_it_did_not_get(tmp_path, shares):
    async with serving(tmp_path) as node:
        await made(node, "c", "t")
        await published(node, *(("t", str(number)) for number in range(20)))
        got: list[str] = []
        while len(got) < 20:
            client = await back(node, "c", receive_maximum=3)
            got += await client.take(1)
            await client.sync()
            await client.drop()
            await node.gone("c")
        assert got == [str(number) for number in range(20)]


async def test_a_second_subscription_on_the_way_loses_nothing(tmp_path, shares):
    async with serving(tmp_path) as node:
        await made(node, "c", "t")
        await published(node, *(("t", str(number)) for number in range(20)))
        client = await back(node, "c", receive_maximum=2)
        await client.subscribe("u", qos=1)
        assert await client.take(20) == [str(number) for number in range(20)]
        await published(node, ("u", "new"))
        assert await client.take(1) == ["new"]
        assert await client.is_silent()


async def test_the_wishes_of_a_subscription_count_on_the_way(tmp_path):
    async with serving(tmp_path) as node:
        await made(node, "a", "t", no_local=True)
        await made(node, "b", "t", identifier=7, qos=0)
        await made(node, "c", "t", qos=2)
        client = await node.client("a", clean=False, expiry_s=300)
        assert await client.publish("t", "own") == 0
        await client.disconnect()
        await node.gone("a")
        await published(node, ("t", "other"))
        a, b, c = [await back(node, name) for name in "abc"]
        assert await a.take(1) == ["other"]
        assert await a.is_silent()
        message = await b.message()
        assert (message.qos, message.properties.subscription_ids) == (0, (7,))
        assert await c.take(2) == ["own", "other"]


async def test_a_batch_that_the_kernel_cannot_read_is_read_alone(tmp_path, monkeypatch):
    async with serving(tmp_path) as node:
        for name in ("a", "b"):
            await made(node, name, "t")
        await published(node, *(("t", str(number)) for number in range(4)))
        monkeypatch.setattr(node.hub.convoy, "read", lambda _source, _offset: None)
        for name in ("a", "b"):
            client = await back(node, name)
            assert await client.take(4) == ["0", "1", "2", "3"]
            assert await client.is_silent()


async def test_a_fault_in_the_convoy_lets_every_session_read_alone(tmp_path, monkeypatch):
    async with serving(tmp_path) as node:
        await made(node, "a", "t")
        await published(node, *(("t", str(number)) for number in range(4)))

        def fail(*_said):
            raise ValueError("a fault")

        monkeypatch.setattr(convoy, "deliver_places", fail)
        client = await back(node, "a")
        assert await client.take(4) == ["0", "1", "2", "3"]
        assert await client.is_silent()


async def test_a_kept_connect_writes_one_row_and_no_cursor(tmp_path):
    async with serving(tmp_path) as node:

        def written() -> list[int]:
            names = ("~sessions", "~cursors")
            return [int(node.broker.streams.get(n).partitions[0].end_offset) for n in names]

        await made(node, "first", "t")
        await until(lambda: not node.hub.sessions)
        before = written()
        await back(node, "c")
        after = written()
        assert [new - old for old, new in zip(before, after, strict=True)] == [1, 0]
        record = node.broker.sessions.get("c")
        assert record is not None
        assert record.cursors == ("mqtt/c",)
