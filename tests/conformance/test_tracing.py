"""Traces: a broker with a collector tells it when each traced message was durable, and costs
nobody anything when the collector is away or tracing is off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from onelog.base.clock import ManualClock
from onelog.base.limits import SPANS_PER_SECOND_MAX
from onelog.broker import AppendSpans
from onelog.observe import Troubles
from onelog.observe.tracing import SENDING, SpanSender
from onelog.record.record import Record
from tests.conformance.mqtt_brokers import GROUPS_AT_ONCE, Onelog, environment, free_port
from tests.cross.clients import Amqp, Kafka, Mqtt, Said

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
    return {row.key: row.value.string_value for row in span.attributes}


def test_a_sampled_message_of_each_protocol_has_a_span_under_its_publisher_s(collector, tmp_path):
    server = Onelog(tmp_path, GROUPS_AT_ONCE, f"tracing.endpoint={collector.endpoint}").start()
    mqtt, amqp = Mqtt(server.ports["mqtt"], 5, "t/mqtt"), Amqp(server.ports["amqp"], "t/amqp")
    mqtt.write(Said(b"x", [("traceparent", SAMPLED.encode())]), "t/mqtt")
    kafka = Kafka(server.ports["kafka"], "t/mqtt")
    kafka.write(Said(b"x", [("traceparent", SAMPLED.encode())], key=b"k"), "t/mqtt")
    amqp.write(Said(b"x", [("traceparent", SAMPLED)]), "t/amqp")
    # Of these the broker tells nothing: no trace, one that was not sampled, one that is none.
    mqtt.write(Said(b"x"), "t/plain")
    mqtt.write(Said(b"x", [("traceparent", f"00-{TRACE}-{PARENT}-00".encode())]), "t/unsampled")
    mqtt.write(Said(b"x", [("traceparent", b"of no form")]), "t/bad")
    for client in (mqtt, kafka, amqp):
        client.close()
    assert server.stop() == 0
    assert not server.errors()

    assert collector.services == {"onelog"}
    topics = sorted(attributes(span)["messaging.destination.name"] for span in collector.spans)
    assert topics == ["t/amqp", "t/mqtt", "t/mqtt"]
    for span in collector.spans:
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
        assert span.name == f"append {attributes(span)['messaging.onelog.stream']}"
        assert 0 <= span.end_time_unix_nano - span.start_time_unix_nano < 60e9


def test_a_collector_that_is_away_costs_spans_and_no_message(tmp_path):
    endpoint = f"http://127.0.0.1:{free_port()}/v1/traces"
    server = Onelog(tmp_path, f"tracing.endpoint={endpoint}").start()
    mqtt = Mqtt(server.ports["mqtt"], 5, "t/mqtt")
    mqtt.write(Said(b"x", [("traceparent", SAMPLED.encode())]), "t/mqtt")
    assert mqtt.read().payload == b"x"
    mqtt.close()
    assert server.stop() == 0


async def test_a_collector_that_is_away_is_a_trouble_that_does_not_block():
    troubles = Troubles(ManualClock())
    sender = SpanSender(f"http://127.0.0.1:{free_port()}/v1/traces", "n", "1", troubles)
    sender.add("append main", {"traceparent": SAMPLED}, (1, 2), {})
    await asyncio.to_thread(sender.close)
    await asyncio.sleep(0)
    (row,) = troubles.standing()
    assert (row.kind, row.blocks) == (SENDING, False)
    assert {sample.name: sample.value for sample in sender.samples()} == {
        "onelog_spans_sent_total": 0, "onelog_spans_lost_total": 1,
    }  # fmt: skip


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


# -- the listener


class Kept:
    def __init__(self) -> None:
        self.spans: list = []

    def add(self, name, carrier, times_ns, about) -> None:
        self.spans.append((name, carrier, times_ns, about))


def record(clock: ManualClock, age_ms: int = 0, offset: int = 0) -> Record:
    return Record(
        stream="main", partition=3, offset=offset, topic="a/b",
        timestamp_ms=clock.now_ms() - age_ms, key=None, value=b"x",
        headers=((b"traceparent", SAMPLED.encode()), (b"tracestate", b"a=b"), (b"other", b"y")),
    )  # fmt: skip


@pytest.mark.parametrize(("age_ms", "began_ms"), [(20, 20), (0, 0), (-5_000, 0), (3_600_000, 0)])
def test_a_span_begins_at_the_time_stamp_unless_that_is_no_time_of_publishing(age_ms, began_ms):
    clock, kept = ManualClock(), Kept()
    AppendSpans(kept, clock).deliver_records(None, [record(clock, age_ms)])
    ((name, carrier, (begin, end), about),) = kept.spans
    assert name == "append main"
    assert carrier == {"traceparent": SAMPLED, "tracestate": "a=b"}
    assert (end - begin) == began_ms * 1_000_000
    assert about["messaging.onelog.offset"] == "0"


def test_the_spans_of_a_second_are_bounded_and_the_next_second_has_its_own():
    clock, kept = ManualClock(), Kept()
    spans = AppendSpans(kept, clock)
    rows = [record(clock, offset=number) for number in range(SPANS_PER_SECOND_MAX + 5)]
    spans.deliver_records(None, rows)
    assert (len(kept.spans), spans.left_out) == (SPANS_PER_SECOND_MAX, 5)
    clock.advance(1.0)
    spans.deliver_records(None, rows[:1])
    assert len(kept.spans) == SPANS_PER_SECOND_MAX + 1
