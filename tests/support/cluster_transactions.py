"""A transactional producer of a cluster, which notes every call in a history.

Rules: a transaction has records of all partitions, and positions of a group that nobody joined.
Every fifth one is given up. A commit without an answer is asked for again until it has one, as
clients do. A producer that cannot go on has a successor of the same name, which fences it.
librdkafka 2.16 may wait for ever in `send_offsets_to_transaction` when the coordinator of the group
left the metadata for a moment (its issues 5456 and 5511). Such a producer cannot go on either.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.support.cluster_lines import Line
from tests.support.cluster_workers import ANSWER_S, OUTSIDE, Scene, outcome

WHO = "transactions"
EVERY_S = 0.1
RECORDS = 4
GIVEN_UP_EVERY = 5
STEP_S = 3.0
STUCK_S = 4.0
LAST_S = 60.0
"""How long a step is asked for again."""


class Transactor:
    """The producer, and what it has begun."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._producer: Producer | None = None
        self._lives = 0
        self._open: dict[str, Line] = {}
        """Records without an outcome yet, by their values."""

    def run(self) -> None:
        """Transaction after transaction."""
        scene = self._scene
        scene.expect(WHO)
        with contextlib.closing(Consumer(scene.options(**{"group.id": OUTSIDE}))) as outside:
            for number in itertools.count(1):
                if scene.stopping.wait(EVERY_S):
                    return
                try:
                    self._transact(number, outside)
                except KafkaException:
                    self._forget()

    def _begun(self) -> Producer:
        """A producer with a transaction."""
        if self._producer is None:
            options = {"transactional.id": WHO, "transaction.timeout.ms": 20000, "linger.ms": 0}
            options["socket.timeout.ms"] = 4000  # else a node that stands still is waited for
            made = Producer(self._scene.options(**options))
            _persist(partial(made.init_transactions, ANSWER_S))
            self._producer = made
            self._lives += 1
        self._producer.begin_transaction()
        return self._producer

    def _forget(self) -> None:
        """The producer cannot go on; nobody knows what became of what it sent."""
        self._producer = None
        for line in self._open.values():
            self._scene.note(line, "unknown")
        self._open.clear()

    def _transact(self, number: int, outside: Consumer) -> None:
        """One transaction. Raises KafkaException: the producer is of no use any more."""
        scene, producer, txn = self._scene, self._begun(), f"txn-{number}"
        commits = number % GIVEN_UP_EVERY > 0
        end = scene.line("end", WHO, txn=txn, commit=False)
        positions: list[Line] = []
        try:
            self._fill(producer, txn)
            positions = self._positions(number)
            meta = outside.consumer_group_metadata()
            send = partial(producer.send_offsets_to_transaction, scene.parts(number), meta, STEP_S)
            _bounded(partial(_persist, send))
            end = scene.line("end", WHO, txn=txn, commit=commits)
            _persist(partial(_end_of(producer, commits), ANSWER_S))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                self._ended(end, positions, is_known=False)
                raise
            end.commit = False
            try:
                _persist(partial(producer.abort_transaction, ANSWER_S))
            except KafkaException:
                self._ended(end, positions, is_known=False)
                raise
        producer.poll(0)
        self._ended(end, positions, is_known=True)

    def _fill(self, producer: Producer, txn: str) -> None:
        scene = self._scene
        for number in range(RECORDS):
            part = number % scene.partitions
            line = scene.line(
                "publish", f"{WHO}.{self._lives}-{part}", partition=part,
                value=f"{txn}-{number}", txn=txn,
            )  # fmt: skip
            self._open[line.value] = line
            told = partial(self._told, line.value)
            producer.produce(scene.topic, line.value, partition=part, on_delivery=told)
            producer.poll(0)

    def _told(self, value: str, error: Any, message: Any) -> None:
        line = self._open.pop(value, None)
        if line is not None:  # else it was forgotten
            if error is None:
                line.offset = message.offset()
            self._scene.note(line, outcome(error))

    def _positions(self, number: int) -> list[Line]:
        return [
            self._scene.line(
                "commit", f"{WHO}-positions", group=OUTSIDE, partition=part, offset=number
            )
            for part in range(self._scene.partitions)
        ]

    def _ended(self, end: Line, positions: list[Line], *, is_known: bool) -> None:
        scene = self._scene
        scene.note(end, "ok" if is_known else "unknown")
        for line in positions:
            if is_known:
                scene.note(line, "ok" if end.commit else "refused")
            else:
                scene.note(line, "unknown" if end.commit else "refused")
        if is_known:
            scene.answered(WHO, end.start)


def _end_of(producer: Producer, commits: bool) -> Callable[[float], object]:
    return producer.commit_transaction if commits else producer.abort_transaction


class StuckError(KafkaException):
    """A call of the client does not end."""


def _bounded(step: Callable[[], object]) -> None:
    """Take a step in a thread of its own, which is left alone if the step does not end."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(STUCK_S)
    if thread.is_alive():
        raise StuckError(KafkaError(KafkaError._FAIL, "the client is stuck"))
    if failed:
        raise failed[0]


def _persist(step: Callable[[], object]) -> None:
    """Take a step; one that may be taken again is."""
    end = time.monotonic() + LAST_S
    while True:
        try:
            step()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > end:
                raise
        else:
            return
