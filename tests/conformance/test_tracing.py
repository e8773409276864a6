"""Traces: a broker with a collector reports the publish, the append and each delivery of a traced
message, and a collector that is slow or away harms nobody."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import paho.mqtt.client as paho
import pytest
from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind

from onelog.base.clock import ManualClock
from onelog.observe import Troubles
from onelog.observe.tracing import QUEUE_SPANS_MAX, SENDING, SpanSender
from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE, Onelog, environment
from tests.cross.clients import Amqp, Kafka, Mqtt, Said
from tests.support.ports import free_ports

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """A collector of OTLP over HTTP, which keeps what it was sent."""

    def __init__(self) -> None:
        self.spans: list = []
        self.services: set[str] = set()
        outer = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_args) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            rows = {row.key: row.value.string_value for row in resource.resource.attributes}
            self.services.add(rows["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def attributes(span) -> dict[str, str]:
    return {row.key: row.value.string_value or row.value.int_value for row in span.attributes}


def named(spans, prefix: str) -> list:
    return [span for span in spans if span.name.startswith(prefix)]


def sampled(payload: bytes = b"x", **more) -> Said:
    return Said(payload, [("traceparent", SAMPLED.encode())], **more)


def test_a_traced_message_has_a_span_for_publish_append_and_each_delivery(collector, tmp_path):
    server = Onelog(tmp_path, GROUPS_AT_ONCE, f"tracing.endpoint={collector.endpoint}").start()
    mqtt, other = (Mqtt(server.ports["mqtt"], 5, "t/mqtt") for _ in range(2))
    amqp = Amqp(server.ports["amqp"], "t/mqtt")
    mqtt.write(Said(b"the first one"), "t/mqtt")
    kafka = Kafka(server.ports["kafka"], "t/mqtt")
    mqtt.write(sampled(), "t/mqtt")
    kafka.write(sampled(key=b"k"), "t/mqtt")
    amqp.write(Said(b"x", [("traceparent", SAMPLED)]), "t/mqtt")
    # Of these the broker tells nothing: no trace, one that was not sampled, one that is none.
    mqtt.write(Said(b"y"), "t/mqtt")
    mqtt.write(Said(b"y", [("traceparent", f"00-{TRACE}-{PARENT}-00".encode())]), "t/mqtt")
    mqtt.write(Said(b"last", [("traceparent", b"of no form")]), "t/mqtt")
    for client in (mqtt, other, kafka, amqp):
        while client.read().payload != b"last":
            pass
        client.close()
    assert server.stop() == 0
    assert not server.errors()

    assert collector.services == {"onelog"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    publishes = named(collector.spans, "publish t/mqtt")
    assert len(publishes) == 3
    appends = {span.parent_span_id: span for span in named(collector.spans, "append main")}
    for span in publishes:
        assert span.parent_span_id.hex() == PARENT
        inner = appends.pop(span.span_id)
        assert span.start_time_unix_nano <= inner.start_time_unix_nano
        assert inner.start_time_unix_nano <= inner.end_time_unix_nano == span.end_time_unix_nano
    assert not appends
    delivers = [(span, attributes(span)) for span in named(collector.spans, "deliver t/mqtt")]
    assert {span.parent_span_id.hex() for span, _about in delivers} == {PARENT}
    count = [about["network.protocol.name"] for _span, about in delivers].count
    assert (count("mqtt"), count("kafka"), count("amqp")) == (3, 3, 3)
    clients = [about.get("messaging.onelog.clients") for _span, about in delivers]
    assert clients.count(2) == 3  # both subscribers of MQTT, in one span of each message
    durable = {attributes(span)["messaging.onelog.offset"]: span for span in publishes}
    for span, about in delivers:
        if "messaging.onelog.offset" in about:
            before = durable[about["messaging.onelog.offset"]]
            assert span.start_time_unix_nano >= before.start_time_unix_nano


def test_messages_that_leave_the_log_later_have_spans_of_their_delivery(collector, tmp_path):
    server = Onelog(tmp_path, f"tracing.endpoint={collector.endpoint}").start()
    writer = Mqtt(server.ports["mqtt"], 5, "t/none")
    amqp = Amqp(server.ports["amqp"], "t/got")
    writer.write(Said(b"kept", sampled().headers, {"retain": True}), "t/retained")
    writer.write(sampled(b"old"), "t/replayed")
    shared = Mqtt(server.ports["mqtt"], 5, "$share/g/t/shared")
    writer.write(sampled(b"shared"), "t/shared")
    writer.write(sampled(b"got"), "t/got")
    readers = [
        Mqtt(server.ports["mqtt"], 5, name) for name in ("t/retained", "$replay/0/t/replayed")
    ]
    for reader in (shared, *readers):
        reader.read()
    ends = time.monotonic() + 30
    while amqp.channel.basic_get(amqp.queue, auto_ack=True)[0] is None:
        assert time.monotonic() < ends
    for client in (writer, shared, *readers, amqp):
        client.close()
    assert server.stop() == 0
    found = sorted(span.name for span in named(collector.spans, "deliver "))
    assert found == [
        "deliver t/got",
        "deliver t/replayed",
        "deliver t/retained",
        "deliver t/shared",
    ]


def test_a_session_that_was_away_has_spans_when_it_comes_back(collector, tmp_path):
    server = Onelog(tmp_path, f"tracing.endpoint={collector.endpoint}").start()

    def come(wanted: int) -> None:
        """Subscribe, wait for so many messages, and go."""
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, "sleeper", clean_session=False, protocol=paho.MQTTv311
        )
        ready, arrived = threading.Event(), threading.Semaphore(0)
        client.on_message = lambda *_found: arrived.release()
        client.on_subscribe = lambda *_found: ready.set()
        client.connect("127.0.0.1", server.ports["mqtt"])
        client.loop_start()
        client.subscribe("t/away", qos=1)
        assert ready.wait(30)
        for _message in range(wanted):
            assert arrived.acquire(timeout=30)
        client.disconnect()
        client.loop_stop()
        client.on_message = client.on_subscribe = None

    come(0)
    writer = Mqtt(server.ports["mqtt"], 5, "t/none")
    for _message in range(3):
        writer.write(sampled(), "t/away")
    come(3)
    writer.close()
    assert server.stop() == 0
    delivered = named(collector.spans, "deliver t/away")
    assert len(delivered) == 3
    assert {attributes(span)["messaging.client.id"] for span in delivered} == {"sleeper"}


def test_one_trace_goes_from_mqtt_over_kafka_to_amqp(collector, tmp_path):
    """Programs with the SDK of OpenTelemetry hand their context on by each protocol's headers."""
    server = Onelog(tmp_path, GROUPS_AT_ONCE, f"tracing.endpoint={collector.endpoint}").start()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=collector.endpoint)))
    tracer = provider.get_tracer("the programs of this test")
    mqtt = Mqtt(server.ports["mqtt"], 5, "one/first")
    mqtt.write(Said(b"the first one"), "one/first")
    kafka = Kafka(server.ports["kafka"], "one/first")
    amqp = Amqp(server.ports["amqp"], "one/second")

    with tracer.start_as_current_span("device", kind=SpanKind.PRODUCER) as device:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        mqtt.write(
            Said(b"a", [(name, text.encode()) for name, text in carrier.items()]), "one/first"
        )
    read = {name: value.decode() for name, value in kafka.read().headers}
    context = propagate.extract(read)
    with tracer.start_as_current_span("bridge", context, kind=SpanKind.CONSUMER) as bridge:
        carrier = {}
        propagate.inject(carrier)
        rows = [(name, text.encode()) for name, text in carrier.items()]
        kafka.write(Said(b"b", rows, key=b"k"), "one/second")
    context = propagate.extract(dict(amqp.read().headers))
    with tracer.start_as_current_span("end", context, kind=SpanKind.CONSUMER):
        pass
    for client in (mqtt, kafka, amqp):
        client.close()
    assert server.stop() == 0
    provider.shutdown()

    trace = f"{device.get_span_context().trace_id:032x}"
    mine = [span for span in collector.spans if span.trace_id.hex() == trace]
    by_id = {span.span_id: span for span in mine}
    up = {span.name: by_id[span.parent_span_id].name for span in mine if span.parent_span_id}
    assert up["bridge"] == "device"
    assert up["end"] == "bridge"
    assert up["publish one/first"] == up["deliver one/first"] == "device"
    assert up["publish one/second"] == up["deliver one/second"] == "bridge"
    assert by_id[named(mine, "append")[0].parent_span_id].name.startswith("publish ")
    assert "onelog" in collector.services
    assert bridge.get_span_context().trace_id == device.get_span_context().trace_id


def test_a_collector_that_is_away_costs_spans_and_no_message(tmp_path):
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}/v1/traces"
    server = Onelog(tmp_path, f"tracing.endpoint={endpoint}").start()
    mqtt = Mqtt(server.ports["mqtt"], 5, "t/mqtt")
    mqtt.write(Said(b"x", [("traceparent", SAMPLED.encode())]), "t/mqtt")
    assert mqtt.read().payload == b"x"
    mqtt.close()
    assert server.stop() == 0


async def test_a_collector_that_is_away_is_a_trouble_that_does_not_block():
    troubles = Troubles(ManualClock())
    sender = SpanSender(f"http://127.0.0.1:{free_ports(1)[0]}/v1/traces", "n", "1", troubles)
    context = sender.context({"traceparent": SAMPLED})
    assert context is not None
    sender.add("append", "main", context, (1, 2), {})
    await asyncio.to_thread(sender.close)
    await asyncio.sleep(0)
    (row,) = troubles.standing()
    assert (row.kind, row.blocks) == (SENDING, False)
    assert {sample.name: sample.value for sample in sender.samples()} == {
        "onelog_spans_sent_total": 0,
        "onelog_spans_lost_total": 1,
        "onelog_spans_dropped_total": 0,
    }  # fmt: skip


async def test_a_collector_that_hangs_costs_spans_that_are_counted_and_a_bounded_time_at_the_end():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, answers nothing
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
        sender = SpanSender(endpoint, "n", "1", Troubles(ManualClock()))
        context = sender.context({"traceparent": SAMPLED})
        begun = time.monotonic()
        for _span in range(QUEUE_SPANS_MAX * 2):
            sender.add("append", "main", context, (1, 2), {})
        assert time.monotonic() - begun < 5  # nobody waited for the collector
        await asyncio.to_thread(sender.close)
        assert time.monotonic() - begun < 25
    found = {sample.name: sample.value for sample in sender.samples()}
    assert found["onelog_spans_sent_total"] == 0
    assert found["onelog_spans_dropped_total"] > 0
    assert sum(found.values()) == QUEUE_SPANS_MAX * 2


def test_without_an_endpoint_no_library_of_traces_is_loaded():
    code = (
        "import sys, onelog.app, onelog.cli; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), check=False)
    assert done.returncode == 0


def test_an_endpoint_without_the_library_is_refused_with_what_to_install(tmp_path):
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('it is not installed')\n")
    there = environment()
    there["PYTHONPATH"] = f"{tmp_path}:{there['PYTHONPATH']}"
    ports = [f"listeners.{name}.port=0" for name in ("admin", "mqtt", "kafka", "amqp")]
    words = [
        word
        for text in [*ports, "tracing.endpoint=http://127.0.0.1:1/v1/traces"]
        for word in ("--set", text)
    ]
    done = subprocess.run(
        [sys.executable, "-m", "onelog", "serve", *words],
        cwd=tmp_path, env=there, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "onelog[otel]" in done.stderr
