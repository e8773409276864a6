"""Addresses of answers and correlations, there and back, for any name and any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.protocols.amqp.correlation import to_correlation, to_correlation_id
from onelog.queues.addresses import (
    TOPIC_PREFIX,
    address_of,
    has_own_stream,
    is_writable,
    message_topic,
    reply_key,
    reply_topic,
    topic_named,
)

names = st.text(
    st.sampled_from("ab./#*+@_x2F0 $é-") | st.characters(codec="utf-8", exclude_characters="\0"),
    min_size=1,
    max_size=12,
)
vhosts = st.just("/") | names


@given(vhosts, names)
def test_a_reply_queue_is_a_topic_and_comes_back_as_itself(vhost, queue):
    topic = reply_topic(vhost, queue)
    assert reply_key(vhost, topic) == queue
    assert topic == message_topic(vhost, "", queue)


@given(names)
def test_any_topic_is_an_address_that_leads_back_to_it(topic):
    key = reply_key("/", topic)
    if key.startswith(TOPIC_PREFIX):
        assert reply_topic("/", key) == topic
        found = topic_named("/", "", key)
        if found is not None and not topic.startswith("$") and "+" not in topic:
            assert found == address_of(topic)
    else:
        assert address_of(topic).exchange == ""


@given(vhosts, names)
def test_a_key_names_a_topic_only_in_the_default_exchange(vhost, key):
    assert topic_named(vhost, "logs", f"{TOPIC_PREFIX}{key}") is None
    assert topic_named(vhost, "", f"queue {key}") is None


@given(st.text("_x0123456789ABCDEF/$q", max_size=20))
def test_no_topic_that_another_protocol_wrote_breaks_an_address(text):
    address_of(f"$q/{text}")
    address_of(f"$x@{text}/{text}")


@given(st.binary(max_size=300))
def test_a_correlation_comes_back_as_it_went(data):
    text = to_correlation_id(data)
    if text is None:
        assert len(data) > 180
    else:
        assert len(text.encode()) <= 255
        assert to_correlation(text) == data


@given(st.text(max_size=60) | st.text("base64:QUJD/w=", max_size=20).map("base64:".__add__))
def test_an_applications_own_correlation_id_stays_what_it_is(text):
    if len(text.encode()) <= 255:
        assert to_correlation_id(to_correlation(text)) == text


@pytest.mark.parametrize(
    ("topic", "writable", "own"),
    [
        ("a/b", True, False),
        ("$q/x", True, True),
        ("$q@blue/x", True, True),
        ("$x/logs/a", True, True),
        ("$x@blue/logs/a", True, True),
        ("$x/amq.topic/", True, False),
        ("$x@blue/amq.topic/x", True, False),
        ("$x/amq.topical/a", True, True),
        ("$q/amq.topic", True, True),
        ("$t@blue/a", True, False),
        ("$t/a", False, False),
        ("$q", False, False),
        ("$q/", False, False),
        ("$SYS/x", False, False),
        ("$quiet/x", False, False),
    ],
)
def test_which_topics_clients_may_write_to(topic, writable, own):
    assert is_writable(topic) is writable
    assert has_own_stream(topic) is own
