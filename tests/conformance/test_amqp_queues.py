"""What is a queue, and when does it go? (checklist rows 58, 66 to 77)"""

from __future__ import annotations

import time

import pytest

from tests.conformance.amqp_raw import (
    Basic,
    Channel,
    Exchange,
    Queue,
    Refused,
    unique,
    until_message,
)


def gone(channel, queue) -> bool:
    """Whether a queue is not there (any more)."""
    try:
        channel.raw.channel(99).queue(queue, passive=True)
    except Refused as refused:
        assert refused.short == "channel 404"
        return True
    channel.raw.channels[99].close()
    return False


def until_gone(channel, queue, wait_s=5.0) -> None:
    began = time.monotonic()
    while not gone(channel, queue):
        assert time.monotonic() - began < wait_s, f"{queue} is still there"
        time.sleep(0.05)


def test_declare_ok_tells_how_many_messages_and_consumers_there_are(channel, writer):
    queue = unique()
    found = channel.ask(Queue.Declare(queue=queue, arguments={}), Queue.DeclareOk)
    assert (found.queue, found.message_count, found.consumer_count) == (queue, 0, 0)
    writer.put("", queue, "1", "2", "3")
    channel.qos(1)
    channel.consume(queue)
    channel.message()
    found = writer.ask(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
    assert (found.message_count, found.consumer_count) == (2, 1)
    assert channel.ask(Queue.Delete(queue=queue), Queue.DeleteOk).message_count == 2


def test_a_queue_without_a_name_gets_one_and_is_the_last_one_of_its_channel(channel):
    name = channel.queue("", exclusive=True)
    assert name.startswith("amq.gen-")
    assert len(name) == len("amq.gen-") + 22
    exchange = channel.exchange("direct")
    channel.bind("", exchange, "k")
    channel.publish(exchange, "k", "1")
    assert channel.get("").text == "1"
    channel.publish("", name, "2")
    assert channel.all("") == ["2"]
    assert channel.consume("").startswith("amq.ctag-")
    assert channel.queue("", passive=False, exclusive=True) != name


def test_an_empty_queue_and_key_mean_the_last_queue_and_its_name(channel):
    name = channel.queue(exclusive=True)
    channel.bind("", "amq.direct", "")
    channel.publish("amq.direct", name, "1")
    assert channel.all(name) == ["1"]


def test_an_exclusive_queue_goes_with_its_connection(call, channel):
    owner = call()
    queue = owner.channel().queue(exclusive=True)
    owner.socket.close()
    until_gone(channel, queue)


def test_an_exclusive_queue_stays_when_only_its_channel_goes(call):
    raw = call()
    one, two = raw.channel(), raw.channel()
    queue = one.queue(exclusive=True)
    one.close()
    assert two.count(queue) == 0


def test_an_auto_delete_queue_goes_with_its_last_consumer(call, channel):
    raw = call()
    one, two = raw.channel(), raw.channel()
    queue = one.queue(auto_delete=True)
    tag = one.consume(queue)
    two.consume(queue)
    one.ask(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)
    assert not gone(channel, queue)
    two.close()
    until_gone(channel, queue)


def test_an_auto_delete_queue_without_a_consumer_stays(channel, call):
    other = call().channel()
    queue = other.queue(auto_delete=True)
    other.publish("", queue, "1")
    assert other.all(queue) == ["1"]
    other.raw.close()
    assert not gone(channel, queue)


def test_an_unused_queue_goes_after_its_time(channel):
    queue = channel.queue(arguments={"x-expires": 900})
    time.sleep(0.2)
    assert not gone(channel, queue)  # to look at it is to use it
    time.sleep(1.5)
    assert gone(channel, queue)


def test_a_queue_in_use_does_not_expire(channel):
    queue = channel.queue(arguments={"x-expires": 900})
    for _ in range(7):
        time.sleep(0.15)
        assert channel.get(queue) is None
    for _ in range(7):
        time.sleep(0.15)
        channel.queue(queue, arguments={"x-expires": 900})
    tag = channel.consume(queue)
    time.sleep(1)
    channel.ask(Basic.Cancel(consumer_tag=tag), Basic.CancelOk)
    time.sleep(1.5)
    assert gone(channel, queue)


def test_purge_takes_what_waits_and_leaves_what_is_out(channel):
    queue = channel.queue(exclusive=True)
    for text in "1234":
        channel.publish("", queue, text)
    held = channel.get(queue, no_ack=False)
    assert channel.ask(Queue.Purge(queue=queue), Queue.PurgeOk).message_count == 3
    assert channel.get(queue) is None
    channel.nack(held.tag)
    assert channel.all(queue) == ["1"]


def test_a_queue_whose_messages_are_all_out_is_empty(channel):
    queue = channel.queue()
    for text in "12":
        channel.publish("", queue, text)
    held = [channel.get(queue, no_ack=False) for _ in range(2)]
    channel.nack(held[1].tag)
    with pytest.raises(Refused, match="not empty") as refused:
        channel.ask(Queue.Delete(queue=queue, if_empty=True), Queue.DeleteOk)
    assert refused.value.short == "channel 406"
    other = channel.raw.channel(7)
    assert [other.get(queue, no_ack=False).text for _ in range(2)] == ["1", "2"]
    found = other.ask(Queue.Delete(queue=queue, if_empty=True), Queue.DeleteOk)
    assert found.message_count == 0


def test_deleting_a_queue_tells_its_consumers_who_understand_it(call):
    raw = call()
    channel, other = raw.channel(), raw.channel()
    queue = channel.queue()
    channel.consume(queue, "mine")
    assert other.ask(Queue.Delete(queue=queue), Queue.DeleteOk).message_count == 0
    found = channel.expect(Basic.Cancel)
    assert found.consumer_tag == "mine"
    deaf = call(capabilities={})
    channel = deaf.channel()
    queue = channel.queue()
    channel.consume(queue)
    channel.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
    assert channel.is_silent()


def test_what_was_out_when_its_queue_went_may_be_acknowledged(channel):
    queue = channel.queue()
    channel.publish("", queue, "1")
    message = channel.get(queue, no_ack=False)
    channel.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
    channel.ack(message.tag)
    channel.sync()


# -- time to live


def test_a_message_ends_after_the_time_of_its_queue(writer):
    queue = writer.queue(exclusive=True, arguments={"x-message-ttl": 500})
    writer.put("", queue, "1")
    assert writer.count(queue) == 1
    time.sleep(0.8)
    assert writer.count(queue) == 0


def test_a_message_ends_after_its_own_time_if_that_is_shorter(channel):
    queue = channel.queue(exclusive=True, arguments={"x-message-ttl": 60000})
    channel.publish("", queue, "short", expiration="300")
    channel.publish("", queue, "long")
    time.sleep(0.6)
    assert channel.all(queue) == ["long"]


def test_a_message_behind_one_that_lives_longer_ends_at_the_head(channel):
    queue = channel.queue(exclusive=True)
    channel.publish("", queue, "long")
    channel.publish("", queue, "short", expiration="100")
    time.sleep(0.4)
    assert channel.count(queue) == 2
    assert channel.all(queue) == ["long"]


def test_the_next_message_ends_once_the_head_is_gone(channel):
    queue = channel.queue(exclusive=True)
    channel.publish("", queue, "long")
    channel.publish("", queue, "short", expiration="500")
    assert channel.get(queue).text == "long"
    time.sleep(1)
    assert channel.count(queue) == 0


@pytest.mark.parametrize("how", ["queue", "message"])
def test_time_zero_delivers_to_who_waits_and_to_nobody_else(channel, how):
    arguments = {"x-message-ttl": 0} if how == "queue" else {}
    options = {} if how == "queue" else {"expiration": "0"}
    queue = channel.queue(exclusive=True, arguments=arguments)
    channel.publish("", queue, "nobody", **options)
    channel.sync()
    time.sleep(0.1)
    assert channel.count(queue) == 0
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, "somebody", **options)
    assert channel.message().text == "somebody"


def test_a_message_that_comes_back_ends_at_its_old_time(channel):
    queue = channel.queue(exclusive=True, arguments={"x-message-ttl": 500})
    channel.publish("", queue, "1")
    held = channel.get(queue, no_ack=False)
    time.sleep(0.7)
    channel.nack(held.tag)
    time.sleep(0.2)
    assert channel.count(queue) == 0


# -- length


def test_a_full_queue_drops_from_its_head(writer):
    queue = writer.queue(exclusive=True, arguments={"x-max-length": 3})
    writer.put("", queue, *"12345")
    assert writer.count(queue) == 3
    assert writer.all(queue) == ["3", "4", "5"]


def test_what_is_out_does_not_count_for_the_length(channel):
    queue = channel.queue(exclusive=True, arguments={"x-max-length": 2})
    for text in "12":
        channel.publish("", queue, text)
    assert channel.get(queue, no_ack=False).text == "1"
    channel.publish("", queue, "3")
    assert channel.all(queue) == ["2", "3"]


def test_what_comes_back_to_a_full_queue_makes_it_drop_its_head(writer):
    queue = writer.queue(exclusive=True, arguments={"x-max-length": 2})
    writer.put("", queue, "1", "2")
    held = writer.get(queue, no_ack=False)
    writer.put("", queue, "3")
    writer.nack(held.tag)
    assert writer.all(queue) == ["2", "3"]


def test_a_length_in_bytes_counts_bodies(channel):
    queue = channel.queue(exclusive=True, arguments={"x-max-length-bytes": 10})
    for text in ("aaaa", "bbbb", "cccc"):
        channel.publish("", queue, text)
    assert channel.all(queue) == ["bbbb", "cccc"]
    channel.publish("", queue, "far too long")
    assert channel.all(queue) == []


def test_a_consumer_gets_all_of_a_burst_whatever_the_length(channel, writer):
    queue = channel.queue(arguments={"x-max-length": 1})
    channel.consume(queue, no_ack=True)
    writer.put("", queue, *map(str, range(50)))
    assert channel.texts(50) == [str(number) for number in range(50)]
    channel.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


@pytest.mark.parametrize("limit", ["x-max-length", "x-max-length-bytes"])
def test_what_a_consumer_has_room_for_needs_no_length(channel, limit):
    queue = channel.queue(exclusive=True, arguments={limit: 0})
    channel.publish("", queue, "nobody")
    assert channel.count(queue) == 0
    channel.consume(queue, no_ack=True)
    for text in "123":
        channel.publish("", queue, text)
    assert channel.texts(3) == ["1", "2", "3"]
    assert channel.count(queue) == 0


def outcomes(writer, count) -> list[str]:
    """What each publish was told."""
    told: dict[int, str] = {}
    last = 0
    while last < count:
        found = writer.raw.read_method(writer.number)
        tags = range(last + 1, found.delivery_tag + 1) if found.multiple else [found.delivery_tag]
        for tag in tags:
            told.setdefault(tag, type(found).__name__)
        last = len(told)
    return [told[number] for number in range(1, count + 1)]


@pytest.mark.parametrize("limit", [{"x-max-length": 2}, {"x-max-length-bytes": 2}])
def test_a_full_queue_that_rejects_nacks(writer, limit):
    queue = writer.queue(exclusive=True, arguments={**limit, "x-overflow": "reject-publish"})
    for text in "1234":
        writer.publish("", queue, text)
    assert outcomes(writer, 4) == ["Ack", "Ack", "Nack", "Nack"]
    assert writer.all(queue) == ["1", "2"]
    writer.publish("", queue, "5")
    assert isinstance(writer.raw.read_method(writer.number), Basic.Ack)


def test_a_full_queue_may_send_what_it_rejects_to_its_dead_letter_exchange(writer):
    dead = writer.queue(exclusive=True)
    queue = writer.queue(
        exclusive=True,
        arguments={
            "x-max-length": 1,
            "x-overflow": "reject-publish-dlx",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    for text in "12":
        writer.publish("", queue, text)
    assert outcomes(writer, 2) == ["Ack", "Nack"]
    message = until_message(writer, dead)
    assert message.text == "2"
    assert message.headers["x-death"][0]["reason"] == "maxlen"


def test_a_message_that_one_of_two_queues_rejects_is_nacked(writer):
    exchange = writer.exchange("fanout")
    full = writer.queue(
        exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    free = writer.queue(exclusive=True)
    for queue in (full, free):
        writer.bind(queue, exchange)
    for text in "12":
        writer.publish(exchange, "", text)
    assert outcomes(writer, 2) == ["Ack", "Nack"]
    assert writer.all(free) == ["1", "2"]


# -- dead letters


def with_dead(channel, key: str | None = None, **arguments) -> tuple[str, str, str]:
    """A queue, the queue of its dead letters, and the exchange between them."""
    exchange = channel.exchange("fanout")
    dead = channel.queue(exclusive=True)
    channel.bind(dead, exchange)
    chosen = {"x-dead-letter-exchange": exchange, **arguments}
    if key is not None:
        chosen["x-dead-letter-routing-key"] = key
    return channel.queue(exclusive=True, arguments=chosen), dead, exchange


def test_a_rejected_message_tells_of_its_death(channel):
    queue, dead, exchange = with_dead(channel)
    channel.publish("", queue, "1", headers={"own": "header"}, message_id="m1", delivery_mode=2)
    channel.nack(channel.get(queue, no_ack=False).tag, requeue=False)
    message = until_message(channel, dead)
    assert (message.text, message.properties.message_id) == ("1", "m1")
    assert (message.method.exchange, message.method.routing_key) == (exchange, queue)
    headers = message.headers
    (death,) = headers["x-death"]
    assert abs(death.pop("time").timestamp() - time.time()) < 60
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
    }
    assert headers["own"] == "header"
    assert headers["x-first-death-reason"] == "rejected"
    assert headers["x-first-death-queue"] == queue
    assert headers["x-first-death-exchange"] == ""


def test_an_expired_message_loses_its_expiration_and_tells_it(channel):
    queue, dead, _exchange = with_dead(channel, key="other key")
    channel.publish("", queue, "1", expiration="50")
    message = until_message(channel, dead)
    assert message.properties.expiration is None
    assert message.method.routing_key == "other key"
    (death,) = message.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "50")


def test_deaths_count_per_queue_and_reason_the_newest_first(channel):
    queue, dead, _exchange = with_dead(channel)
    channel.publish("", queue, "1")
    for _ in range(2):
        channel.nack(channel.get(queue, no_ack=False).tag, requeue=False)
        message = until_message(channel, dead)
        channel.publish("", queue, message.body, headers=message.headers)
    channel.nack(channel.get(queue, no_ack=False).tag, requeue=False)
    (death,) = until_message(channel, dead).headers["x-death"]
    assert (death["count"], death["reason"], death["exchange"]) == (3, "rejected", "")


def deaths_of(channel, told: object) -> tuple[list[dict], dict]:
    """The deaths of a message that tells of such before, and its other headers."""
    queue, dead, _exchange = with_dead(channel)
    if isinstance(told, list):
        told = [{**row, "queue": row["queue"] or queue} for row in told]
    channel.publish("", queue, "1", headers={"x-death": told})
    channel.nack(channel.get(queue, no_ack=False).tag, requeue=False)
    headers = dict(until_message(channel, dead).headers)
    deaths = headers.pop("x-death")
    return [
        {**row, "queue": "" if row["queue"] == queue else row["queue"]} for row in deaths
    ], headers


def test_deaths_of_old_brokers_become_one_per_queue_and_reason(channel):
    """Before RabbitMQ 3.5 each death was an entry of its own, without a count."""
    here, there = ({"queue": name, "reason": "rejected", "exchange": "x"} for name in ("", "o"))
    deaths, headers = deaths_of(channel, [here, there, here, here, there])
    assert [(row["queue"], row["count"]) for row in deaths] == [("", 4), ("o", 2)]
    assert deaths[0]["exchange"] == "x"
    assert "x-first-death-queue" not in headers


def test_deaths_that_are_counted_keep_their_count(channel):
    here = {"queue": "", "reason": "rejected", "count": 7}
    there = {"queue": "o", "reason": "expired", "count": 3}
    deaths, _headers = deaths_of(channel, [there, here, there])
    assert [(row["queue"], row["count"]) for row in deaths] == [("", 8), ("o", 3)]


def test_a_death_without_a_count_was_none(channel):
    deaths, _headers = deaths_of(channel, [{"queue": "", "reason": "rejected"}])
    assert [(row["queue"], row["count"]) for row in deaths] == [("", 1)]


def test_deaths_that_are_no_list_are_told_anew(channel):
    deaths, headers = deaths_of(channel, "text")
    assert [(row["queue"], row["count"]) for row in deaths] == [("", 1)]
    assert "x-first-death-queue" not in headers


def test_what_a_channel_rejected_its_next_get_finds_among_the_dead_letters(amqp, channel):
    if not amqp.is_ours:
        pytest.skip("RabbitMQ sends dead letters beside the channel: the get may be first")
    queue, dead, _exchange = with_dead(channel)
    for number in range(20):
        channel.publish("", queue, str(number))
        channel.nack(channel.get(queue, no_ack=False).tag, requeue=False)
        assert channel.get(dead).text == str(number)
        channel.publish("", queue, str(number))
        channel.nack(channel.get(queue, no_ack=False).tag, requeue=False)
        assert channel.count(dead) == 1
        assert channel.ask(Queue.Purge(queue=dead), Queue.PurgeOk).message_count == 1


def test_a_dead_letter_key_takes_the_cc_away_and_none_keeps_it(channel):
    for key, routed in (("k", []), (None, ["cc"])):
        exchange = channel.exchange("direct")
        dead = channel.queue(exclusive=True)
        channel.bind(dead, exchange, key or "cc")
        arguments = {"x-dead-letter-exchange": exchange}
        if key is not None:
            arguments["x-dead-letter-routing-key"] = key
        queue = channel.queue(exclusive=True, arguments=arguments)
        channel.publish("", queue, "1", headers={"CC": ["cc"]})
        channel.nack(channel.get(queue, no_ack=False).tag, requeue=False)
        message = until_message(channel, dead)
        assert message.headers.get("CC", []) == routed
        assert message.headers["x-death"][0]["routing-keys"] == [queue, "cc"]


def test_a_message_that_would_go_round_by_itself_is_dropped(channel):
    queue = unique()
    channel.queue(
        queue,
        exclusive=True,
        arguments={
            "x-message-ttl": 50,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue,
        },
    )
    channel.publish("", queue, "1")
    time.sleep(0.5)
    assert channel.count(queue) == 0


def test_only_the_queue_of_the_circle_is_left_out(channel):
    exchange, queue = channel.exchange("fanout"), unique()
    channel.queue(
        queue, exclusive=True, arguments={"x-message-ttl": 50, "x-dead-letter-exchange": exchange}
    )
    other = channel.queue(exclusive=True)
    for name in (queue, other):
        channel.bind(name, exchange)
    channel.publish("", queue, "1")
    message = until_message(channel, other)
    assert message.headers["x-death"][0]["count"] == 1
    time.sleep(0.3)
    assert channel.count(queue) == 0
    assert channel.get(other) is None


def test_a_circle_with_a_rejection_goes_on(channel):
    """The retry queue that everybody has: reject, wait, come back."""
    work, wait = unique(), unique()
    channel.queue(
        work,
        exclusive=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait},
    )
    channel.queue(
        wait,
        exclusive=True,
        arguments={
            "x-message-ttl": 30,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": work,
        },
    )
    channel.publish("", work, "1")
    channel.consume(work)
    for round_ in range(1, 5):
        message = channel.message()
        deaths = message.headers.get("x-death", [])
        assert [(row["queue"], row["count"]) for row in deaths] == (
            [(wait, round_ - 1), (work, round_ - 1)] if round_ > 1 else []
        )
        channel.nack(message.tag, requeue=False)


def test_a_dead_letter_exchange_that_is_not_there_drops(channel):
    queue = channel.queue(exclusive=True, arguments={"x-dead-letter-exchange": "nobody"})
    channel.publish("", queue, "1")
    channel.nack(channel.get(queue, no_ack=False).tag, requeue=False)
    channel.sync()
    assert channel.count(queue) == 0


def test_dropped_heads_are_dead_letters_too(channel):
    queue, dead, _exchange = with_dead(channel, **{"x-max-length": 1})
    for text in "12":
        channel.publish("", queue, text)
    message = until_message(channel, dead)
    assert (message.text, message.headers["x-death"][0]["reason"]) == ("1", "maxlen")


def test_header_types_survive_a_death(channel):
    queue, dead, _exchange = with_dead(channel)
    table = {"int": 5, "big": 2**40, "list": [1, "a", {"b": True}], "none": None, "x": 1.5}
    channel.publish("", queue, "1", headers=table)
    channel.nack(channel.get(queue, no_ack=False).tag, requeue=False)
    headers = until_message(channel, dead).headers
    assert {name: headers[name] for name in table} == table


# -- priorities and single active consumers


def test_higher_priorities_go_first_and_equals_in_order(channel):
    queue = channel.queue(exclusive=True, arguments={"x-max-priority": 5})
    for text, priority in (("a", 0), ("b", 3), ("c", 5), ("d", 3), ("e", 9), ("f", None)):
        options = {} if priority is None else {"priority": priority}
        channel.publish("", queue, text, **options)
    assert channel.all(queue) == ["c", "e", "b", "d", "a", "f"]


def test_a_full_priority_queue_drops_from_its_head_too(channel):
    queue = channel.queue(exclusive=True, arguments={"x-max-priority": 5, "x-max-length": 2})
    for text, priority in (("low", 1), ("high", 5), ("last", 1)):
        channel.publish("", queue, text, priority=priority)
    assert channel.all(queue) == ["low", "last"]


def test_requeued_priorities_go_back_to_where_they_were(channel):
    queue = channel.queue(exclusive=True, arguments={"x-max-priority": 5})
    for text, priority in (("a", 1), ("b", 5), ("c", 1)):
        channel.publish("", queue, text, priority=priority)
    for _ in range(3):
        channel.get(queue, no_ack=False)
    channel.nack(0, multiple=True)
    assert channel.all(queue) == ["b", "a", "c"]


def test_with_a_single_active_consumer_the_next_takes_over(call, writer):
    queue = writer.kept_queue(single_active_consumer=True)
    raw = call()
    one, two = raw.channel(), raw.channel()
    for channel in (one, two):
        channel.consume(queue)
    writer.put("", queue, "1", "2")
    assert one.texts(2) == ["1", "2"]
    assert two.is_silent()
    one.close()
    found = two.messages(2)
    assert [(message.text, message.method.redelivered) for message in found] == [
        ("1", True),
        ("2", True),
    ]
    writer.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


def test_a_quorum_queue_counts_deliveries_and_gives_up(writer):
    dead = writer.queue(exclusive=True)
    queue = writer.kept_queue(
        queue_type="quorum",
        delivery_limit=2,
        dead_letter_exchange="",
        dead_letter_routing_key=dead,
    )
    writer.put("", queue, "1")
    writer.consume(queue, "c")
    for number in range(3):
        message = writer.message()
        assert message.headers.get("x-delivery-count", 0) == number
        assert message.method.redelivered == (number > 0)
        writer.nack(message.tag)
    writer.ask(Basic.Cancel(consumer_tag="c"), Basic.CancelOk)
    message = until_message(writer, dead)
    assert message.headers["x-death"][0]["reason"] == "delivery_limit"
    writer.ask(Queue.Delete(queue=queue), Queue.DeleteOk)


def test_lazy_and_other_known_arguments_are_taken(channel):
    for arguments in (
        {"x-queue-mode": "lazy"},
        {"x-queue-master-locator": "min-masters"},
        {"x-max-priority": 10, "x-queue-mode": "default"},
    ):
        channel.queue(exclusive=True, arguments=arguments)


def test_an_exchange_and_a_queue_may_have_one_name(channel):
    name = unique()
    channel.queue(name, exclusive=True)
    channel.exchange("fanout", name, auto_delete=True)
    channel.publish("", name, "queue")
    channel.publish(name, "", "exchange")
    assert channel.all(name) == ["queue"]
    channel.bind(name, name)
    channel.publish(name, "", "exchange")
    assert channel.all(name) == ["exchange"]


def test_names_of_any_characters_do_not_meet(channel):
    names = [f"{unique()}{tail}" for tail in ("", "/a", ".a", "+", "#", " é", "_x2F_a", "@v", "%")]
    for name in names:
        channel.queue(name, exclusive=True)
    for name in names:
        channel.publish("", name, name)
    assert [channel.all(name) for name in names] == [[name] for name in names]
    for name in names:
        channel.exchange("direct", name, auto_delete=True)
        channel.bind(name, name, "key/with.all#+")
    for name in names:
        channel.publish(name, "key/with.all#+", name)
    assert [channel.all(name) for name in names] == [[name] for name in names]


def test_a_long_name_is_taken(channel):
    name = "q" * 200 + unique()
    channel.queue(name, exclusive=True)
    channel.exchange("fanout", name, auto_delete=True)
    channel.bind(name, name)
    channel.publish(name, "k" * 255, "1")
    assert channel.get(name).method.routing_key == "k" * 255
    channel.ask(Exchange.Delete(exchange=name), Exchange.DeleteOk)
    assert channel.ask(Channel.Flow(active=True), Channel.FlowOk).active


def test_ends_of_lines_in_names_do_not_count(channel):
    """They come from files that were read; what is declared with them is found without."""
    name, exchange = unique(), unique("x")
    assert channel.queue(f"{name}\r\n", exclusive=True) == name
    assert channel.queue(name, exclusive=True) == name
    channel.exchange("fanout", f"{exchange}\n", auto_delete=True)
    channel.bind(f"{name}\n", f"{exchange}\r", "")
    channel.publish(exchange, "", "1")
    assert until_message(channel, name).text == "1"
    channel.ask(Queue.Delete(queue=f"{name}\r\n"), Queue.DeleteOk)
    with pytest.raises(Refused, match="no queue"):
        channel.count(name)
