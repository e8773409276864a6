"""Basic properties and field tables: every type comes out as it went in (I6)."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.errors import ProtocolViolation
from onelog.base.ids import Offset, TimestampMs
from onelog.broker import Record
from onelog.protocols.amqp.errors import AmqpError, Reply, amqp_error
from onelog.protocols.amqp.mapping import to_message, to_properties
from onelog.protocols.amqp.properties import Properties, decode_properties, encode_properties
from onelog.queues.headers import headers_of
from onelog.record.tables import decode_table, encode_table

text = st.text(max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.text(max_size=10)
    | st.binary(max_size=10).map(bytearray)
    | st.just(Decimal("1.25"))
    | st.just(datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
tables = st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=4)
properties = st.builds(
    Properties,
    content_type=st.none() | text,
    content_encoding=st.none() | text,
    headers=st.none() | tables.map(encode_table),
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | text,
    reply_to=st.none() | text,
    expiration=st.none() | st.integers(0, 10**6).map(str),
    message_id=st.none() | text,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | text,
    user_id=st.none() | text,
    app_id=st.none() | text,
    cluster_id=st.none() | text,
)


@given(properties)
def test_properties_come_back_from_the_wire(found: Properties) -> None:
    assert decode_properties(encode_properties(found)) == found


@given(properties, st.binary(max_size=20))
def test_a_message_is_a_record_and_a_record_the_same_message(found: Properties, body) -> None:
    table = found.table()
    message = to_message("t", found, body, 1_000, table)
    record = Record(
        "s", 0, Offset(0), "t", TimestampMs(1_000), b"t", message.value, message.headers
    )
    assert record.value == body
    again = to_properties(record)
    if not table:  # an empty table says as much as none
        again.headers = found.headers
    assert again == found
    assert headers_of(record) == table


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x00",
        b"\x80\x00\x05ab",
        b"\x00\x01",
        b"\x00\x02",
        b"\x00\x00rest",
        b"\x20\x00\xff\xff\xff\xff",
        b"\x00\x40\x00\x00",
    ],
)
def test_properties_that_cannot_be_read_are_a_syntax_error(data) -> None:
    with pytest.raises(AmqpError) as caught:
        decode_properties(data)
    assert caught.value.code is Reply.SYNTAX_ERROR


@given(st.binary(max_size=40))
def test_any_bytes_are_a_table_or_a_syntax_error(data) -> None:
    try:
        decode_table(data)
    except ProtocolViolation as error:
        assert amqp_error(error).code is Reply.SYNTAX_ERROR


def test_a_time_before_1970_is_kept_as_it_is() -> None:
    long_ago = datetime.datetime(1931, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    assert decode_table(encode_table({"t": long_ago})) == {"t": long_ago}
