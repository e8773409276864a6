"""The checker of a cluster's history is able to fail: each broken promise is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster_history import PROGRESS_S, ClusterHistory, Recorder, load
from tests.support.cluster_lines import Line

S = {"stream": "s", "partition": 0}


def publish(value: str, offset: int, at: float, result: str = "ok", **more: object) -> Line:
    fields = {"who": "p", "start": at, "end": at + 0.5, "result": result, **S, **more}
    return Line(call="publish", value=value, offset=offset, **fields)  # type: ignore[arg-type]


def read(value: str, offset: int, at: float, who: str = "r") -> Line:
    return Line(call="read", who=who, value=value, offset=offset, start=at, end=at + 0.1, **S)


def final(*rows: tuple[int, str], node: int = 1, **more: object) -> Line:
    fields = {"start": 100.0, "end": 101.0, **S, **more}
    return Line(call="final", node=node, rows=list(rows), **fields)  # type: ignore[arg-type]


def commit(offset: int, at: float, result: str = "ok") -> Line:
    fields = {"who": "g1", "start": at, "end": at + 0.5, "result": result, **S}
    return Line(call="commit", group="g", offset=offset, **fields)  # type: ignore[arg-type]


def position(offset: int, at: float) -> Line:
    return Line(call="position", group="g", offset=offset, start=at, end=at + 0.1, **S)


def ended(txn: str, at: float, result: str = "ok", *, commit: bool = True) -> Line:
    fields = {"who": "p", "start": at, "end": at + 0.5, "result": result}
    return Line(call="end", txn=txn, commit=commit, **fields)  # type: ignore[arg-type]


def begun(group: str, at: float, qos: int = 0) -> Line:
    return Line(call="begun", group=group, start=at, end=at + 0.1, qos=qos, **S)


def took(group: str, value: str, at: float, **more: object) -> Line:
    fields = {"who": "c.1", "start": at, "end": at, **S, **more}
    return Line(call="taken", group=group, value=value, **fields)  # type: ignore[arg-type]


def settled(value: str, at: float, result: str = "ok", *, commit: bool = True) -> Line:
    fields = {"start": at, "end": at + 0.1, "result": result, **S}
    return Line(call="settled", group="q", value=value, commit=commit, **fields)  # type: ignore[arg-type]


ROWS = ((0, "a"), (1, "b"), (2, "c"))
WHOLE = [
    publish("a", 0, 1), publish("b", 1, 2), publish("c", 2, 3), publish("d", -1, 4, "refused"),
    publish("e", -1, 5, "unknown"), read("a", 0, 6), read("b", 1, 7), commit(2, 8),
    position(2, 9), final(*ROWS), final(*ROWS, node=2),
]  # fmt: skip
T = {"txn": "t1"}
KEPT = [
    publish("z", -1, 0.1, "unknown", qos=2), begun("s", 1, qos=1), begun("q", 1),
    publish("a", 0, 2, qos=2), publish("b", 1, 3, qos=1), publish("c", 2, 4),
    publish("d", -1, 5, "unknown", qos=1), publish("e", -1, 6, "refused", qos=1),
    took("s", "a", 7, qos=2), took("s", "b", 8, qos=1), took("s", "b", 9, qos=1, who="c.2"),
    *(took("q", value, at) for at, value in enumerate("abc", 7)), settled("a", 10),
    settled("b", 10, "unknown"), took("q", "b", 11), settled("b", 12),
    settled("c", 12, commit=False), took("dead", "c", 13), final(*ROWS),
]  # fmt: skip
"""A session and a queue that gave what they owed."""


def test_a_kept_promise_has_no_finding(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "w.jsonl")
    for line in WHOLE:
        recorder.note(line)
    recorder.close()
    with (tmp_path / "w.jsonl").open("ab") as file:
        file.write(b'{"call": "publ')  # its worker was killed
    history = ClusterHistory(load([tmp_path / "w.jsonl"]))
    history.prove()
    assert history.counts()["publish ok"] == 3


def test_what_was_unknown_may_be_there_or_not_and_twice() -> None:
    extra = ((3, "e"), (4, "e"))
    ClusterHistory([*WHOLE[:-2], final(*ROWS, *extra), final(*ROWS, *extra, node=2)]).prove()


def test_what_a_client_sends_again_by_itself_may_be_there_twice() -> None:
    ClusterHistory([publish("a", 1, 1, again_s=0.3), final((0, "a"), (1, "a"))]).prove()


def test_a_refusal_says_nothing_of_attempts_that_a_client_does_not_tell_of() -> None:
    lines = [publish("a", -1, 1, "refused", again_s=0.3), publish("b", -1, 2, "refused")]
    ClusterHistory([*lines, final((0, "a"))]).prove()
    assert any("C7" in text for text in ClusterHistory([*lines, final((0, "b"))]).findings())


def test_a_transaction_that_was_committed_is_there_and_one_that_was_not_is_not() -> None:
    lines = [
        publish("a", 0, 1, **T), ended("t1", 2), publish("b", 1, 3, txn="t2"),
        ended("t2", 4, commit=False), publish("c", 2, 5, txn="t3"), ended("t3", 6, "unknown"),
        read("a", 0, 7),
    ]  # fmt: skip
    ClusterHistory([*lines, final((0, "a"))]).prove()
    ClusterHistory([*lines, final((0, "a"), (2, "c"))]).prove()


PLANTED: dict[str, tuple[str, Callable[[], list[Line]]]] = {
    "a lost record": ("C1", lambda: [*WHOLE, final(*ROWS[:2], node=3)]),
    "a record at another offset": (
        "C1", lambda: [publish("a", 5, 1), final((4, "a"))]
    ),
    "a lost record without an offset": ("C1", lambda: [publish("a", -1, 1), final()]),
    "a lost transaction": ("C1", lambda: [publish("a", 0, 1, **T), ended("t1", 2), final()]),
    "a lost position": ("C1", lambda: [*WHOLE, position(-1, 10)]),
    "two histories": (
        "C2", lambda: [publish("a", -1, 1, "unknown"), publish("b", -1, 2, "unknown"),
                       final((0, "a")), final((0, "b"), node=2)],
    ),
    "a reader of another history": (
        "C2", lambda: [*WHOLE, publish("x", -1, 6, "unknown"), read("x", 2, 7, "r2")]
    ),
    "a record that nobody sent": ("C3", lambda: [*WHOLE, final(*ROWS, (3, "z"), node=3)]),
    "a record before it was sent": (
        "C3", lambda: [publish("a", 0, 5), read("a", 0, 1), final((0, "a"))]
    ),
    "a record in another partition": (
        "C3", lambda: [*WHOLE, final((0, "a"), partition=1)]
    ),
    "a refused record": ("C7", lambda: [*WHOLE, final(*ROWS, (3, "d"), node=3)]),
    "a refused commit": (
        "C7", lambda: [*WHOLE, commit(7, 10, "refused"), position(7, 11)]
    ),
    "another order": (
        "C4", lambda: [publish("a", 1, 1), publish("b", 0, 2), final((0, "b"), (1, "a"))]
    ),
    "a read that is gone": (
        "C5", lambda: [*WHOLE, publish("f", -1, 6, "unknown"), read("f", 3, 8)]
    ),
    "a reader that goes back": ("C5", lambda: [*WHOLE, read("a", 0, 8)]),
    "a position that goes back": (
        "C5", lambda: [*WHOLE, commit(3, 10), commit(4, 11), position(3, 12)]
    ),
    "an idempotent record twice": (
        "C6", lambda: [publish("a", -1, 1, "unknown", once=True), final((0, "a"), (1, "a"))]
    ),
    "a record twice that was answered before its client could send it again": (
        "C6", lambda: [publish("a", 0, 1, again_s=0.6), final((0, "a"), (1, "a"))]
    ),
    "a record more often than its client can have sent it": (
        "C6",
        lambda: [publish("a", 0, 1, again_s=0.3), final((0, "a"), (1, "a"), (2, "a"))],
    ),
    "a record that was lost and sent again": (
        "C1", lambda: [publish("a", 1, 1, again_s=0.3), final((0, "a"))]
    ),
    "a record that was refused before its client could send it again": (
        "C7", lambda: [publish("a", -1, 1, "refused", again_s=0.6), final((0, "a"))]
    ),
    "an answered record twice": ("C6", lambda: [publish("a", 0, 1), final((0, "a"), (1, "a"))]),
    "half a transaction": (
        "C6", lambda: [publish("a", 0, 1, **T), publish("b", 1, 2, **T),
                       ended("t1", 3, "unknown"), final((0, "a"))],
    ),
    "an aborted record": (
        "C10", lambda: [publish("a", 0, 1, **T), ended("t1", 2, commit=False), final((0, "a"))]
    ),
    "an open record": ("C10", lambda: [publish("a", 0, 1, **T), final((0, "a"))]),
    "a record before its commit": (
        "C10", lambda: [publish("a", 0, 1, **T), read("a", 0, 2), ended("t1", 5), final((0, "a"))]
    ),
    "no progress": (
        "C12",
        lambda: [*WHOLE, Line(call="healed", start=10, end=10),
                 publish("f", -1, 12, "unknown", who="q"), publish("g", -1, 30, "unknown")],
    ),
    "no progress after the first of two faults": (
        "C12",
        lambda: [*WHOLE, Line(call="healed", start=10, end=10),
                 publish("f", -1, 12, "unknown"), publish("g", -1, 30, "unknown"),
                 Line(call="healed", start=40, end=40), publish("h", 3, 41),
                 final(*ROWS, (3, "h"))],
    ),
    "an aborted record that only a reader of everything may see": (
        "C10",
        lambda: [publish("a", 0, 1, **T), ended("t1", 2, commit=False),
                 final((0, "a"), committed=False), final((0, "a"))],
    ),
    "a committed record that only a reader of everything sees": (
        "C1",
        lambda: [publish("a", 0, 1, **T), ended("t1", 2),
                 final((0, "a"), committed=False), final()],
    ),
    "a position of a transaction that was given up": (
        "C7", lambda: [*WHOLE, commit(7, 10, "refused"), commit(8, 11), position(7, 12)]
    ),
    "a position that a transaction lost": (
        "C5", lambda: [*WHOLE, commit(7, 10), position(2, 12)]
    ),
    "a session that lacks a message": (
        "C11", lambda: [line for line in KEPT if line.call != "taken" or line.group != "s"]
    ),
    "a session that gives a message of QoS 2 again": (
        "C6", lambda: [*KEPT, took("s", "a", 10, qos=2, who="c.2")]
    ),
    "a session that gives a message of QoS 1 twice to a connection": (
        "C6", lambda: [*KEPT, took("s", "b", 10, qos=1)]
    ),
    "a session that gives messages in another order": (
        "C4", lambda: [*KEPT[:3], *KEPT[3:8], took("s", "b", 7, qos=1), took("s", "a", 8, qos=2),
                       *KEPT[11:]],
    ),
    "a session that gives what nobody sent": ("C3", lambda: [*KEPT, took("s", "x", 10)]),
    "a session that gives a message before it was sent": (
        "C3", lambda: [*KEPT, took("s", "b", 1)]
    ),
    "a session that gives what was refused": ("C7", lambda: [*KEPT, took("s", "e", 10)]),
    "a session that gives what is not in the log": ("C5", lambda: [*KEPT, took("s", "d", 10)]),
    "a session that gives an aborted record": (
        "C10", lambda: [*KEPT, publish("x", 3, 5, **T), ended("t1", 6, commit=False),
                        took("s", "x", 10)],
    ),
    "a queue that gives again what was settled": ("C9", lambda: [*KEPT, took("q", "a", 14)]),
    "a queue where a message settles twice": ("C9", lambda: [*KEPT, settled("a", 14)]),
    "a queue that lacks a message": (
        "C9", lambda: [line for line in KEPT if line.call != "settled" or line.value != "a"]
    ),
    "a rejected message that is no dead letter": (
        "C9", lambda: [line for line in KEPT if line.group != "dead"]
    ),
    "a value that is sent twice": ("attempted 2 times", lambda: [*WHOLE, publish("a", 0, 6)]),
    "no final read": ("nobody read", lambda: WHOLE[:3]),
}  # fmt: skip


def test_a_session_and_a_queue_that_gave_what_they_owed_have_no_finding() -> None:
    ClusterHistory(KEPT).prove()
    ClusterHistory([*KEPT, took("q", "c", 14)]).prove()  # its letter may be on its way


@pytest.mark.parametrize("name", PLANTED)
def test_a_broken_promise_is_found(name: str) -> None:
    rule, lines = PLANTED[name]
    found = list(ClusterHistory(sorted(lines(), key=lambda line: line.start)).findings())
    assert any(rule in text for text in found), found
    with pytest.raises(AssertionError):
        ClusterHistory(lines()).prove()


def test_an_aborted_record_may_be_in_the_log_and_is_not_for_readers_of_committed_ones() -> None:
    lines = [publish("a", 0, 1, **T), ended("t1", 2, commit=False)]
    ClusterHistory([*lines, final((0, "a"), committed=False), final()]).prove()


def test_progress_after_the_last_fault_is_enough() -> None:
    healed = Line(call="healed", start=10, end=10)
    late = publish("g", -1, 11 + PROGRESS_S, "unknown", who="q")
    lines = [healed, publish("f", -1, 12, "unknown", who="q"), publish("h", 0, 15, who="q"), late]
    ClusterHistory([*lines, final((0, "h"))]).prove()


def test_progress_on_another_connection_of_a_worker_is_enough() -> None:
    lines = [
        Line(call="healed", start=10, end=10), publish("f", -1, 12, "unknown", who="q.1"),
        publish("h", 0, 15, who="q.2"), publish("g", -1, 11 + PROGRESS_S, "unknown", who="q.3"),
        final((0, "h")),
    ]  # fmt: skip
    ClusterHistory(lines).prove()
