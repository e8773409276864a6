"""Which reply code does each mistake get, and how far does it reach? (rows 66, 67)"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.amqp_raw import (
    Basic,
    Channel,
    Confirm,
    Exchange,
    Queue,
    RawChannel,
    Refused,
    Tx,
    unique,
)

Mistake = Callable[[RawChannel], object]


def declare(channel: RawChannel, **options) -> object:
    return channel.queue(unique(), **options)


def twice(first: dict, second: dict) -> Mistake:
    def make(channel: RawChannel) -> object:
        name = channel.queue(**first)
        return channel.queue(name, **second)

    return make


def exchange_twice(first: dict, second: dict) -> Mistake:
    def make(channel: RawChannel) -> object:
        name = channel.exchange(**first)
        return channel.exchange(name=name, **{"kind": first.get("kind", "direct"), **second})

    return make


def published(exchange: str, key: str = "k", **options) -> Mistake:
    def make(channel: RawChannel) -> object:
        channel.publish(exchange, key, "x", **options)
        return channel.sync()

    return make


def argued(**arguments) -> Mistake:
    return lambda channel: channel.kept_queue(**arguments)


def double_consumer(channel: RawChannel) -> object:
    queue = channel.queue(exclusive=True)
    channel.consume(queue, "same")
    return channel.consume(queue, "same")


def beside_an_exclusive_consumer(channel: RawChannel) -> object:
    queue = channel.queue(exclusive=True)
    channel.consume(queue, exclusive=True)
    return channel.consume(queue)


def exclusive_beside_another(channel: RawChannel) -> object:
    queue = channel.queue(exclusive=True)
    channel.consume(queue)
    return channel.consume(queue, exclusive=True)


def ack_unknown(channel: RawChannel) -> object:
    channel.ack(7)
    return channel.sync()


def ack_twice(channel: RawChannel) -> object:
    queue = channel.queue(exclusive=True)
    channel.publish("", queue, "1")
    message = channel.get(queue, no_ack=False)
    channel.ack(message.tag)
    channel.ack(message.tag)
    return channel.sync()


def ack_what_needs_none(channel: RawChannel) -> object:
    queue = channel.queue(exclusive=True)
    channel.publish("", queue, "1")
    channel.ack(channel.get(queue, no_ack=True).tag)
    return channel.sync()


def reject_unknown(channel: RawChannel) -> object:
    channel.send(Basic.Reject(delivery_tag=9, requeue=True))
    return channel.sync()


def tx_after_confirm(channel: RawChannel) -> object:
    channel.confirm()
    return channel.ask(Tx.Select(), Tx.SelectOk)


def confirm_after_tx(channel: RawChannel) -> object:
    channel.ask(Tx.Select(), Tx.SelectOk)
    return channel.ask(Confirm.Select(), Confirm.SelectOk)


def delete_used(channel: RawChannel) -> object:
    queue = channel.queue(exclusive=True)
    channel.consume(queue)
    return channel.ask(Queue.Delete(queue=queue, if_unused=True), Queue.DeleteOk)


def delete_full(channel: RawChannel) -> object:
    queue = channel.queue(exclusive=True)
    channel.publish("", queue, "1")
    return channel.ask(Queue.Delete(queue=queue, if_empty=True), Queue.DeleteOk)


def delete_used_exchange(channel: RawChannel) -> object:
    exchange = channel.exchange("fanout")
    channel.bind(channel.queue(exclusive=True), exchange)
    return channel.ask(Exchange.Delete(exchange=exchange, if_unused=True), Exchange.DeleteOk)


def recover_without_requeue(channel: RawChannel) -> object:
    return channel.ask(Basic.Recover(requeue=False), Basic.RecoverOk)


DURABLE = {"durable": True}
MISTAKES: dict[str, tuple[Mistake, str, str]] = {
    "passive declare of no queue": (
        lambda channel: channel.queue("nope", passive=True),
        "channel 404",
        "NOT_FOUND - no queue 'nope' in vhost '/'",
    ),
    "passive declare of no exchange": (
        lambda channel: channel.exchange("direct", "nope", passive=True),
        "channel 404",
        "NOT_FOUND - no exchange 'nope' in vhost '/'",
    ),
    "consume from no queue": (
        lambda channel: channel.consume("nope"),
        "channel 404",
        "NOT_FOUND - no queue 'nope' in vhost '/'",
    ),
    "get from no queue": (lambda channel: channel.get("nope"), "channel 404", "NOT_FOUND - no qu"),
    "purge of no queue": (
        lambda channel: channel.ask(Queue.Purge(queue="nope"), Queue.PurgeOk),
        "channel 404",
        "NOT_FOUND - no queue 'nope' in vhost '/'",
    ),
    "bind of no queue": (
        lambda channel: channel.bind("nope", "amq.direct"),
        "channel 404",
        "NOT_FOUND - no queue 'nope' in vhost '/'",
    ),
    "bind to no exchange": (
        lambda channel: channel.bind(channel.queue(exclusive=True), "nope"),
        "channel 404",
        "NOT_FOUND - no exchange 'nope' in vhost '/'",
    ),
    "bind of no exchange to another": (
        lambda channel: channel.bind_exchange("nope", "amq.direct"),
        "channel 404",
        "NOT_FOUND - no exchange 'nope' in vhost '/'",
    ),
    "an empty name without a last queue": (
        lambda channel: channel.get(""),
        "channel 404",
        "NOT_FOUND - no previously declared queue",
    ),
    "redeclare with another durability": (
        twice({}, {"durable": True}),
        "channel 406",
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue '",
    ),
    "redeclare with another auto-delete": (
        twice({}, {"auto_delete": True}),
        "channel 406",
        "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '",
    ),
    "redeclare with another argument": (
        twice({"arguments": {"x-max-length": 5}}, {"arguments": {"x-max-length": 6}}),
        "channel 406",
        "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '",
    ),
    "redeclare with another exclusivity": (
        twice({}, {"exclusive": True}),
        "channel 405",
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '",
    ),
    "redeclare an exclusive queue as one for all": (
        twice({"exclusive": True}, {"durable": True}),
        "channel 405",
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '",
    ),
    "redeclare with a number of another kind": (
        twice({"arguments": {"x-message-ttl": 10000}}, {"arguments": {"x-message-ttl": 10000.0}}),
        "channel 406",
        "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '",
    ),
    "redeclare without an argument": (
        twice({"arguments": {"x-message-ttl": 5000}}, {}),
        "channel 406",
        "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue '",
    ),
    "redeclare with one argument more": (
        twice({}, {"arguments": {"x-expires": 60000}}),
        "channel 406",
        "PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue '",
    ),
    "redeclare an exchange of another type": (
        exchange_twice({"kind": "direct"}, {"kind": "fanout"}),
        "channel 406",
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange '",
    ),
    "redeclare an exchange with another durability": (
        exchange_twice({}, DURABLE),
        "channel 406",
        "PRECONDITION_FAILED - inequivalent arg 'durable' for exchange '",
    ),
    "redeclare an exchange with another alternate": (
        exchange_twice({}, {"arguments": {"alternate-exchange": "a"}}),
        "channel 406",
        "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange '",
    ),
    "ttl that is no number": (
        argued(message_ttl="soon"),
        "channel 406",
        "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '",
    ),
    "ttl below zero": (
        argued(message_ttl=-1),
        "channel 406",
        "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue '",
    ),
    "expires of zero": (
        argued(expires=0),
        "channel 406",
        "PRECONDITION_FAILED - invalid arg 'x-expires' for queue '",
    ),
    "max length below zero": (
        argued(max_length=-5),
        "channel 406",
        "PRECONDITION_FAILED - invalid arg 'x-max-length' for queue '",
    ),
    "overflow of another kind": (
        argued(overflow="explode"),
        "channel 406",
        "PRECONDITION_FAILED - invalid arg 'x-overflow' for queue '",
    ),
    "priority above 255": (
        argued(max_priority=256),
        "channel 406",
        "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue '",
    ),
    "single active consumer that is no boolean": (
        argued(single_active_consumer="yes"),
        "channel 406",
        "PRECONDITION_FAILED - invalid arg 'x-single-active-consumer' for queue '",
    ),
    "dead-letter key without an exchange": (
        argued(dead_letter_routing_key="k"),
        "channel 406",
        "PRECONDITION_FAILED - invalid arg 'x-dead-letter-routing-key' for queue '",
    ),
    "unknown queue type": (argued(queue_type="paper"), "channel 406", "PRECONDITION_FAILED - "),
    "quorum that is not durable": (
        lambda channel: declare(channel, arguments={"x-queue-type": "quorum"}),
        "channel 406",
        "PRECONDITION_FAILED - invalid property 'non-durable' for queue '",
    ),
    "quorum that is exclusive": (
        lambda channel: declare(
            channel, durable=True, exclusive=True, arguments={"x-queue-type": "quorum"}
        ),
        "channel 406",
        "PRECONDITION_FAILED - invalid property ",
    ),
    "stream that is not durable": (
        lambda channel: declare(channel, arguments={"x-queue-type": "stream"}),
        "channel 406",
        "PRECONDITION_FAILED - invalid property 'non-durable' for queue '",
    ),
    "queue amq.*": (
        lambda channel: channel.queue("amq.mine"),
        "channel 403",
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    "exchange amq.*": (
        lambda channel: channel.exchange("direct", "amq.mine"),
        "channel 403",
        "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
    ),
    "declare the default exchange": (
        lambda channel: channel.exchange("direct", ""),
        "channel 403",
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "bind to the default exchange": (
        lambda channel: channel.bind(channel.queue(exclusive=True), "", "k"),
        "channel 403",
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "unbind from the default exchange": (
        lambda channel: channel.unbind(channel.queue(exclusive=True), "", "k"),
        "channel 403",
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "bind an exchange to the default one": (
        lambda channel: channel.bind_exchange("amq.direct", ""),
        "channel 403",
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "delete the default exchange": (
        lambda channel: channel.ask(Exchange.Delete(exchange=""), Exchange.DeleteOk),
        "channel 403",
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "delete amq.direct": (
        lambda channel: channel.ask(Exchange.Delete(exchange="amq.direct"), Exchange.DeleteOk),
        "channel 403",
        "ACCESS_REFUSED - ",
    ),
    "unknown exchange type": (
        lambda channel: channel.exchange("paper"),
        "connection 503",
        "COMMAND_INVALID - invalid exchange type 'paper'",
    ),
    "second consumer beside an exclusive one": (
        beside_an_exclusive_consumer,
        "channel 403",
        "ACCESS_REFUSED - queue '",
    ),
    "exclusive consumer beside another": (
        exclusive_beside_another,
        "channel 403",
        "ACCESS_REFUSED - queue '",
    ),
    "delete a queue in use": (delete_used, "channel 406", "PRECONDITION_FAILED - queue '"),
    "delete a queue that is not empty": (
        delete_full,
        "channel 406",
        "PRECONDITION_FAILED - queue '",
    ),
    "delete an exchange in use": (
        delete_used_exchange,
        "channel 406",
        "PRECONDITION_FAILED - exchange '",
    ),
    "a consumer tag twice": (
        double_consumer,
        "connection 530",
        "NOT_ALLOWED - attempt to reuse consumer tag 'same'",
    ),
    "ack of an unknown tag": (
        ack_unknown,
        "channel 406",
        "PRECONDITION_FAILED - unknown delivery tag 7",
    ),
    "ack twice": (ack_twice, "channel 406", "PRECONDITION_FAILED - unknown delivery tag 1"),
    "ack of what needs none": (
        ack_what_needs_none,
        "channel 406",
        "PRECONDITION_FAILED - unknown delivery tag 1",
    ),
    "reject of an unknown tag": (
        reject_unknown,
        "channel 406",
        "PRECONDITION_FAILED - unknown delivery tag 9",
    ),
    "publish to no exchange": (
        published("nope"),
        "channel 404",
        "NOT_FOUND - no exchange 'nope' in vhost '/'",
    ),
    "publish with another user's id": (
        published("amq.direct", user_id="somebody"),
        "channel 406",
        "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was",
    ),
    "publish with an expiration that is no number": (
        published("amq.direct", expiration="soon"),
        "channel 406",
        "PRECONDITION_FAILED - invalid expiration 'soon'",
    ),
    "publish with a negative expiration": (
        published("amq.direct", expiration="-1"),
        "channel 406",
        "PRECONDITION_FAILED - invalid expiration '-1'",
    ),
    "publish immediately": (
        published("amq.direct", immediate=True),
        "connection 540",
        "NOT_IMPLEMENTED - immediate=true",
    ),
    "prefetch by size": (
        lambda channel: channel.ask(Basic.Qos(prefetch_size=10), Basic.QosOk),
        "connection 540",
        "NOT_IMPLEMENTED - prefetch_size!=0 (10)",
    ),
    "recover without requeue": (
        recover_without_requeue,
        "connection 540",
        "NOT_IMPLEMENTED - requeue=false",
    ),
    "tx on a channel that confirms": (
        tx_after_confirm,
        "channel 406",
        "PRECONDITION_FAILED - cannot switch from confirm to tx mode",
    ),
    "confirm on a channel with tx": (
        confirm_after_tx,
        "channel 406",
        "PRECONDITION_FAILED - cannot switch from tx to confirm mode",
    ),
    "commit without select": (
        lambda channel: channel.ask(Tx.Commit(), Tx.CommitOk),
        "channel 406",
        "PRECONDITION_FAILED - channel is not transactional",
    ),
    "rollback without select": (
        lambda channel: channel.ask(Tx.Rollback(), Tx.RollbackOk),
        "channel 406",
        "PRECONDITION_FAILED - channel is not transactional",
    ),
    "a consumer priority that is no number": (
        lambda channel: channel.consume(
            channel.queue(exclusive=True), arguments={"x-priority": "high"}
        ),
        "channel 406",
        "PRECONDITION_FAILED - ",
    ),
    "channel.open twice": (
        lambda channel: channel.ask(Channel.Open(), Channel.OpenOk),
        "connection 504",
        "CHANNEL_ERROR - second 'channel.open' seen",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_its_reply_code(call, mistake):
    make, short, text = MISTAKES[mistake]
    raw = call()
    channel = raw.channel()
    with pytest.raises(Refused) as refused:
        make(channel)
    assert (refused.value.short, refused.value.text[: len(text)]) == (short, text)
    if refused.value.scope == "channel":
        raw.channel(channel.number).sync()  # the connection lives, the number is free
    else:
        assert raw.is_ended()


def test_an_exclusive_queue_is_locked_for_other_connections(call):
    owner, other = call().channel(), call()
    queue = owner.queue(exclusive=True)
    for use in (
        lambda channel: channel.queue(queue, passive=True),
        lambda channel: channel.queue(queue, exclusive=True),
        lambda channel: channel.consume(queue),
        lambda channel: channel.get(queue),
        lambda channel: channel.bind(queue, "amq.direct", "k"),
        lambda channel: channel.ask(Queue.Purge(queue=queue), Queue.PurgeOk),
        lambda channel: channel.ask(Queue.Delete(queue=queue), Queue.DeleteOk),
    ):
        with pytest.raises(Refused) as refused:
            use(other.channel(1))
        assert refused.value.short == "channel 405"
        assert refused.value.text.startswith(
            f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}'"
        )


ALLOWED: dict[str, Mistake] = {
    "delete of no queue": lambda channel: channel.ask(Queue.Delete(queue="nope"), Queue.DeleteOk),
    "delete of no exchange": lambda channel: channel.ask(
        Exchange.Delete(exchange="nope"), Exchange.DeleteOk
    ),
    "unbind of no binding": lambda channel: channel.unbind(
        channel.queue(exclusive=True), "amq.direct", "never"
    ),
    "unbind of no queue": lambda channel: channel.unbind("nope", "amq.direct", "never"),
    "unbind from no exchange": lambda channel: channel.unbind(
        channel.queue(exclusive=True), "nope", "never"
    ),
    "unbind of no exchange from another": lambda channel: channel.ask(
        Exchange.Unbind(destination="nope", source="amq.direct", routing_key="k", arguments={}),
        Exchange.UnbindOk,
    ),
    "cancel of no consumer": lambda channel: channel.ask(
        Basic.Cancel(consumer_tag="nobody"), Basic.CancelOk
    ),
    "bind twice": lambda channel: [
        channel.bind(queue, "amq.direct", "k") for queue in [channel.queue(exclusive=True)] * 2
    ],
    "ack of all with nothing outstanding": lambda channel: [
        channel.ack(0, multiple=True),
        channel.sync(),
    ],
    "unknown arguments": lambda channel: channel.queue(
        exclusive=True, arguments={"x-colour": "red", "other": 1}
    ),
    "redeclare the same": twice(
        {"exclusive": True, "arguments": {"x-max-length": 5}},
        {"exclusive": True, "arguments": {"x-max-length": 5}},
    ),
    "classic named or not": twice(
        {"exclusive": True}, {"exclusive": True, "arguments": {"x-queue-type": "classic"}}
    ),
    "select twice": lambda channel: [channel.confirm(), channel.confirm()],
    "tx select twice": lambda channel: [channel.ask(Tx.Select(), Tx.SelectOk) for _ in range(2)],
    "publish with the own user's id": published("amq.direct", user_id="guest"),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_what_is_no_mistake_is_answered(channel, what):
    ALLOWED[what](channel)
    channel.sync()


def test_deletions_of_nothing_say_that_nothing_went(channel):
    assert channel.ask(Queue.Delete(queue="nope"), Queue.DeleteOk).message_count == 0


def test_a_method_with_nowait_is_not_answered(channel):
    queue, exchange = unique(), unique("x")
    channel.send(Queue.Declare(queue=queue, exclusive=True, nowait=True, arguments={}))
    channel.send(Exchange.Declare(exchange=exchange, nowait=True, auto_delete=True, arguments={}))
    channel.send(Queue.Bind(queue=queue, exchange=exchange, nowait=True, arguments={}))
    channel.send(Basic.Consume(queue=queue, consumer_tag="c", nowait=True, arguments={}))
    channel.publish(exchange, "", "1")
    assert channel.message().text == "1"
    channel.send(Basic.Cancel(consumer_tag="c", nowait=True))
    channel.send(Queue.Purge(queue=queue, nowait=True))
    channel.send(Exchange.Delete(exchange=exchange, nowait=True))
    channel.send(Queue.Delete(queue=queue, nowait=True))
    channel.sync()
