"""Events that come too often: lines are left out, and counted."""

from __future__ import annotations

import io
import json

import pytest
import structlog

from onelog.observe import get_logger
from onelog.observe import logging as module
from onelog.observe.logging import LINES_PER_SECOND, configure_logging


@pytest.fixture
def lines(monkeypatch):
    """A log of its own, on a clock that the test sets; returns what was written, and the clock."""
    before = structlog.get_config()
    stream = io.StringIO()
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    configure_logging("info", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()], now
    structlog.configure(**before)


def test_an_event_is_written_so_often_in_a_second_and_then_says_how_many_were_left_out(lines):
    written, now = lines
    log = get_logger("net")
    for number in range(LINES_PER_SECOND + 5):
        log.info("a peer came", peer=number)
    assert [row["peer"] for row in written()] == list(range(LINES_PER_SECOND))
    now[0] += 1
    log.info("a peer came", peer=99)
    log.info("a peer came", peer=100)
    assert [row.get("left_out") for row in written()[-2:]] == [5, None]


def test_other_events_and_other_areas_are_written_beside_a_flood(lines):
    written, _now = lines
    for _ in range(2 * LINES_PER_SECOND):
        get_logger("net").info("a peer came")
    get_logger("net").warning("a disk is slow")
    get_logger("mqtt").info("a peer came")
    assert [(row["area"], row["event"]) for row in written()[-2:]] == [
        ("net", "a disk is slow"),
        ("mqtt", "a peer came"),
    ]


def test_errors_are_always_written(lines):
    written, _now = lines
    for _ in range(3 * LINES_PER_SECOND):
        get_logger("net").error("a partition stopped")
    assert len(written()) == 3 * LINES_PER_SECOND


def test_names_of_events_take_bounded_memory(lines, monkeypatch):
    monkeypatch.setattr(module, "EVENTS_MAX", 10)
    flood = module._Flood()
    for number in range(100):
        flood(None, "info", {"area": "x", "event": f"event {number}"})
    assert len(flood._counts) <= 10
