"""Logs are one event per line, from our code and from libraries alike."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from onelog.observe import configure_logging, get_logger


@pytest.fixture
def out():
    root = logging.getLogger()
    before = (root.handlers, root.level)
    yield io.StringIO()
    root.handlers, root.level = before
    structlog.reset_defaults()


def test_json_events_are_one_line_each_with_their_facts(out):
    configure_logging("info", "json", out)
    get_logger("area").info("it happened", count=3, raw=b"x")
    event = json.loads(out.getvalue())
    assert (event["event"], event["level"], event["area"]) == ("it happened", "info", "area")
    assert event["count"] == 3
    assert list(event)[:4] == ["timestamp", "level", "area", "event"]


def test_events_below_the_level_are_not_written(out):
    configure_logging("warning", "json", out)
    get_logger("area").info("quiet")
    get_logger("area").warning("loud")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["loud"]


def test_a_library_that_logs_comes_out_in_the_same_format(out):
    configure_logging("info", "json", out)
    logging.getLogger("some.library").warning("trouble with %s", "it")
    logging.getLogger("some.library").info("noise")
    event = json.loads(out.getvalue())
    assert (event["event"], event["area"]) == ("trouble with it", "some.library")


def test_an_exception_stays_on_its_line(out):
    configure_logging("info", "json", out)
    try:
        int("why")
    except ValueError:
        get_logger("area").exception("it failed")
    assert len(out.getvalue().splitlines()) == 1
    assert "ValueError: invalid literal" in json.loads(out.getvalue())["exception"]


def test_auto_is_json_where_no_terminal_is(out):
    configure_logging("info", "auto", out)
    get_logger("area").info("x")
    assert json.loads(out.getvalue())["event"] == "x"


def test_console_events_are_readable(out):
    configure_logging("info", "console", out)
    get_logger("area").info("it happened", count=3)
    assert "it happened" in out.getvalue()
    assert "count=3" in out.getvalue()
