"""Requests of one protocol answered by another, each side as its plain programs are written.

An AMQP worker publishes to the default exchange with `reply_to` as the key; an MQTT responder
publishes to the response topic; a Kafka program to the Kafka name of the topic in `~rt`. All send
the correlation back as they got it.
"""

from __future__ import annotations

import uuid
from typing import Any

import pika
import pytest

from onelog.base.names import to_dotted
from tests.cross.clients import Amqp, Kafka, Mqtt, Said

CORRELATIONS = [b"text 17", uuid.UUID(int=2**127 + 0xFF).bytes, b"\xff\x00"]
each_correlation = pytest.mark.parametrize(
    "correlation", CORRELATIONS, ids=["text", "uuid", "binary"]
)


def serve_amqp(worker: Amqp, *, mandatory: bool = False) -> None:
    """Answer one request, as the RPC tutorial of RabbitMQ does."""
    method, properties, body = next(worker.channel.consume(worker.queue, inactivity_timeout=10))
    assert method is not None
    worker.channel.basic_publish(
        exchange="",
        routing_key=properties.reply_to,
        properties=pika.BasicProperties(correlation_id=properties.correlation_id),
        body=body.upper(),
        mandatory=mandatory,
    )
    worker.channel.basic_ack(method.delivery_tag)
    worker.channel.cancel()


def serve_mqtt(responder: Mqtt) -> None:
    """Answer one request by MQTT 5."""
    request = responder.read()
    fields = {"correlation": request.fields["correlation"], "qos": 1}
    assert request.payload is not None
    responder.write(Said(request.payload.upper(), fields=fields), request.fields["reply_to"])


def serve_kafka(program: Kafka) -> None:
    """Answer one request by Kafka."""
    request = program.read()
    assert request.payload is not None
    fields = {"correlation": request.fields["correlation"]}
    program.write(Said(request.payload.upper(), fields=fields), request.fields["reply_to"])


class Server:
    """A program that answers requests at one topic."""

    def __init__(self, protocol: str, ports: dict[str, int], topic: str) -> None:
        self._serve: Any = {"amqp": serve_amqp, "mqtt5": serve_mqtt, "kafka": serve_kafka}[protocol]
        if protocol == "mqtt5":
            self.program: Any = Mqtt(ports["mqtt"], 5, topic)
        else:
            self.program = {"amqp": Amqp, "kafka": Kafka}[protocol](ports[protocol], topic)

    def serve(self, **options: Any) -> None:
        self._serve(self.program, **options)


@pytest.fixture
def program(server, clients):
    """Make a program that answers; it is closed at the end."""
    made: list[Server] = []

    def make(protocol: str, topic: str) -> Server:
        clients["mqtt5"].write(Said(b"from now on Kafka knows the topic"), topic)
        made.append(Server(protocol, server.ports, topic))
        return made[-1]

    yield make
    for row in made:
        row.program.close()


@each_correlation
@pytest.mark.parametrize("answerer", ["amqp", "mqtt5", "kafka"])
def test_a_request_of_mqtt_is_answered(server, program, answerer, correlation):
    topic, replies = f"rpc/mqtt/{answerer}", "replies/mqtt/client 1"
    found = program(answerer, topic)
    client = Mqtt(server.ports["mqtt"], 5, replies)
    client.write(Said(b"ping", fields={"reply_to": replies, "correlation": correlation}), topic)
    found.serve()
    answer = client.read()
    client.close()
    assert (answer.payload, answer.fields["correlation"]) == (b"PING", correlation)


@pytest.mark.parametrize("answerer", ["amqp", "mqtt5", "kafka"])
@pytest.mark.parametrize("reply_queue", ["", "my/own queue.1"], ids=["generated", "named"])
def test_a_request_of_amqp_is_answered(program, channel, answerer, reply_queue):
    topic = f"rpc/amqp/{answerer}"
    found = program(answerer, topic)
    queue = channel.queue_declare(reply_queue, exclusive=True).method.queue
    properties = pika.BasicProperties(reply_to=queue, correlation_id="order 17")
    channel.basic_publish("amq.topic", topic.replace("/", "."), b"ping", properties)
    found.serve()
    method, got, body = next(channel.consume(queue, inactivity_timeout=10))
    assert method is not None
    assert (body, got.correlation_id) == (b"PING", "order 17")
    channel.cancel()
    channel.queue_delete(queue)


@pytest.mark.parametrize("answerer", ["amqp", "mqtt5", "kafka"])
def test_a_request_with_direct_reply_to_is_answered(program, channel, answerer):
    topic = f"rpc/direct/{answerer}"
    found = program(answerer, topic)
    replies = channel.consume("amq.rabbitmq.reply-to", auto_ack=True, inactivity_timeout=0.01)
    next(replies)
    properties = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="17")
    channel.basic_publish("amq.topic", topic.replace("/", "."), b"ping", properties)
    found.serve()
    for _ in range(1000):
        method, got, body = next(replies)
        if method is not None:
            assert (body, got.correlation_id) == (b"PING", "17")
            return
    raise AssertionError("no answer came")


@each_correlation
@pytest.mark.parametrize("answerer", ["amqp", "mqtt5", "kafka"])
def test_a_request_of_kafka_is_answered(server, program, clients, answerer, correlation):
    topic, replies = f"rpc/kafka/{answerer}", "replies/kafka"
    found = program(answerer, topic)
    clients["mqtt5"].write(Said(b"from now on Kafka knows the topic"), replies)
    client = Kafka(server.ports["kafka"], replies)
    client.write(Said(b"ping", fields={"reply_to": replies, "correlation": correlation}), topic)
    found.serve()
    answer = client.read()
    client.close()
    assert (answer.payload, answer.fields["correlation"]) == (b"PING", correlation)


def test_a_worker_sees_where_a_reply_goes_as_the_page_says(clients, channel):
    channel.queue_declare("answers here", exclusive=True)
    for reply_to in ("replies/c1", "$q/answers here", "$x/logs/a/b"):
        clients["mqtt5"].write(Said(b"x", fields={"reply_to": reply_to}), "rpc/shown")
    queue = channel.queue_declare("", exclusive=True, arguments={"x-onelog-from": "earliest"})
    channel.queue_bind(queue.method.queue, "amq.topic", "rpc.shown")
    seen = [channel.basic_get(queue.method.queue, auto_ack=True)[1].reply_to for _ in range(3)]
    assert seen == ["amq.topic/replies/c1", "answers here", "amq.topic/$x/logs/a/b"]


def test_an_mqtt_responder_sees_a_reply_queue_as_its_topic(clients):
    amqp = clients["amqp"]
    properties = pika.BasicProperties(reply_to="my/queue", correlation_id="1")
    amqp.channel.basic_publish("amq.topic", "cross.t", b"request", properties)
    amqp.write(Said(b"mark of a reply queue"))
    seen = []
    while not seen or seen[-1].payload != b"mark of a reply queue":
        seen.append(clients["mqtt5"].read())
    assert seen[-2].fields["reply_to"] == "$q/my_x2F_queue"


def test_an_answer_that_has_to_be_taken_is_not_returned_to_the_worker(server, program):
    topic = "rpc/mandatory"
    found = program("amqp", topic)
    client = Mqtt(server.ports["mqtt"], 5, "replies/mandatory")
    client.write(
        Said(b"ping", fields={"reply_to": "replies/mandatory", "correlation": b"1"}), topic
    )
    found.serve(mandatory=True)  # pika raises UnroutableError for what comes back
    assert client.read().payload == b"PING"
    client.close()


def test_a_reply_to_an_exchange_goes_through_it(clients, channel):
    channel.exchange_declare("answers", "direct")
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "answers", "a.b")
    channel.basic_publish("", "amq.topic/$x/answers/a/b", b"hello")
    method, _properties, body = next(channel.consume(queue, inactivity_timeout=10))
    assert (method.exchange, method.routing_key, body) == ("answers", "a.b", b"hello")


def test_a_reply_to_an_exchange_that_is_not_there_closes_the_channel(channel):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange 'missing'"):
        channel.basic_publish("", "amq.topic/$x/missing/a", b"hello")


def test_no_client_can_take_a_topic_s_place_with_a_queue(channel):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="reserved prefix"):
        channel.queue_declare("amq.topic/replies/c1")


def test_kafka_s_name_of_a_reply_queue(clients):
    assert to_dotted("$q/my_x2F_queue") == "_x24_q.my_x5F_x2F_queue"
