"""Is a confirmed message in every queue it was routed to after kill -9, and a commit whole? (I4)"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.amqp_raw import (
    Ended,
    Exchange,
    Raw,
    RawChannel,
    Refused,
    Tx,
    x_arguments,
)
from tests.fault import amqp_child
from tests.support.forks import Fork

pytestmark = pytest.mark.fault


class Life:
    """One run of the broker."""

    def __init__(self, data: Path, fault: str, tidy: bool) -> None:
        self.process = Fork(amqp_child.run, data, fault, tidy)
        self.port = int(self.process.stdout.readline())
        self._opened: list[Raw] = []

    def channel(self, *, confirms: bool = True) -> RawChannel:
        raw = Raw(self.port).open()
        self._opened.append(raw)
        channel = raw.channel()
        if confirms:
            channel.confirm()
        return channel

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(30)
        self.process.stdout.close()
        for raw in self._opened:
            raw.socket.close()


@contextlib.contextmanager
def life(
    data: Path, fault: str = "", *, end: int = signal.SIGKILL, tidy: bool = False
) -> Iterator[Life]:
    found = Life(data, fault, tidy)
    try:
        yield found
    finally:
        found.end(end)


def durable(channel: RawChannel, name: str, **arguments) -> str:
    return channel.queue(name, durable=True, arguments=x_arguments(arguments))


def test_confirmed_messages_are_in_their_queues_in_order_as_they_were_routed(tmp_path):
    with life(tmp_path) as broker:
        channel = broker.channel()
        channel.exchange("topic", "logs", durable=True)
        for queue, key in (("all", "#"), ("errors", "*.error")):
            durable(channel, queue)
            channel.bind(queue, "logs", key)
        durable(channel, "own")
        for number in range(30):
            channel.put("logs", "a.error" if number % 3 == 0 else "a.info", str(number))
            channel.put("", "own", str(number))
    with life(tmp_path) as broker:
        channel = broker.channel()
        numbers = [str(number) for number in range(30)]
        assert [channel.count(queue) for queue in ("all", "errors", "own")] == [30, 10, 30]
        assert channel.all("all") == numbers
        assert channel.all("errors") == numbers[::3]
        assert channel.all("own") == numbers


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_durable_definitions_come_back_and_others_do_not(tmp_path, end):
    with life(tmp_path, end=end) as broker:
        channel = broker.channel()
        channel.exchange(
            "headers", "kept", durable=True, arguments={"alternate-exchange": "amq.fanout"}
        )
        channel.exchange("fanout", "lost")
        durable(channel, "kept", max_length=5, message_ttl=60000)
        channel.queue("lost")
        channel.bind("kept", "kept", "", **{"x-match": "all", "a": 1, "b": bytearray(b"\xff")})
        channel.bind_exchange("kept", "amq.topic", "k.#")
    for _ in range(2):
        with life(tmp_path, end=end) as broker:
            channel = broker.channel()
            channel.exchange(
                "headers", "kept", durable=True, arguments={"alternate-exchange": "amq.fanout"}
            )
            durable(channel, "kept", max_length=5, message_ttl=60000)
            headers = {"a": 1, "b": bytearray(b"\xff")}
            channel.put("amq.topic", "k.1", "through", headers=headers)
            # After a crash what was taken may come again.
            assert set(channel.all("kept")) == {"through"}
            with pytest.raises(Refused, match="NOT_FOUND"):
                channel.exchange("fanout", "lost", passive=True)
            with pytest.raises(Refused, match="NOT_FOUND"):
                broker.channel().queue("lost", passive=True)


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127], ids=["long", "wide"])
def test_an_exchange_with_a_long_name_is_in_nobody_s_way_after_a_restart(tmp_path, name):
    """Its stream's name would be too long: after a restart no AMQP client was served any more."""
    with life(tmp_path) as broker:
        channel = broker.channel()
        durable(channel, "q")
        channel.exchange("fanout", name, durable=True)
        channel.bind("q", name)
        channel.put(name, "", "1")
        channel.put("", "q", "2")
    with life(tmp_path) as broker:
        channel = broker.channel()
        channel.exchange("fanout", name, durable=True, passive=True)
        assert channel.all("q") == ["1", "2"]


def test_an_exchange_whose_topic_would_be_too_long_is_refused(tmp_path):
    with life(tmp_path) as broker:
        channel = broker.channel()
        with pytest.raises(Refused, match="counts as five"):
            channel.exchange("fanout", "/" * 255, durable=True)


def test_what_came_through_a_transient_exchange_to_a_durable_queue_is_there(tmp_path):
    with life(tmp_path) as broker:
        channel = broker.channel()
        durable(channel, "q")
        channel.exchange("fanout", "first")
        channel.exchange("fanout", "second")
        channel.bind_exchange("second", "first")
        channel.bind("q", "second")
        channel.put("first", "", "1", "2")
    with life(tmp_path) as broker:
        channel = broker.channel()
        assert channel.all("q") == ["1", "2"]
        with pytest.raises(Refused, match="NOT_FOUND"):
            channel.exchange("fanout", "first", passive=True)


def test_a_binding_counts_from_its_answer_to_the_answer_of_its_end(tmp_path):
    with life(tmp_path) as broker:
        channel = broker.channel()
        durable(channel, "q")
        channel.exchange("fanout", "x", durable=True)
        channel.put("x", "", "before")
        channel.bind("q", "x")
        channel.put("x", "", "during")
        channel.unbind("q", "x")
        channel.put("x", "", "after")
    with life(tmp_path) as broker:
        assert broker.channel().all("q") == ["during"]


def test_what_an_exchange_brought_stays_when_it_is_deleted(tmp_path):
    with life(tmp_path) as broker:
        channel = broker.channel()
        durable(channel, "q")
        channel.exchange("fanout", "x", durable=True)
        channel.bind("q", "x")
        channel.put("x", "", "1")
        channel.ask(Exchange.Delete(exchange="x"), Exchange.DeleteOk)
    with life(tmp_path) as broker:
        assert broker.channel().all("q") == ["1"]


def test_what_came_from_the_topic_space_is_there(tmp_path):
    """Also through an exchange that was bound to it before the queue was."""
    with life(tmp_path) as broker:
        channel = broker.channel()
        channel.exchange("topic", "x", durable=True)
        channel.bind_exchange("x", "amq.topic", "sensors.#")
        durable(channel, "q")
        channel.bind("q", "x", "sensors.*.t")
        channel.put("amq.topic", "sensors.d1.t", "20")
    with life(tmp_path) as broker:
        assert broker.channel().all("q") == ["20"]


def test_several_exchanges_keep_their_order_over_a_crash(tmp_path):
    sent = [f"{number}" for number in range(12)]
    with life(tmp_path) as broker:
        channel = broker.channel()
        durable(channel, "q")
        for number in range(3):
            channel.exchange("fanout", f"x{number}", durable=True)
            channel.bind("q", f"x{number}")
        for number, text in enumerate(sent):
            channel.put(f"x{number % 3}", "", text)
            os.sched_yield()
    with life(tmp_path) as broker:
        found = broker.channel().all("q")
        # Within a millisecond exchanges may change places; within an exchange nothing does.
        assert sorted(found, key=int) == sent
        for number in range(3):
            assert [text for text in found if int(text) % 3 == number] == sent[number::3]


def test_acknowledged_messages_do_not_come_back_after_a_stop(tmp_path):
    with life(tmp_path, end=signal.SIGTERM) as broker:
        channel = broker.channel()
        durable(channel, "q")
        channel.put("", "q", "1", "2", "3", "4")
        held = [channel.get("q", no_ack=False) for _ in range(3)]
        channel.ack(held[0].tag)
        channel.ack(held[2].tag)
        channel.sync()
    with life(tmp_path) as broker:
        channel = broker.channel()
        found = [channel.get("q") for _ in range(2)]
        assert [(row.text, row.method.redelivered) for row in found] == [("2", True), ("4", False)]
        assert channel.get("q") is None


def test_after_kill_9_what_may_have_been_delivered_is_marked(tmp_path):
    with life(tmp_path) as broker:
        channel = broker.channel()
        durable(channel, "q")
        channel.put("", "q", "1")
        channel.get("q", no_ack=False)
    with life(tmp_path) as broker:
        channel = broker.channel()
        channel.put("", "q", "2")
        found = [channel.get("q") for _ in range(2)]
        assert [(row.text, row.method.redelivered) for row in found] == [("1", True), ("2", False)]


def test_a_stream_has_its_messages_and_numbers_again(tmp_path):
    with life(tmp_path) as broker:
        channel = broker.channel()
        durable(channel, "s", queue_type="stream", max_length_bytes=3)
        channel.put("", "s", *"abcde")
        reader = broker.channel()
        reader.qos(10)
        reader.consume("s", arguments={"x-stream-offset": "first"})
        first = reader.message().headers["x-stream-offset"]
        assert first == 2
    with life(tmp_path) as broker:
        reader = broker.channel()
        reader.qos(10)
        reader.consume("s", arguments={"x-stream-offset": "first"})
        assert "".join(reader.texts(3)) == "cde"


def test_dead_letters_are_not_lost(tmp_path):
    with life(tmp_path) as broker:
        channel = broker.channel()
        durable(channel, "dead")
        durable(channel, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
        channel.put("", "q", *map(str, range(20)))
        for _ in range(20):
            channel.nack(channel.get("q", no_ack=False).tag, requeue=False)
    with life(tmp_path) as broker:
        channel = broker.channel()
        # Some may be in both, since a death is settled after it is written; none in neither.
        assert set(channel.all("dead")) | set(channel.all("q")) == {str(n) for n in range(20)}


def stored_bytes(data: Path) -> int:
    """What the segments take on the disk."""
    found = 0
    for file in data.rglob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # replaced just now
            found += file.stat().st_blocks * 512
    return found


def test_what_queues_need_survives_kills_while_the_rest_is_given_back(tmp_path):
    """Segments are thinned all the time, and the process dies in the middle of it (I4)."""
    body = "x" * 1000
    idle = [str(number) for number in range(20)]
    left = confirmed = 0
    with life(tmp_path, tidy=True, end=signal.SIGTERM) as broker:
        channel = broker.channel()
        for name in ("idle", "busy", "kept"):
            durable(channel, name)
        channel.put("", "idle", *idle)
    for round_ in range(6):
        with life(tmp_path, f"segment.swap=exit:{3 * round_}", tidy=True) as broker:
            channel = broker.channel()
            with contextlib.suppress(Ended, OSError):
                for _ in range(60):
                    channel.put("", "busy", *[body] * 50)
                    channel.put("", "kept", str(confirmed))
                    confirmed += 1
                    left = len(channel.all("busy"))
    assert confirmed > 5
    assert left >= 50
    with life(tmp_path, tidy=True) as broker:
        channel = broker.channel()
        for _ in range(60):
            channel.put("", "busy", *[body] * 50)
            channel.all("busy")
        deadline = time.monotonic() + 10
        while (stored := stored_bytes(tmp_path)) > 20 * 50 * len(body):
            assert time.monotonic() < deadline, stored
            time.sleep(0.05)
        assert channel.all("idle") == idle
        found = list(map(int, channel.all("kept")))
        assert found == sorted(found)
        assert set(found) >= set(range(confirmed))


# -- tx


def begin(channel: RawChannel) -> None:
    """A transaction that moves a message from one queue to two others."""
    channel.ask(Tx.Select(), Tx.SelectOk)
    channel.ack(channel.get("from", no_ack=False).tag)
    channel.publish("", "one", "moved")
    channel.publish("x", "", "moved")


def prepare(broker: Life) -> None:
    channel = broker.channel()
    for name in ("from", "one", "two"):
        durable(channel, name)
    channel.exchange("fanout", "x", durable=True)
    channel.bind("two", "x")
    channel.put("", "from", "original")


def contents(broker: Life) -> list[list[str]]:
    channel = broker.channel()
    return [channel.all(name) for name in ("from", "one", "two")]


@pytest.mark.parametrize("point", ["amqp.tx_intended", "amqp.tx_written", "amqp.tx_settled"])
def test_a_commit_that_a_crash_cuts_is_done_as_a_whole(tmp_path, point):
    with life(tmp_path, end=signal.SIGTERM) as broker:
        prepare(broker)
    with life(tmp_path, f"{point}=exit") as broker:
        channel = broker.channel(confirms=False)
        begin(channel)
        channel.send(Tx.Commit())
        with pytest.raises(Ended):
            channel.expect(Tx.CommitOk)
    for _ in range(2):
        with life(tmp_path) as broker:
            channel = broker.channel()
            assert [channel.count(name) for name in ("from", "one", "two")] == [0, 1, 1]
    with life(tmp_path) as broker:
        assert contents(broker) == [[], ["moved"], ["moved"]]


def test_a_transaction_without_its_commit_did_nothing(tmp_path):
    with life(tmp_path) as broker:
        prepare(broker)
        begin(broker.channel(confirms=False))
    with life(tmp_path) as broker:
        assert contents(broker) == [["original"], [], []]


def test_an_answered_commit_is_whole_after_kill_9(tmp_path):
    with life(tmp_path) as broker:
        prepare(broker)
        channel = broker.channel(confirms=False)
        begin(channel)
        channel.ask(Tx.Commit(), Tx.CommitOk)
    with life(tmp_path) as broker:
        assert contents(broker) == [[], ["moved"], ["moved"]]


def test_acknowledgements_alone_are_durable_with_their_commit(tmp_path):
    with life(tmp_path) as broker:
        prepare(broker)
        channel = broker.channel(confirms=False)
        channel.ask(Tx.Select(), Tx.SelectOk)
        channel.ack(channel.get("from", no_ack=False).tag)
        channel.ask(Tx.Commit(), Tx.CommitOk)
    with life(tmp_path) as broker:
        assert contents(broker)[0] == []


def test_a_large_transaction_is_whole(tmp_path):
    body = os.urandom(500_000)
    with life(tmp_path) as broker:
        channel = broker.channel(confirms=False)
        durable(channel, "q")
        channel.ask(Tx.Select(), Tx.SelectOk)
        for _ in range(50):
            channel.publish("", "q", body)
        channel.ask(Tx.Commit(), Tx.CommitOk)
    with life(tmp_path) as broker:
        channel = broker.channel()
        assert channel.count("q") == 50
        assert channel.get("q").body == body


@pytest.mark.fault_long
def test_confirmed_messages_survive_many_kills_once_and_in_order(tmp_path):
    """Publish all the time, be killed at any time: what was confirmed is there, once per queue."""
    confirmed = 0
    with life(tmp_path, end=signal.SIGTERM) as broker:
        channel = broker.channel()
        channel.exchange("fanout", "x", durable=True)
        for queue in ("a", "b"):
            durable(channel, queue)
            channel.bind(queue, "x")
    for round_ in range(25):
        with life(tmp_path, f"segment.write=exit:{37 + 23 * round_ % 91}") as broker:
            channel = broker.channel()
            with contextlib.suppress(Ended, OSError):
                while True:
                    channel.put("x", "", str(confirmed))
                    confirmed += 1
    assert confirmed > 100
    with life(tmp_path) as broker:
        channel = broker.channel()
        for queue in ("a", "b"):
            found = list(map(int, channel.all(queue)))
            assert found == sorted(found)
            assert set(found) >= set(range(confirmed))


def test_a_channel_that_is_cut_while_it_commits_commits(tmp_path):
    with life(tmp_path) as broker:
        prepare(broker)
        channel = broker.channel(confirms=False)
        begin(channel)
        channel.send(Tx.Commit())
        channel.raw.socket.close()
        watcher = broker.channel()
        while watcher.count("two") == 0:
            watcher.sync()
        watcher.sync()
    with life(tmp_path) as broker:
        assert contents(broker) == [[], ["moved"], ["moved"]]
