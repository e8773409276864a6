"""What does a transaction of a channel (tx) do, and when? (checklist row 89)"""

from __future__ import annotations

import time

import pytest

from tests.conformance.amqp_raw import Basic, Message, Queue, Refused, Tx, until_message


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


# -- what is acknowledged and not committed


def test_what_was_acknowledged_cannot_be_acknowledged_again_before_the_commit(channel, queue):
    fill(channel, queue, 2)
    transactional(channel)
    first = channel.get(queue, no_ack=False)
    channel.ack(first.tag)
    channel.ack(first.tag)
    with pytest.raises(Refused, match="unknown delivery tag 1") as refused:
        channel.sync()
    assert refused.value.short == "channel 406"


@pytest.mark.parametrize("second", ["ack", "nack", "reject", "ack of many"])
def test_what_was_rejected_cannot_be_settled_again_before_the_commit(channel, queue, second):
    fill(channel, queue, 3)
    transactional(channel)
    held = [channel.get(queue, no_ack=False) for _ in range(3)]
    channel.nack(held[1].tag, requeue=False)
    if second == "ack":
        channel.ack(held[1].tag)
    elif second == "ack of many":
        channel.ack(held[1].tag, multiple=True)
    elif second == "nack":
        channel.nack(held[1].tag)
    else:
        channel.send(Basic.Reject(delivery_tag=held[1].tag, requeue=True))
    with pytest.raises(Refused, match="unknown delivery tag 2"):
        channel.sync()


def test_recover_leaves_what_was_acknowledged_and_not_committed(channel, queue):
    fill(channel, queue, 3)
    transactional(channel)
    channel.consume(queue)
    held = channel.messages(3)
    channel.ack(held[1].tag)
    channel.ask(Basic.Recover(requeue=True), Basic.RecoverOk)
    assert channel.texts(2) == ["1", "3"]
    assert channel.is_silent(0.1)
    channel.ask(Tx.Commit(), Tx.CommitOk)
    channel.ack(0, multiple=True)
    channel.ask(Tx.Commit(), Tx.CommitOk)
    assert channel.count(queue) == 0


def test_many_leaves_out_what_was_settled_before(channel, queue):
    fill(channel, queue, 4)
    transactional(channel)
    held = [channel.get(queue, no_ack=False) for _ in range(4)]
    channel.nack(held[1].tag)
    channel.ack(held[3].tag, multiple=True)
    channel.ask(Tx.Commit(), Tx.CommitOk)
    assert channel.all(queue) == ["2"]


def test_a_rollback_gives_every_acknowledgement_back_in_order(channel, queue):
    fill(channel, queue, 6)
    transactional(channel)
    held = [channel.get(queue, no_ack=False) for _ in range(6)]
    channel.ack(held[4].tag)
    channel.nack(held[0].tag, requeue=False)
    channel.ack(held[2].tag, multiple=True)
    channel.ask(Tx.Rollback(), Tx.RollbackOk)
    channel.ack(held[2].tag, multiple=True)
    channel.nack(0, multiple=True)
    channel.ask(Tx.Commit(), Tx.CommitOk)
    assert channel.all(queue) == ["4", "5", "6"]


def test_the_prefetch_counts_what_is_not_committed(channel, writer):
    queue = channel.queue()
    channel.qos(2)
    transactional(channel)
    channel.consume(queue)
    writer.put("", queue, "1", "2", "3")
    held = channel.messages(2)
    channel.ack(held[0].tag)
    assert channel.is_silent(0.1)
    channel.send(Tx.Commit())
    found = [channel.raw.read_method(channel.number) for _ in range(2)]
    assert {type(row) for row in found} == {Message, Tx.CommitOk}
    writer.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


# -- what is published and not committed


@pytest.mark.parametrize("how", ["message", "queue"])
def test_a_message_begins_to_end_with_the_commit(channel, how):
    arguments = {"x-message-ttl": 500} if how == "queue" else {}
    queue = channel.queue(exclusive=True, arguments=arguments)
    transactional(channel)
    channel.publish("", queue, "1", **({"expiration": "500"} if how == "message" else {}))
    time.sleep(0.8)  # longer than it lives
    channel.ask(Tx.Commit(), Tx.CommitOk)
    assert channel.get(queue).text == "1"


def test_a_mandatory_message_whose_queue_went_before_the_commit_is_returned(channel):
    gone, kept = channel.queue(), channel.queue(exclusive=True)
    transactional(channel)
    channel.publish("", gone, "back", mandatory=True, message_id="7", headers={"a": 1})
    channel.publish("", kept, "there", mandatory=True)
    channel.ask(Queue.Delete(queue=gone), Queue.DeleteOk)
    channel.send(Tx.Commit())
    found = [channel.raw.read_method(channel.number) for _ in range(2)]
    (returned,) = [row for row in found if isinstance(row, Message)]
    assert (returned.method.reply_code, returned.method.routing_key) == (312, gone)
    assert (returned.text, returned.properties.message_id) == ("back", "7")
    assert returned.headers == {"a": 1}
    assert channel.all(kept) == ["there"]


def test_a_message_whose_queue_went_before_the_commit_is_gone(channel):
    gone = channel.queue()
    transactional(channel)
    channel.publish("", gone, "1")
    channel.ask(Queue.Delete(queue=gone), Queue.DeleteOk)
    channel.ask(Tx.Commit(), Tx.CommitOk)
    channel.queue(gone, exclusive=True)
    assert channel.get(gone) is None


def test_dead_letters_of_a_transaction_come_with_its_commit(channel):
    dead = channel.queue(exclusive=True)
    queue = channel.queue(
        exclusive=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead},
    )
    fill(channel, queue, 1)
    message = channel.get(queue, no_ack=False)
    transactional(channel)
    channel.nack(message.tag, requeue=False)
    assert channel.count(dead) == 0
    channel.ask(Tx.Commit(), Tx.CommitOk)
    assert until_message(channel, dead).headers["x-death"][0]["reason"] == "rejected"
