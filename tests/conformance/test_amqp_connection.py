"""How does a connection begin, live and end? (checklist rows 50 to 54, 90 to 92)"""

from __future__ import annotations

import struct
import time

import pytest
from pamqp import encode, frame

from tests.conformance.amqp_raw import (
    Basic,
    Channel,
    Connection,
    Ended,
    Queue,
    Refused,
    unique,
)


def test_the_broker_names_its_mechanisms_and_what_it_can(call):
    start = call(ready=False).begin()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert {"PLAIN", "AMQPLAIN"} <= set(start.mechanisms.split())
    assert start.locales == "en_US"
    assert start.server_properties["product"] == "RabbitMQ"  # clients ask for it
    able = {name for name, value in start.server_properties["capabilities"].items() if value}
    assert able >= {
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    }


def test_amqplain_lets_in(call):
    raw = call(ready=False)
    raw.begin()
    table = encode.field_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    raw.log_in(mechanism="AMQPLAIN", response=table.decode("latin-1"))


def test_a_wrong_password_is_told_with_403_to_who_understands_it(call):
    with pytest.raises(Refused) as refused:
        call(user="guest", password="wrong")
    assert refused.value.short == "connection 403"
    assert refused.value.text.startswith(
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
    )


def test_a_wrong_password_just_ends_the_connection_of_who_does_not(call):
    with pytest.raises(Ended):
        call(user="guest", password="wrong", capabilities={})


def test_an_unknown_mechanism_is_refused(call):
    raw = call(ready=False)
    raw.begin()
    with pytest.raises((Refused, Ended)):
        raw.log_in(mechanism="SECRET")


def test_the_tune_offers_limits(call):
    tune = call().tune
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131072, 60)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("frame_max", 100, "negotiated frame_max = 100 is lower than the minimum allowed value"),
        ("frame_max", 1 << 20, "negotiated frame_max = 1048576 is higher than the maximum allowed"),
        ("channel_max", 5000, "negotiated channel_max = 5000 is higher than the maximum allowed"),
        ("frame_max", 0, "negotiated frame_max = 0 is higher than the maximum allowed value"),
    ],
)
def test_a_tune_outside_of_the_offer_is_refused_with_530(call, patience_s, field, value, text):
    raw = call(ready=False)
    raw.begin()
    raw.log_in()
    raw.tune_ok(**{field: value})
    with pytest.raises(Refused, match=text) as refused:
        raw.expect(0, Connection.OpenOk, patience_s)
    assert refused.value.short == "connection 530"


def test_one_channel_too_many_ends_the_connection_with_530(call):
    raw = call(channel_max=3)
    for number in (1, 2, 3):
        raw.channel(number)
    with pytest.raises(Refused, match="has reached the negotiated channel_max") as refused:
        raw.channel(4)
    assert refused.value.short == "connection 530"


def test_a_channel_number_may_be_used_again_at_once(call):
    raw = call()
    for _ in range(5):
        raw.channel(7).close()
    found = raw.channel(7)
    assert found.count(found.queue(exclusive=True)) == 0


def test_a_large_message_travels_in_frames_of_the_agreed_size(call):
    raw = call(frame_max=4096)
    channel = raw.channel()
    queue = channel.queue(exclusive=True)
    body = bytes(range(256)) * 400
    channel.publish("", queue, body)
    assert channel.get(queue).body == body


def test_a_heartbeat_comes_within_the_interval(call):
    raw = call(beat_s=1)
    raw.channel()
    deadline = time.monotonic() + 5
    while not raw.heartbeats:
        assert time.monotonic() < deadline
        with pytest.raises(TimeoutError):
            raw.read_method(1, 0.3)
        raw.send_frame(8, 0, b"")


def test_a_client_that_falls_silent_is_gone_after_two_intervals(call):
    raw = call(beat_s=1)
    began = time.monotonic()
    assert raw.is_ended(8)
    assert 1.5 < time.monotonic() - began < 6


def test_without_heartbeats_a_silent_client_stays(call):
    raw = call(beat_s=0)
    assert not raw.is_ended(2.5)


def test_any_traffic_counts_as_a_heartbeat(call):
    raw = call(beat_s=1)
    channel = raw.channel()
    for _ in range(13):  # longer than two intervals
        time.sleep(0.2)
        channel.sync()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"AMQP\x00\x00\x08\x00"])
def test_another_protocol_header_is_answered_with_ours(call, data):
    raw = call(ready=False)
    raw.send_bytes(data)
    assert raw.socket.recv(8) == b"AMQP\x00\x00\x09\x01"
    assert raw.is_ended()


def test_an_unknown_virtual_host_is_refused_with_530(call):
    with pytest.raises(Refused, match="NOT_ALLOWED - vhost nowhere not found") as refused:
        call(vhost="nowhere")
    assert refused.value.short == "connection 530"


def test_the_client_closes_and_is_answered(call):
    raw = call()
    raw.channel()
    raw.close()


def test_a_channel_closes_and_is_answered(call):
    raw = call()
    raw.channel().close()
    raw.channel().close()


def test_an_exclusive_queue_is_gone_once_the_close_is_answered(call):
    name = unique()
    for _ in range(3):
        raw = call()
        raw.channel().queue(name, exclusive=True)
        raw.close()


def test_update_secret_is_answered(call):
    raw = call()
    raw.send(0, Connection.UpdateSecret(new_secret="guest", reason="a new token"))
    raw.expect(0, Connection.UpdateSecretOk)
    raw.channel().sync()


def test_flow_of_the_client_is_answered(call):
    channel = call().channel()
    assert channel.ask(Channel.Flow(active=True), Channel.FlowOk).active


def test_after_a_channel_error_everything_is_ignored_until_the_close_ok(call):
    raw = call()
    channel = raw.channel()
    queue = raw.channel().queue(exclusive=True)
    channel.send(Queue.Declare(queue="no such queue", passive=True))
    found = channel.expect(Channel.Close)
    assert (found.reply_code, found.class_id, found.method_id) == (404, 50, 10)
    channel.publish("", queue, "ignored")
    channel.send(Basic.Qos())
    channel.send(Channel.CloseOk())
    again = raw.channel(channel.number)
    assert again.count(queue) == 0


def test_channels_interleave_their_contents(call):
    raw = call()
    one, two = raw.channel(), raw.channel()
    queue = one.queue(exclusive=True)
    for channel in (one, two):
        channel.send(Basic.Publish(exchange="", routing_key=queue))
    for channel in (one, two):
        raw.send_frame(2, channel.number, struct.pack(">HHQH", 60, 0, 4, 0))
    for part in (b"ab", b"cd"):
        for channel in (one, two):
            raw.send_frame(3, channel.number, part)
    for channel in (one, two):
        channel.count(queue)  # each sees its own
    assert one.all(queue) == ["abcd", "abcd"]


def test_connections_do_not_harm_each_other(amqp, call):
    bystander = call().channel()
    queue = bystander.queue(exclusive=True)
    bad = call()
    bad.send_frame(99, 0, b"?")
    assert bad.expect(0, Connection.Close).reply_code == 501
    bystander.publish("", queue, "well")
    assert bystander.get(queue).text == "well"


def test_a_close_that_crosses_the_close_of_the_broker_is_answered(call):
    """The peer closes a channel before it hears that the broker did: each close is answered."""
    raw = call()
    raw.channel(1)
    bad = frame.marshal(Queue.Declare(queue="amq.no", arguments={}), 1)
    raw.send_bytes(bad + frame.marshal(Channel.Close(200, "bye", 0, 0), 1))
    with pytest.raises(Refused) as refused:
        raw.expect(1, Channel.CloseOk)
    assert refused.value.short == "channel 403"
    raw.expect(1, Channel.CloseOk)
    raw.channel(1).sync()
