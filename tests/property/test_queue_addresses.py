"""AMQP addresses are topics and back: two addresses never share a topic (I7)."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onelog.base.errors import InvalidName
from onelog.base.limits import STREAM_NAME_CHARS_MAX
from onelog.base.topics import matches
from onelog.queues.addresses import (
    Address,
    address_of,
    capture_of,
    message_topic,
    queues_capture,
)

names = st.text(
    st.sampled_from("ab./#*+@_x2F0 $é-") | st.characters(codec="utf-8", exclude_characters="\0"),
    max_size=12,
)
vhosts = st.just("/") | names.filter(bool)


@given(vhosts, names, names)
def test_every_address_has_one_topic_and_every_topic_one_address(vhost, exchange, key) -> None:
    try:
        topic = message_topic(vhost, exchange, key)
    except InvalidName:
        assume(False)
        return
    assert address_of(topic) == Address(vhost, exchange, key)


@given(vhosts, names.filter(bool), names)
def test_an_exchange_s_stream_captures_its_messages_and_no_wildcard_sees_them(
    vhost, exchange, key
) -> None:
    assume(exchange != "amq.topic")
    topic = message_topic(vhost, exchange, key)
    own = capture_of(vhost, exchange)
    assert own is not None
    assert matches(own[1], topic)
    assert not matches("#", topic)
    assert not matches("+/#", topic)


long_names = st.text(st.sampled_from("ab./é-"), min_size=80, max_size=127)


@given(vhosts, names.filter(bool) | long_names, vhosts, names.filter(bool) | long_names)
def test_every_exchange_has_a_stream_whose_name_is_short_enough_and_its_own(
    vhost, exchange, other_vhost, other
) -> None:
    assume("amq.topic" not in (exchange, other))
    first, second = capture_of(vhost, exchange), capture_of(other_vhost, other)
    assert first is not None
    assert second is not None
    assert len(first[0]) <= STREAM_NAME_CHARS_MAX
    assert (first[0] == second[0]) == ((vhost, exchange) == (other_vhost, other))


@given(vhosts, names.filter(bool))
def test_the_stream_of_queues_captures_every_queue(vhost, queue) -> None:
    assert matches(queues_capture(vhost), message_topic(vhost, "", queue))


@pytest.mark.parametrize(
    ("vhost", "exchange", "key", "topic"),
    [
        ("/", "amq.topic", "sensors.d1.t", "sensors/d1/t"),
        ("/", "amq.topic", "", "$x/amq.topic/"),
        ("/", "logs", "a.b", "$x/logs/a/b"),
        ("/", "", "tasks", "$q/tasks"),
        ("/", "", "a/b", "$q/a_x2F_b"),
        ("blue", "logs", "a.b", "$x@blue/logs/a/b"),
        ("blue", "", "tasks", "$q@blue/tasks"),
        ("blue", "amq.topic", "a.b", "$t@blue/a/b"),
    ],
)
def test_addresses_are_written_as_the_reference_says(vhost, exchange, key, topic) -> None:
    assert message_topic(vhost, exchange, key) == topic
