"""A message that may not wait (TTL 0, no length): does it go out whenever a consumer can take it?

It also comes while the queues of a channel are about to be asked in turn (`turns.py`), or while
more comes than a queue hands out in one go.
"""

from __future__ import annotations

from typing import Any

import pytest

from onelog.queues.queue import TURN, Queue
from tests.conformance.amqp_raw import Basic, Raw, RawChannel, Tx, until_message
from tests.support.amqp import Node, serving, talk
from tests.support.mqtt import until

NO_TIME = {"x-message-ttl": 0}


def consume_two(raw: Raw, prefetch: int, **arguments: Any) -> tuple[RawChannel, list[str]]:
    """A channel that consumes two queues."""
    channel = raw.channel()
    names = [channel.queue(name, arguments=arguments or NO_TIME) for name in ("a", "b")]
    channel.qos(prefetch, whole_channel=True)
    for name in names:
        channel.send(Basic.Consume(queue=name, nowait=True, arguments={}))
    channel.sync()
    return channel, names


def queues(node: Node) -> dict[str, Queue]:
    vhost = node.hub.vhosts.find("/")
    assert vhost is not None
    return vhost.queues


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> None:
    """With each message a round of the channel falls due: it acknowledged something just now."""
    take_in = Queue.take_in

    def take(queue: Queue, place: int, record: Any) -> bool:
        for consumer in queue.consumers:
            consumer.owner.may_deliver()
        return take_in(queue, place, record)

    monkeypatch.setattr(Queue, "take_in", take)


@pytest.mark.usefixtures("due")
@pytest.mark.parametrize("how", ["queue", "message"])
@pytest.mark.parametrize("count", [1, 8])
async def test_what_comes_while_a_round_is_due_goes_out(tmp_path, how, count):
    """Eight are more than the half of the prefetch that one of two queues gets first."""
    arguments = NO_TIME if how == "queue" else {"x-max-priority": 1}
    options = {} if how == "queue" else {"expiration": "0"}
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> None:
            channel, (name, _other) = consume_two(raw, 10, **arguments)
            for number in range(count):
                channel.publish("", name, str(number), **options)
            assert channel.texts(count) == [str(number) for number in range(count)]

        await talk(node.port, work)


@pytest.mark.usefixtures("due")
async def test_what_the_prefetch_has_no_room_for_ends_at_once(tmp_path):
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> None:
            writer = raw.channel()
            dead = writer.queue("dead")
            channel, names = consume_two(
                raw,
                4,
                **NO_TIME,
                **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead},
            )
            for number in range(6):
                writer.publish("", names[number % 2], str(number))
            assert len(channel.messages(4)) == 4
            ended = [until_message(writer, dead) for _ in range(2)]
            assert {row.headers["x-first-death-reason"] for row in ended} == {"expired"}
            assert [writer.count(name) for name in names] == [0, 0]
            channel.ack(0, multiple=True)
            assert channel.is_silent(0.1)

        await talk(node.port, work)
        await until(lambda: not any(queue._at_once for queue in queues(node).values()))


@pytest.mark.usefixtures("due")
@pytest.mark.parametrize("prefetch", [6, 20])
async def test_what_is_too_much_for_a_queue_goes_out_while_a_round_is_due(tmp_path, prefetch):
    """What its consumer has no room for is dropped, down to the length, from the head."""
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> None:
            channel, (name, _other) = consume_two(raw, prefetch, **{"x-max-length": 1})
            for number in range(9):
                channel.publish("", name, str(number))
            sent = min(prefetch, 9)
            assert channel.texts(sent) == [str(number) for number in range(sent)]
            assert channel.count(name) == (sent < 9)
            channel.ack(0, multiple=True)
            if sent < 9:
                assert channel.message().text == "8"
            assert channel.is_silent(0.1)

        await talk(node.port, work)


async def test_more_than_one_turn_of_them_goes_out(tmp_path):
    """A consumer without a bound has room for all of them."""
    count = TURN + 200
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> int:
            writer, reader = raw.channel(), raw.channel()
            name = reader.queue("many", arguments=NO_TIME)
            reader.consume(name, no_ack=True)
            writer.ask(Tx.Select(), Tx.SelectOk)
            for number in range(count):
                writer.publish("", name, str(number))
            writer.ask(Tx.Commit(), Tx.CommitOk)
            return len(reader.messages(count))

        assert await talk(node.port, work) == count


async def test_what_comes_behind_messages_that_live_goes_out_with_them(tmp_path):
    """Those before it are taken in as one run, without a look."""
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> list[str]:
            writer, reader = raw.channel(), raw.channel()
            name = reader.queue("mixed")
            for _ in range(2):
                reader.send(Basic.Consume(queue=name, nowait=True, arguments={}))
            reader.sync()
            writer.publish("", name, "first")  # those like it need no look
            reader.message()
            send, pieces = raw.send_bytes, []
            raw.send_bytes = pieces.append  # type: ignore[method-assign, assignment]
            for number in range(5):
                writer.publish("", name, str(number))
            writer.publish("", name, "last", expiration="0")
            send(b"".join(pieces))
            return sorted(reader.texts(6))

        assert await talk(node.port, work) == ["0", "1", "2", "3", "4", "last"]
