"""What does a transaction of a channel (tx) do, and when? (checklist row 89)"""

from __future__ import annotations

import pytest

from tests.conformance.amqp_raw import Message, Queue, Tx


@pytest.fixture
def queue(channel) -> str:
    return channel.queue(exclusive=True)


def fill(channel, queue, count=5) -> list[str]:
    texts = [str(number) for number in range(1, count + 1)]
    for text in texts:
        channel.publish("", queue, text)
    return texts


def transactional(channel):
    channel.ask(Tx.Select(), Tx.SelectOk)
    return channel


def test_nothing_is_published_before_the_commit(call, channel, queue):
    transactional(channel)
    fill(channel, queue, 3)
    assert channel.count(queue) == 0
    channel.ask(Tx.Commit(), Tx.CommitOk)
    assert channel.count(queue) == 3


def test_a_rollback_forgets_publishes_and_keeps_what_is_held(channel, queue):
    fill(channel, queue, 2)
    transactional(channel)
    message = channel.get(queue, no_ack=False)
    channel.ack(message.tag)
    channel.publish("", queue, "new")
    channel.ask(Tx.Rollback(), Tx.RollbackOk)
    channel.nack(message.tag)
    channel.ask(Tx.Commit(), Tx.CommitOk)
    assert channel.all(queue) == ["1", "2"]


def test_acknowledgements_count_with_the_commit(call, channel, queue):
    fill(channel, queue, 3)
    transactional(channel)
    for text in "123":
        message = channel.get(queue, no_ack=False)
        assert message.text == text
    channel.ack(message.tag, multiple=True)
    channel.ask(Tx.Commit(), Tx.CommitOk)
    assert channel.count(queue) == 0
    channel.nack(0, multiple=True)
    channel.ask(Tx.Commit(), Tx.CommitOk)
    assert channel.count(queue) == 0


def test_a_channel_that_ends_before_its_commit_did_nothing(call, channel, writer):
    queue = channel.queue()
    writer.put("", queue, "1")
    other = transactional(call().channel())
    other.ack(other.get(queue, no_ack=False).tag)
    other.publish("", queue, "new")
    other.close()
    assert channel.all(queue) == ["1"]
    channel.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


def test_returns_come_with_the_commit(channel):
    transactional(channel)
    channel.publish("", "no such queue", "1", mandatory=True)
    assert channel.is_silent(0.1)
    channel.send(Tx.Commit())
    found = [channel.raw.read_method(channel.number) for _ in range(2)]
    assert {type(row) for row in found} == {Message, Tx.CommitOk}
