"""What becomes of a transaction that fails, and of what a channel holds beyond its bounds? (I8)"""

from __future__ import annotations

from typing import Any

import pytest

from onelog.base import faults
from onelog.broker import Action, AllowAll, Kind, Principal
from onelog.config.amqp import AmqpLimits
from onelog.protocols.amqp import letters, transactions
from tests.conformance.amqp_raw import Raw, RawChannel, Refused, Tx, until_message
from tests.support.amqp import serving, talk


class NotTo(AllowAll):
    """Nobody may publish to one topic."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic

    def allows(
        self, principal: Principal, action: Action, resource: str, kind: Kind = Kind.TOPIC
    ) -> bool:
        del principal, kind
        return (action, resource) != (Action.PUBLISH, self._topic)


def transactional(channel: RawChannel) -> RawChannel:
    channel.ask(Tx.Select(), Tx.SelectOk)
    return channel


async def test_a_commit_that_is_refused_gives_back_what_it_acknowledged(tmp_path):
    async with serving(tmp_path, authorizer=NotTo("$q/forbidden")) as node:

        def work(raw: Raw) -> list[str]:
            plain, channel = raw.channel(), transactional(raw.channel())
            queue = plain.queue()
            plain.queue("forbidden")
            for text in "123":
                plain.publish("", queue, text)
            assert plain.count(queue) == 3
            held = [channel.get(queue, no_ack=False) for _ in range(3)]
            channel.ack(held[1].tag)
            channel.nack(held[2].tag, requeue=False)
            channel.publish("", queue, "not written")
            channel.publish("", "forbidden", "not written")
            with pytest.raises(Refused) as refused:
                channel.ask(Tx.Commit(), Tx.CommitOk)
            assert refused.value.short == "channel 403"
            return plain.all(queue)

        assert await talk(node.port, work) == ["1", "2", "3"]
        (queue,) = [row for name, row in node.hub.vhosts.all()[0].queues.items() if name[0] == "q"]
        assert queue.unacked == 0


async def test_a_commit_whose_intent_cannot_be_written_gives_back_what_it_acknowledged(tmp_path):
    async with serving(tmp_path) as node:

        def fail(raw: Raw) -> str:
            plain, channel = raw.channel(), transactional(raw.channel())
            queue = plain.queue()
            plain.publish("", queue, "1")
            assert plain.count(queue) == 1
            channel.ack(channel.get(queue, no_ack=False).tag)
            channel.publish("", queue, "not written")
            faults.arm("segment.write", faults.fail_with(28))
            with pytest.raises(Refused) as refused:
                channel.ask(Tx.Commit(), Tx.CommitOk)
            assert refused.value.short == "connection 506"
            faults.disarm()
            return queue

        queue = await talk(node.port, fail)
        assert await talk(node.port, lambda raw: raw.channel().all(queue)) == ["1"]


async def test_a_transaction_is_bounded_with_the_properties_of_its_messages(tmp_path, monkeypatch):
    monkeypatch.setattr(transactions, "BYTES_MAX", 10_000)
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> None:
            channel = transactional(raw.channel())
            for _ in range(2):
                for _ in range(9):
                    channel.publish("", "q", "", headers={"much": "x" * 1000})
                channel.ask(Tx.Rollback(), Tx.RollbackOk)
            for _ in range(10):
                channel.publish("", "q", "", headers={"much": "x" * 1000})
            with pytest.raises(Refused, match="a transaction has at most"):
                channel.sync()

        await talk(node.port, work)


@pytest.mark.parametrize("is_tx", [False, True])
async def test_a_channel_gets_no_more_than_it_may_hold(tmp_path, is_tx):
    """What waits for a commit is held, too."""
    async with serving(tmp_path, AmqpLimits(unacked=3)) as node:

        def work(raw: Raw) -> None:
            plain, channel = raw.channel(), raw.channel()
            if is_tx:
                transactional(channel)
            queue = plain.queue()
            for number in range(5):
                plain.publish("", queue, str(number))
            plain.count(queue)
            held = [channel.get(queue, no_ack=False) for _ in range(3)]
            assert channel.get(queue, no_ack=True).text == "3"
            if is_tx:
                channel.ack(held[-1].tag, multiple=True)
            with pytest.raises(Refused, match="a channel holds at most 3"):
                channel.get(queue, no_ack=False)
            assert plain.all(queue) == ["0", "1", "2", "4"]

        await talk(node.port, work)


async def test_nobody_waits_for_a_dead_letter_that_cannot_be_written(tmp_path):
    async with serving(tmp_path) as node:

        def work(raw: Raw) -> str:
            channel = raw.channel()
            dead = channel.queue()
            queue = channel.queue(
                arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
            )
            channel.publish("", queue, "1")
            tag = channel.get(queue, no_ack=False).tag
            faults.arm("segment.write", faults.fail_with(28))
            channel.nack(tag, requeue=False)
            assert channel.get(dead) is None
            assert node.broker.troubles.count("amqp-dead-letter") == 1
            faults.disarm()
            return until_message(channel, dead).text

        assert await talk(node.port, work) == "1"


async def test_a_message_of_which_no_letter_can_be_made_is_left_out_and_stays(
    tmp_path, monkeypatch
):
    def fail(*_parts: Any) -> None:
        raise ValueError("a header that cannot be written")

    async with serving(tmp_path) as node:

        def work(raw: Raw) -> list[str]:
            channel = raw.channel()
            dead = channel.queue()
            queue = channel.queue(
                arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
            )
            for text in "12":
                channel.publish("", queue, text)
            held = [channel.get(queue, no_ack=False) for _ in range(2)]
            monkeypatch.setattr(letters, "change_table", fail)
            channel.nack(held[0].tag, requeue=False)
            channel.sync()
            monkeypatch.undo()
            channel.nack(held[1].tag, requeue=False)
            return channel.all(dead)

        assert await talk(node.port, work) == ["2"]
        assert node.broker.troubles.count("amqp-dead-letter") == 1
        assert sum(row.cursor.count for row in node.hub.vhosts.all()[0].queues.values()) == 1
