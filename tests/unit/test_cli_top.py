"""`onelog top` in a real terminal, and what it knows without one."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from rich.console import Console

from onelog.cli.top.board import Board
from onelog.cli.top.screen import picture
from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog
from tests.conformance.test_serve import command, environment
from tests.support.forks import run_onelog
from tests.support.terminals import Terminal


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Onelog(tmp_path_factory.mktemp("server")).start()
    yield server
    assert server.stop() == 0
    assert not server.errors()


@pytest.fixture
def busy(server):
    """A publisher that goes on, and a session that is behind."""
    over = threading.Event()
    sleeper = paho.Client(
        paho.CallbackAPIVersion.VERSION2, client_id="sleeper", clean_session=False
    )
    subscribed = threading.Event()
    sleeper.on_connect = lambda *_about: sleeper.subscribe("busy/#", 1)
    sleeper.on_subscribe = lambda *_about: subscribed.set()
    sleeper.connect("127.0.0.1", server.ports["mqtt"])
    sleeper.loop_start()
    assert subscribed.wait(DEADLINE_S)
    sleeper.disconnect()
    sleeper.loop_stop()

    def publish() -> None:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="talker")
        client.connect("127.0.0.1", server.ports["mqtt"])
        client.loop_start()
        number = 0
        while not over.wait(0.02):
            number += 1
            client.publish("busy/much" if number % 4 else "busy/little\x1b[31m", b"x", 1)
        client.disconnect()
        client.loop_stop()

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    yield server
    over.set()
    thread.join()


def test_the_live_view_shows_rates_topics_lag_and_disk_and_obeys_keys(busy):
    words = command("top", "--interval", "0.5")
    with Terminal(words, busy.folder, environment()) as terminal:
        text = terminal.wait(
            lambda text: "busy/much" in text and "mqtt/sleeper" in text and "free of" in text,
            "rates come as events, the rest is asked for",
        )
        lines = text.splitlines()
        assert lines[0].startswith("OneLog ")
        assert "published" in lines[1]
        assert "fsync" in lines[1]
        assert any(line.startswith("mqtt ") for line in lines)
        assert "cursor (by lag)" in text
        assert r"busy/little\x1b[31m" in text
        assert text.index("busy/much") < text.index("busy/little")
        assert len(lines) == 24
        assert "quit" in lines[23]
        terminal.type("t")
        terminal.wait(lambda text: "topic (by topic)" in text, "t sorts the topics otherwise")
        terminal.type("s")
        terminal.wait(lambda text: "cursor (by pending)" in text, "s sorts the cursors otherwise")
        terminal.type("\x1b[A\x1bOB")  # arrows are no keys
        terminal.resize(140, 40)
        terminal.wait(
            lambda text: (
                "quit" in text
                and len(text.rstrip().splitlines()) == 40
                and any("cursor (by" in line and "topic (by" in line for line in text.splitlines())
            ),
            "on a wide screen both tables stand side by side",
        )
        terminal.type("p")
        terminal.wait(lambda text: "paused" in text, "p pauses")
        terminal.type("q")
        assert terminal.end() == 0
    assert b"\x1b[?1049l" in terminal.heard  # the screen of before is back
    assert b"\x1b[31m\x1b" not in terminal.heard.replace(b"\x1b[31m\x1b[0m", b"")


def test_ctrl_c_ends_the_view_and_gives_the_terminal_back(server):
    with Terminal(command("top"), server.folder, environment()) as terminal:
        terminal.wait(lambda text: "published" in text, "the view is there")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert b"\x1b[?1049l" in terminal.heard


def test_the_only_picture_of_a_terminal_has_everything(busy):
    words = command("top", "--interval", "0.3", "--count", "1")
    with Terminal(words, busy.folder, environment()) as terminal:
        assert terminal.end() == 0
        shown = terminal.heard.decode(errors="replace")
        assert "free of" in shown
        assert "mqtt/sleeper" in shown


def test_a_watched_list_redraws_the_screen(server):
    words = command("stream", "list", "--watch", "0.3")
    with Terminal(words, server.folder, environment()) as terminal:
        terminal.wait(lambda text: "every 0.3 s" in text and "main" in text, "the list is there")
        terminal.type("\x03")
        assert terminal.end() == 130


def test_without_a_terminal_it_prints_one_picture_or_json(server):
    def ran(*words: str) -> str:
        done = run_onelog("top", *words, folder=server.folder, environment=environment())
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode()

    assert "published" in ran("--interval", "0.3")
    lines = ran("--interval", "0.3", "--count", "2", "--json").splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["ok", "ok"]


def test_without_a_server_it_ends_at_once_with_3(tmp_path: Path):
    words = ("top", "--set", "listeners.admin.port=1")
    done = run_onelog(*words, folder=tmp_path, environment=environment())
    assert done.returncode == 3
    assert b"no OneLog server answers" in done.stderr


# -- the board, without anything around it


def rates(published: float) -> dict:
    return {
        "time_ms": 1,
        "totals": {"protocols": {"mqtt": {"connections": 2}}},
        "rates": {
            "published_messages": published,
            "syncs": 1.0,
            "protocols": {
                "mqtt": {
                    "received_messages": published,
                    "sent_messages": None,
                    "received_bytes": 10.0,
                    "sent_bytes": 1e9,
                }
            },
        },
    }


def drawn(board: Board, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(picture(board, width, height))
    return captured.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60)])
def test_the_picture_fits_its_screen_however_much_there_is(width, height):
    board = Board(interval_s=1.0, url="http://x")
    for number in range(300):
        board.event("message", {"topic": f"t/{number}" + "y" * number})
    board.event("rates", rates(300.0))
    board.event(
        "alarms",
        {
            "status": "degraded",
            "alarms": [{"kind": "k", "place": "p\x1b", "error": "e" * 300} for _ in range(9)],
        },
    )
    board.cursors = [
        {"name": "c" * 90, "kind": "queue", "lag": number, "pending": 0, "connected": 1,
         "filter": "f" * 90}
        for number in range(100)
    ]  # fmt: skip
    board.trouble = "z" * 300
    lines = drawn(board, width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)


def test_rates_of_topics_are_scaled_when_only_a_sample_came():
    board = Board(interval_s=1.0, url="x")
    for _ in range(75):
        board.event("message", {"topic": "much"})
    board.event("skipped", {"offsets": 900})
    for _ in range(25):
        board.event("message", {"topic": "little"})
    board.event("rates", rates(1000.0))
    assert board.topics() == [("much", 750.0), ("little", 250.0)]
    assert board.sampled
    board.press("t")
    assert board.topics() == [("little", 250.0), ("much", 750.0)]
