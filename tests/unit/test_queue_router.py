"""Routing of AMQP: exchange types, exchanges that feed exchanges, alternates, what is cached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.queues.exchanges import Binding, Destination, ExchangeRecord
from onelog.queues.router import Router


def router(*exchanges: ExchangeRecord, queues: str = "abc") -> Router:
    made = Router()
    for record in exchanges:
        made.add_exchange(record)
    for name in queues:
        made.add_queue(name)
    return made


def bind(made: Router, source: str, to: str, key: str = "", **arguments) -> Binding:
    kind = "exchange" if made.find(to) is not None else "queue"
    binding = Binding(
        source=source,
        destination=Destination(kind, to),
        routing_key=key,
        arguments={name.replace("_", "-"): value for name, value in arguments.items()},
    )
    assert made.bind(binding)
    return binding


def test_the_default_exchange_sends_to_the_queue_that_the_key_names() -> None:
    made = router()
    assert made.route("", "a", {}) == {"a"}
    assert made.route("", "nobody", {}) == set()


def test_direct_compares_the_key_and_fanout_takes_all() -> None:
    made = router()
    bind(made, "amq.direct", "a", "k")
    bind(made, "amq.direct", "b", "k")
    bind(made, "amq.fanout", "c", "ignored")
    assert made.route("amq.direct", "k", {}) == {"a", "b"}
    assert made.route("amq.direct", "other", {}) == set()
    assert made.route("amq.fanout", "whatever", {}) == {"c"}


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#", "", True),
        ("#", "a.b", True),
        ("*", "", False),
        ("*", "a", True),
        ("*.*", "a", False),
        ("a.#.z", "a.z", True),
        ("a.#.z", "a.b.c.z", True),
        ("a.#.z", "a.b.c", False),
        ("#.#", "x", True),
        ("a..b", "a..b", True),
        ("a.*.b", "a..b", True),
        ("a.b", "a.*", False),
    ],
)
def test_topic_patterns(pattern, key, matches) -> None:
    made = router()
    bind(made, "amq.topic", "a", pattern)
    assert (made.route("amq.topic", key, {}) == {"a"}) is matches


def model(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(model(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and model(pattern[1:], words[1:])


# An empty key has no words, so a single empty word cannot be written.
words = st.lists(st.sampled_from(["a", "b", ""]), max_size=5).filter(lambda row: row != [""])


@given(
    st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=5).filter(lambda row: row != [""]),
    words,
)
def test_topic_patterns_match_as_the_definition_says(pattern, key) -> None:
    made = router()
    bind(made, "amq.topic", "a", ".".join(pattern))
    assert (made.route("amq.topic", ".".join(key), {}) == {"a"}) is model(pattern, key)


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        ({"x_match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 0}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x_match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
        ({"x_match": "any", "a": 1}, {"a": 2}, False),
        ({"x_match": "all", "x_secret": 1}, {}, True),
        ({"x_match": "all-with-x", "x_secret": 1}, {}, False),
        ({"x_match": "any-with-x", "x_secret": 1}, {"x-secret": 1}, True),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {}, False),
    ],
)
def test_headers_exchanges_compare_values(arguments, headers, matches) -> None:
    made = router()
    bind(made, "amq.headers", "a", **arguments)
    assert (made.route("amq.headers", "", headers) == {"a"}) is matches


def test_exchanges_feed_exchanges_each_once_and_cycles_end() -> None:
    made = router(
        ExchangeRecord(name="one", type="fanout"), ExchangeRecord(name="two", type="topic")
    )
    bind(made, "one", "two")
    bind(made, "two", "one", "#")
    bind(made, "two", "a", "x.#")
    bind(made, "one", "b")
    assert made.route("one", "x.y", {}) == {"a", "b"}
    assert made.route("two", "z", {}) == {"b"}


def test_what_finds_no_queue_goes_to_the_alternate_exchange() -> None:
    made = router(
        ExchangeRecord(name="main", type="direct", arguments={"alternate-exchange": "rest"}),
        ExchangeRecord(name="rest", type="fanout", arguments={"alternate-exchange": "main"}),
    )
    bind(made, "main", "a", "k")
    bind(made, "rest", "b")
    assert made.route("main", "k", {}) == {"a"}
    assert made.route("main", "else", {}) == {"b"}


def test_a_change_of_the_topology_counts_at_once() -> None:
    made = router()
    assert made.route("amq.direct", "k", {}) == set()
    binding = bind(made, "amq.direct", "a", "k")
    assert not made.bind(binding)
    assert made.route("amq.direct", "k", {}) == {"a"}
    made.remove_queue("a")
    assert made.route("amq.direct", "k", {}) == set()
    assert made.route("", "a", {}) == set()
    assert not made.unbind(binding)


def test_an_exchange_takes_its_bindings_with_it() -> None:
    made = router(ExchangeRecord(name="one", type="fanout"))
    bind(made, "one", "a")
    bind(made, "amq.fanout", "one")
    assert len(made.remove_exchange("one")) == 2
    assert made.bindings() == []
    assert made.route("amq.fanout", "", {}) == set()


def test_further_keys_are_asked_at_every_exchange_and_remembered_by_none() -> None:
    made = router(
        ExchangeRecord(name="one", type="direct"), ExchangeRecord(name="two", type="direct")
    )
    bind(made, "one", "two", "k1")
    bind(made, "two", "a", "k2")
    assert made.route("one", "k1", {}, ("k2",)) == {"a"}
    assert made.route("one", "k2", {}, ("k1",)) == {"a"}
    assert made.route("one", "k1", {}) == set()
    assert made.route("one", "k2", {}) == set()
    assert made.route("", "a", {}, ("b", "none")) == {"a", "b"}
