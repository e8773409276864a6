"""Where does a message go? (checklist rows 56 to 64)"""

from __future__ import annotations

import pytest

from tests.conformance.amqp_raw import Basic, Channel, Exchange, Queue, Refused, unique


def queues_of(channel, exchange, *bindings) -> list[str]:
    """One queue per binding (key, or key and arguments)."""
    found = []
    for binding in bindings:
        key, arguments = binding if isinstance(binding, tuple) else (binding, {})
        queue = channel.queue(exclusive=True)
        channel.bind(queue, exchange, key, **arguments)
        found.append(queue)
    return found


def contents(channel, queues) -> list[list[str]]:
    return [channel.all(queue) for queue in queues]


def test_direct_compares_the_key(channel):
    exchange = channel.exchange("direct")
    queues = queues_of(channel, exchange, "a", "b", "a")
    channel.publish(exchange, "a", "1")
    channel.publish(exchange, "b", "2")
    channel.publish(exchange, "", "3")
    assert contents(channel, queues) == [["1"], ["2"], ["1"]]


def test_fanout_takes_all(channel):
    exchange = channel.exchange("fanout")
    queues = queues_of(channel, exchange, "a", "")
    channel.publish(exchange, "x", "1")
    channel.publish(exchange, "", "2")
    assert contents(channel, queues) == [["1", "2"], ["1", "2"]]


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("a.b", {"a.b"}),
        ("a.*", {"a.b", "a."}),
        ("*.b", {"a.b"}),
        ("#", {"a", "a.b", "a.b.c", "", "a.", "a..c"}),
        ("a.#", {"a", "a.b", "a.b.c", "a.", "a..c"}),
        ("#.c", {"a.b.c", "a..c"}),
        ("a.#.c", {"a.b.c", "a..c"}),
        ("*", {"a"}),
        ("a.*.c", {"a.b.c", "a..c"}),
        ("a..c", {"a..c"}),
        ("#.#", {"a", "a.b", "a.b.c", "", "a.", "a..c"}),
        ("*.#", {"a", "a.b", "a.b.c", "a.", "a..c"}),
    ],
)
def test_topic_matches_words(channel, pattern, keys):
    exchange = channel.exchange("topic")
    (queue,) = queues_of(channel, exchange, pattern)
    for key in ("a", "a.b", "a.b.c", "", "a.", "a..c"):
        channel.publish(exchange, key, key)
    assert set(channel.all(queue)) == keys


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"x-match": "all", "a": 1, "b": "two"}, {"both"}),
        ({"x-match": "any", "a": 1, "b": "two"}, {"both", "one", "other"}),
        ({"a": 1, "b": "two"}, {"both"}),
        ({"x-match": "all"}, {"both", "one", "other", "x", "none"}),
        ({"x-match": "any"}, set()),
        ({"x-match": "all", "x-a": 1}, {"both", "one", "other", "x", "none"}),
        ({"x-match": "all-with-x", "x-a": 1}, {"x"}),
        ({"x-match": "any-with-x", "x-a": 1, "a": 1}, {"both", "one", "x"}),
        ({"x-match": "all", "a": None}, {"both", "one", "other"}),
    ],
)
def test_headers_compares_header_values(channel, arguments, taken):
    exchange = channel.exchange("headers")
    (queue,) = queues_of(channel, exchange, ("", arguments))
    for name, table in (
        ("both", {"a": 1, "b": "two", "c": 3}),
        ("one", {"a": 1}),
        ("other", {"b": "two", "a": 7}),
        ("x", {"x-a": 1}),
        ("none", None),
    ):
        channel.publish(exchange, "key", name, headers=table)
    assert set(channel.all(queue)) == taken


def test_a_wrong_x_match_is_refused_with_406(channel):
    exchange = channel.exchange("headers")
    queue = channel.queue(exclusive=True)
    with pytest.raises(Refused) as refused:
        channel.bind(queue, exchange, "", **{"x-match": "some"})
    assert refused.value.short == "channel 406"


def test_every_queue_is_bound_to_the_default_exchange_by_its_name(channel):
    queue = channel.queue(exclusive=True)
    channel.publish("", queue, "1")
    assert channel.all(queue) == ["1"]


def test_a_queue_gets_one_copy_whatever_number_of_bindings_match(channel):
    exchange = channel.exchange("topic")
    queue = channel.queue(exclusive=True)
    for key in ("a.*", "#", "a.b"):
        channel.bind(queue, exchange, key)
    channel.publish(exchange, "a.b", "once")
    assert channel.all(queue) == ["once"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_the_exchanges_of_the_standard_are_there(channel, name, kind):
    channel.exchange(kind, name, durable=True)
    channel.exchange(kind, name, passive=True)
    key = unique("k")
    (queue,) = queues_of(channel, name, (key, {"mark": key}))
    channel.publish(name, key, "1", headers={"mark": key})
    assert channel.all(queue) == ["1"]


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel):
    exchange = channel.exchange("fanout", auto_delete=True)
    one, two = queues_of(channel, exchange, "", "")
    channel.unbind(one, exchange)
    channel.exchange("fanout", exchange, passive=True)
    channel.ask(Queue.Delete(queue=two), Queue.DeleteOk)
    with pytest.raises(Refused) as refused:
        channel.exchange("fanout", exchange, passive=True)
    assert refused.value.short == "channel 404"


def test_an_auto_delete_exchange_that_was_never_bound_stays(channel):
    exchange = channel.exchange("fanout", auto_delete=True)
    channel.exchange("fanout", exchange, passive=True)


def test_an_internal_exchange_takes_only_from_exchanges(channel):
    outer, inner = channel.exchange("fanout"), channel.exchange("fanout", internal=True)
    channel.bind_exchange(inner, outer)
    (queue,) = queues_of(channel, inner, "")
    channel.publish(outer, "", "1")
    assert channel.all(queue) == ["1"]
    channel.publish(inner, "", "2")
    with pytest.raises(Refused) as refused:
        channel.sync()
    assert refused.value.short == "channel 403"


def test_exchanges_feed_exchanges_by_their_own_rules(channel):
    first, second = channel.exchange("topic"), channel.exchange("direct")
    channel.bind_exchange(second, first, "a.#")
    (queue,) = queues_of(channel, second, "a.b")
    for key in ("a.b", "a.c", "b"):
        channel.publish(first, key, key)
    assert channel.all(queue) == ["a.b"]
    channel.ask(
        Exchange.Unbind(destination=second, source=first, routing_key="a.#", arguments={}),
        Exchange.UnbindOk,
    )
    channel.publish(first, "a.b", "no more")
    assert channel.all(queue) == []


def test_a_cycle_of_exchanges_ends(channel):
    one, two = channel.exchange("fanout"), channel.exchange("fanout")
    channel.bind_exchange(one, two)
    channel.bind_exchange(two, one)
    queues = [*queues_of(channel, one, ""), *queues_of(channel, two, "")]
    channel.publish(one, "", "1")
    assert contents(channel, queues) == [["1"], ["1"]]


def test_what_finds_no_queue_goes_to_the_alternate_exchange(channel):
    other = channel.exchange("fanout")
    exchange = channel.exchange("direct", arguments={"alternate-exchange": other})
    (queue,) = queues_of(channel, exchange, "a")
    (rest,) = queues_of(channel, other, "")
    channel.publish(exchange, "a", "1")
    channel.publish(exchange, "b", "2", mandatory=True)
    assert contents(channel, [queue, rest]) == [["1"], ["2"]]
    assert channel.is_silent(0.1)


def test_alternate_exchanges_may_have_alternates_and_cycles(channel):
    one, two = unique("x"), unique("x")
    channel.exchange("direct", one, arguments={"alternate-exchange": two})
    channel.exchange("direct", two, arguments={"alternate-exchange": one})
    channel.publish(one, "nowhere", "1", mandatory=True)
    returned = channel.message()
    assert isinstance(returned.method, Basic.Return)
    assert returned.method.reply_code == 312


def test_an_alternate_exchange_that_is_not_there_takes_nothing(channel):
    exchange = channel.exchange("direct", arguments={"alternate-exchange": "nobody"})
    channel.publish(exchange, "a", "1")
    channel.sync()


def test_cc_and_bcc_are_further_keys_and_bcc_is_not_shown(channel):
    exchange = channel.exchange("direct")
    queues = queues_of(channel, exchange, "a", "b", "c", "d")
    channel.publish(exchange, "a", "1", headers={"CC": ["b"], "BCC": ["c"], "own": 5})
    found = [channel.get(queue) for queue in queues]
    assert found[3] is None
    for message in found[:3]:
        assert message.headers == {"CC": ["b"], "own": 5}
        assert message.method.routing_key == "a"


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize("kind", ["direct", "topic", "fanout"])
def test_further_keys_go_along_from_exchange_to_exchange(channel, kind, header):
    """The first key leads to the next exchange, and there a further one to the queue."""
    first, second = channel.exchange(kind), channel.exchange("topic")
    channel.bind_exchange(second, first, "a")
    (queue,) = queues_of(channel, second, "b")
    channel.publish(first, "a", "1", headers={header: ["b"]}, mandatory=True)
    channel.publish(first, "a", "2", headers={header: ["c"]}, mandatory=True)
    channel.publish(first, "b" if kind != "fanout" else "c", "3", headers={header: ["a", "c"]})
    assert channel.message().text == "2"  # it is given back
    assert contents(channel, [queue]) == [["1", "3"] if kind != "fanout" else ["1"]]


def test_the_alternate_exchange_gets_what_no_key_leads_anywhere(channel):
    other = channel.exchange("fanout")
    (left_over,) = queues_of(channel, other, "")
    first = channel.exchange("direct", arguments={"alternate-exchange": other})
    (queue,) = queues_of(channel, first, "a")
    channel.publish(first, "a", "1", headers={"CC": ["b"]})
    channel.publish(first, "b", "2", headers={"CC": ["a"]})
    channel.publish(first, "b", "3", headers={"CC": ["c"]})
    assert contents(channel, [queue, left_over]) == [["1", "2"], ["3"]]


def test_cc_works_on_the_default_exchange(channel):
    one, two = channel.queue(exclusive=True), channel.queue(exclusive=True)
    channel.publish("", one, "1", headers={"CC": [two]})
    assert contents(channel, [one, two]) == [["1"], ["1"]]


def test_cc_reaches_its_queue_although_the_first_key_names_none(channel):
    queue = channel.queue(exclusive=True)
    channel.publish("", "no such queue", "1", headers={"CC": [queue]}, mandatory=True)
    assert channel.get(queue).text == "1"


@pytest.mark.parametrize("value", ["text", 5])
def test_a_cc_that_is_no_list_is_refused_with_406(channel, value):
    queue = channel.queue(exclusive=True)
    channel.publish("", queue, "1", headers={"CC": value})
    with pytest.raises(Refused) as refused:
        channel.sync()
    assert refused.value.short == "channel 406"


def test_a_binding_takes_nothing_that_came_before_it(channel):
    exchange = channel.exchange("fanout")
    channel.publish(exchange, "", "early")
    (queue,) = queues_of(channel, exchange, "")
    channel.publish(exchange, "", "late")
    assert channel.all(queue) == ["late"]


def test_unbinding_leaves_what_was_routed(channel):
    exchange = channel.exchange("fanout")
    (queue,) = queues_of(channel, exchange, "")
    channel.publish(exchange, "", "routed")
    channel.unbind(queue, exchange)
    channel.publish(exchange, "", "not routed")
    assert channel.all(queue) == ["routed"]


def test_two_bindings_that_differ_in_arguments_are_two(channel):
    exchange = channel.exchange("headers")
    queue = channel.queue(exclusive=True)
    channel.bind(queue, exchange, "", **{"x-match": "all", "a": 1})
    channel.bind(queue, exchange, "", **{"x-match": "all", "a": 2})
    channel.unbind(queue, exchange, "", **{"x-match": "all", "a": 1})
    for value in (1, 2):
        channel.publish(exchange, "", str(value), headers={"a": value})
    assert channel.all(queue) == ["2"]


def test_exchanges_are_shared_by_connections(call):
    one, two = call().channel(), call().channel()
    exchange = one.exchange("fanout")
    (queue,) = queues_of(two, exchange, "")
    one.confirm()
    one.put(exchange, "", "1")
    assert two.all(queue) == ["1"]


def test_what_is_published_to_several_exchanges_keeps_its_order_in_a_queue(channel):
    exchanges = [channel.exchange("fanout") for _ in range(3)]
    queue = channel.queue(exclusive=True)
    for exchange in exchanges:
        channel.bind(queue, exchange)
    sent = [f"{round_}{number}" for round_ in range(5) for number in range(3)]
    channel.confirm()
    for number, text in enumerate(sent):
        channel.publish(exchanges[number % 3], "", text)
        channel.expect(Basic.Ack)
    held = [channel.get(queue, no_ack=False) for _ in sent]
    assert [message.text for message in held] == sent
    channel.nack(0, multiple=True)
    assert channel.all(queue) == sent


def test_deleting_an_exchange_leaves_the_queues_and_what_waits(channel):
    exchange = channel.exchange("fanout")
    (queue,) = queues_of(channel, exchange, "")
    channel.publish(exchange, "", "1")
    channel.ask(Exchange.Delete(exchange=exchange), Exchange.DeleteOk)
    assert channel.all(queue) == ["1"]
    channel.publish(exchange, "", "2")
    with pytest.raises(Refused, match=f"no exchange '{exchange}' in vhost '/'") as refused:
        channel.expect(Channel.CloseOk)
    assert refused.value.short == "channel 404"
