"""Do the clients that people have work unchanged? Each scenario runs on RabbitMQ, too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import kombu
import pika
import pytest

from tests.conformance.amqp_jars import jars
from tests.conformance.amqp_raw import unique
from tests.conformance.mqtt_brokers import Onelog

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
AMQPLIB = ROOT / "build" / "js" / "node_modules" / "amqplib"
DEADLINE_S = 60


# -- pika


@pytest.fixture
def pika_connection(amqp):
    connection = pika.BlockingConnection(pika.URLParameters(f"{amqp.url}?heartbeat=30"))
    yield connection
    if connection.is_open:
        connection.close()


def test_pika_publishes_confirms_consumes_and_acknowledges(pika_connection):
    channel = pika_connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    for number in range(100):
        channel.basic_publish("", queue, str(number).encode(), mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError) as unroutable:
        channel.basic_publish("", unique(), b"nowhere", mandatory=True)
    assert unroutable.value.messages[0].body == b"nowhere"
    channel.basic_qos(prefetch_count=10)
    found = []
    for method, _properties, body in channel.consume(queue, inactivity_timeout=10):
        found.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == 100:
            break
    channel.cancel()
    assert found == list(range(100))
    assert channel.queue_declare(queue, passive=True).method.message_count == 0


def test_pika_recovers_requeues_and_transacts(pika_connection):
    channel = pika_connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"1")
    method, _properties, _body = channel.basic_get(queue)
    channel.basic_recover(requeue=True)
    method, _properties, _body = channel.basic_get(queue)
    assert method.redelivered
    channel.basic_ack(method.delivery_tag)
    channel.tx_select()
    channel.basic_publish("", queue, b"2")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"3")
    channel.tx_commit()
    assert channel.basic_get(queue, auto_ack=True)[2] == b"3"


def test_pika_sends_large_bodies_on_many_channels(pika_connection):
    channels = [pika_connection.channel() for _ in range(20)]
    queue = channels[0].queue_declare("", exclusive=True).method.queue
    body = os.urandom(1_000_000)
    for channel in channels[:5]:
        channel.basic_publish("", queue, body)
    for channel in channels:
        channel.close()
    channel = pika_connection.channel()
    assert [channel.basic_get(queue, auto_ack=True)[2] == body for _ in range(5)] == [True] * 5


def test_pika_hears_of_a_queue_that_goes_and_renews_its_secret(pika_connection):
    channel, other = pika_connection.channel(), pika_connection.channel()
    queue = channel.queue_declare("", auto_delete=False).method.queue
    cancelled = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume(queue, lambda *_: None)
    other.queue_delete(queue)
    deadline = time.monotonic() + 10
    while not cancelled and time.monotonic() < deadline:
        pika_connection.process_data_events(0.1)
    assert cancelled
    pika_connection.update_secret("guest", "renewed")


# -- aio-pika


async def test_aio_pika_publishes_consumes_and_answers(amqp):
    connection = await aio_pika.connect(amqp.url)
    async with connection:
        channel = await connection.channel(on_return_raises=True)
        await channel.set_qos(10)
        exchange = await channel.declare_exchange(unique("x"), "topic", auto_delete=True)
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(exchange, "a.*")
        message = aio_pika.Message(
            b"1", delivery_mode=2, headers={"n": 5}, expiration=60, correlation_id="c"
        )
        await exchange.publish(message, "a.b")
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await exchange.publish(message, "nowhere")
        found = await queue.get(timeout=10)
        async with found.process():
            assert (found.body, found.headers["n"], found.expiration) == (b"1", 5, 60)
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await channel.declare_queue(unique(), passive=True)


async def test_aio_pika_calls_procedures(amqp):
    async def double(*, number: int) -> int:
        return 2 * number

    connection = await aio_pika.connect_robust(amqp.url)
    async with connection:
        rpc = await aio_pika.patterns.RPC.create(await connection.channel())
        name = unique("rpc")
        await rpc.register(name, double, auto_delete=True)
        assert await rpc.call(name, {"number": 21}) == 42
        await rpc.close()


async def test_aio_pika_comes_back_with_its_topology_after_a_restart(tmp_path):
    """`connect_robust` declares everything again, and finds what was confirmed."""
    server = Onelog(tmp_path).start()
    try:
        url = f"amqp://guest:guest@127.0.0.1:{server.ports['amqp']}/"
        connection = await aio_pika.connect_robust(url, reconnect_interval=0.2)
        channel = await connection.channel()
        queue = await channel.declare_queue("work", durable=True)
        temporary = await channel.declare_queue("mine", exclusive=True)
        taken: asyncio.Queue[bytes] = asyncio.Queue()

        async def take(message) -> None:
            async with message.process():
                taken.put_nowait(message.body)

        await temporary.consume(take)
        await channel.default_exchange.publish(aio_pika.Message(b"kept", delivery_mode=2), "work")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    found = await queue.get(timeout=5)
                    break
                except (aio_pika.exceptions.AMQPError, TimeoutError, RuntimeError, OSError):
                    await asyncio.sleep(0.2)
            assert found.body == b"kept"
            await found.ack()
            await channel.default_exchange.publish(aio_pika.Message(b"again"), "mine")
            assert await taken.get() == b"again"
        await connection.close()
    finally:
        server.stop()


# -- kombu and Celery


def test_kombu_produces_consumes_and_has_simple_queues(amqp):
    with kombu.Connection(amqp.url.replace("%2F", "/"), heartbeat=10) as connection:
        exchange = kombu.Exchange(unique("x"), "topic", durable=False, auto_delete=True)
        queue = kombu.Queue(unique(), exchange, routing_key="a.#", exclusive=True)
        found = []

        def take(body, message) -> None:
            found.append((body, message.headers["n"]))
            message.ack()

        with connection.Consumer([queue], callbacks=[take]), connection.Producer() as producer:
            for number in range(5):
                producer.publish(
                    {"number": number}, exchange=exchange, routing_key="a.b", headers={"n": number}
                )
            while len(found) < 5:
                connection.drain_events(timeout=10)
        assert found == [({"number": number}, number) for number in range(5)]
        simple = connection.SimpleQueue(unique(), queue_opts={"exclusive": True, "durable": False})
        simple.put({"hello": "world"})
        message = simple.get(timeout=10)
        assert message.payload == {"hello": "world"}
        message.ack()
        assert simple.qsize() == 0
        simple.close()


@pytest.fixture
def celery_app(amqp, tmp_path, monkeypatch):
    """The app of the tasks, here and in workers."""
    environment = {
        "SCENARIO_BROKER": amqp.url.replace("%2F", "/"),
        "SCENARIO_QUEUE": unique("celery"),
        "SCENARIO_NOTES": str(tmp_path / "notes"),
    }
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.delitem(sys.modules, "amqp_celery_app", raising=False)
    import amqp_celery_app  # noqa: PLC0415

    yield amqp_celery_app
    amqp_celery_app.app.close()


@contextlib.contextmanager
def celery_worker(folder: Path, *options: str) -> Iterator[None]:
    """A worker in a process of its own."""
    with (folder / "worker").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "amqp_celery_app", "worker", "-c", "2", "-P",
             "threads", "--without-mingle", "-l", "WARNING", "-n", f"{unique('w')}@test",
             *options],
            cwd=HERE, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield
        finally:
            worker.terminate()
            worker.wait(DEADLINE_S)


@pytest.fixture
def celery(celery_app, tmp_path):
    """A worker, and its app here."""
    with celery_worker(tmp_path):
        yield celery_app


@pytest.mark.filterwarnings("ignore")
def test_a_celery_worker_serves_all_of_its_queues(celery_app, tmp_path):
    """Its prefetch is the channel's: the first queue must not use it up for ever."""
    queues, notes = [unique("celery") for _ in range(3)], tmp_path / "notes"
    for queue in queues:
        for _ in range(40):
            celery_app.note.apply_async((queue,), queue=queue)
    with celery_worker(tmp_path, "-Q", ",".join(queues)):
        deadline = time.monotonic() + DEADLINE_S
        while not notes.exists() or len(notes.read_text().split()) < 120:
            assert time.monotonic() < deadline, (tmp_path / "worker").read_text()
            time.sleep(0.05)  # the worker tells by its notes alone
    done = notes.read_text().split()
    first = Counter(done[:60])
    assert min(first[queue] for queue in queues) >= 5, first
    assert Counter(done) == dict.fromkeys(queues, 40)


@pytest.mark.filterwarnings("ignore")
def test_a_celery_worker_runs_retries_waits_reports_and_revokes(celery):
    events: list[str] = []
    ready = threading.Event()
    stop = threading.Event()

    def listen() -> None:
        with celery.app.connection_for_read() as connection:
            receiver = celery.app.events.Receiver(
                connection, handlers={"*": lambda event: events.append(event["type"])}
            )
            while not stop.is_set():
                try:
                    ready.set()
                    receiver.capture(limit=None, timeout=1, wakeup=False)
                except TimeoutError:
                    continue

    listener = threading.Thread(target=listen)
    listener.start()
    ready.wait(10)
    try:
        assert celery.add.delay(2, 3).get(timeout=DEADLINE_S) == 5
        assert celery.stubborn.delay().get(timeout=DEADLINE_S) == 2
        began = time.monotonic()
        waits = [celery.add.apply_async((number, 1), countdown=3) for number in range(6)]
        assert celery.add.delay(5, 5).get(timeout=DEADLINE_S) == 10
        assert time.monotonic() - began < 3  # the waiting ones do not stand in the way
        assert [row.get(timeout=DEADLINE_S) for row in waits] == [1, 2, 3, 4, 5, 6]
        assert time.monotonic() - began >= 2.9
        inspect = celery.app.control.inspect(timeout=2)
        (answer,) = inspect.ping().values()
        assert answer == {"ok": "pong"}
        doomed = celery.add.apply_async((1, 1), countdown=3)
        (reply,) = celery.app.control.revoke(doomed.id, reply=True, timeout=2)
        assert "ok" in next(iter(reply.values()))
        with pytest.raises(Exception, match="revoked"):
            doomed.get(timeout=DEADLINE_S)
    finally:
        stop.set()
        listener.join(10)
    assert {"task-received", "task-started", "task-succeeded", "task-retried"} <= set(events)


# -- amqplib


def test_amqplib_confirms_consumes_returns_and_is_told(amqp):
    node = shutil.which("node")
    if node is None or not AMQPLIB.is_dir():
        pytest.skip("amqplib is missing: run 'apt-get install nodejs npm' as root, then make setup")
    done = subprocess.run(
        [node, str(HERE / "amqp_js_client.js"), str(AMQPLIB), amqp.url],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    seen = {row["step"]: row["seen"] for row in rows}
    headers = {
        "text": "t", "number": 5, "big": 2**40, "nothing": None, "list": [1, "two"],
        "table": {"deep": True},
    }  # fmt: skip
    assert seen == {
        "get": [20000, "a.b", "m1", headers, 2],
        "nack": True,
        "empty": False,
        "return": "NO_ROUTE",
        "consume": [str(number) for number in range(50)],
        "cancel": True,
        "check": 404,
        "reply": "answer",
        "closed": True,
    }, done.stderr


# -- Java


def test_the_java_client_confirms_consumes_returns_and_is_told(amqp):
    folder = jars()
    if folder is None or shutil.which("java") is None:
        pytest.skip("the Java client is missing: run 'apt-get install maven' as root, then setup")
    done = subprocess.run(
        ["java", "-cp", f"{folder}/*", str(HERE / "amqp_java_client.java"), amqp.url],
        capture_output=True, text=True, timeout=DEADLINE_S * 2, check=False,
    )  # fmt: skip
    seen = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert seen == {
        "get": "300000 Long 1700000000000 [1, two] true",
        "redelivered": "true",
        "return": "312 NO_ROUTE",
        "consume": str([*range(20)]),
        "cancel": "true",
        "passive": "404",
        "tx": "2 true",
        "closed": "true",
    }, done.stderr
