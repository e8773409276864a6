"""Commands over the admin API as a person meets them: a real server, and every kind of trouble."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO

import confluent_kafka
import paho.mqtt.client as paho
import pika
import pytest

from onelog.__main__ import _run_offline
from onelog.base.errors import Unavailable
from onelog.cli import failures, main, run
from onelog.cli.api.showing import ListShown, show_list
from onelog.cli.api.table import COMMANDS
from onelog.cli.saved_logins import logins_file
from onelog.cli.tables import columns
from onelog.pipelines import Progress, State, Status
from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog
from tests.conformance.test_serve import command, environment
from tests.unit.test_security_cli import no_server

HOSTILE = "evil/\x1b]0;owned\x07\x9b31m/x"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Onelog(tmp_path_factory.mktemp("server")).start()
    yield server
    assert server.stop() == 0
    assert not server.errors()


@pytest.fixture
def here(server, monkeypatch, tmp_path):
    """The folder of the server, whose configuration and data are found by themselves."""
    monkeypatch.chdir(server.folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    for name in ("ONELOG_URL", "ONELOG_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return server


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def rows(self) -> list[dict]:
        return json.loads(self.out)["items"]


@pytest.fixture
def onelog(here, capsys):
    """Run a command in this process; what came of it."""

    def ran(*words: str) -> Ran:
        capsys.readouterr()
        code = run(list(words), no_server, _run_offline)
        return Ran(code, *capsys.readouterr())

    return ran


@pytest.fixture
def publish(onelog):
    def published(topic: str, *values: str) -> None:
        for value in values:
            assert onelog("message", "publish", topic, value).code == 0

    return published


@contextlib.contextmanager
def mqtt(server, client_id: str, **options):
    """A client of MQTT that is connected."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, **options)
    ready = threading.Event()
    client.on_connect = lambda *_about: ready.set()
    client.connect("127.0.0.1", server.ports["mqtt"])
    client.loop_start()
    assert ready.wait(DEADLINE_S)
    yield client
    client.disconnect()
    client.loop_stop()


# -- what there is


def test_every_list_runs_and_is_a_table_for_people_and_one_document_for_programs(onelog):
    given = {
        "partition list": ["main"],
        "segment list": ["main", "0"],
        "stream tier": ["main"],
    }
    for row in COMMANDS:
        if row.is_list or row.words in ("view list", "user list", "token list", "acl list"):
            words = [*row.words.split(), *given.get(row.words, [])]
            assert onelog(*words).code == 0, words
            assert isinstance(onelog(*words, "--json").rows, list), words


def test_the_whole_at_a_glance(onelog):
    shown = onelog("overview")
    assert "server.version" in shown.out
    assert json.loads(onelog("overview", "--json").out)["status"] == "ok"
    assert "127.0.0.1" in onelog("listener", "list").out
    assert onelog("node", "list", "--json").rows[0]["here"] is True
    assert set(json.loads(onelog("cluster", "status", "--json").out)) > {"mode", "totals"}
    alone = onelog("cluster", "status").out
    assert "on its own" in alone
    assert "totals" not in alone, "a node on its own has no replicas to count"
    assert "mqtt" in onelog("info").out
    assert onelog("status").code == 0
    assert json.loads(onelog("status", "--json").out)["info"]["pid"]
    assert "role" in onelog("whoami").out


def test_an_overview_has_rates_though_nobody_asked_before(onelog, publish):
    publish("glance/rate", "one")
    rates = json.loads(onelog("overview", "--json").out)["rates"]
    assert isinstance(rates["published_messages"], float)
    assert isinstance(rates["protocols"]["mqtt"]["received_messages"], float)


def test_streams_partitions_and_segments(onelog):
    assert onelog("stream", "create", "plant", "--capture", "plant/#").code == 0
    rows = {row["name"]: row for row in onelog("stream", "list", "--json").rows}
    assert rows["plant"]["captures"] == ["plant/#"]
    assert [row["name"] for row in onelog("stream", "list", "--filter", "LAN", "--json").rows] == [
        "plant"
    ]
    assert len(onelog("stream", "list", "--internal", "--json").rows) > len(rows)
    onelog("message", "publish", "plant/a", "one")
    ends = [row["end_offset"] for row in onelog("partition", "list", "plant", "--json").rows]
    assert sum(ends) == 1
    number = str(ends.index(1))
    assert "segment" not in onelog("segment", "list", "plant", number).err
    said = onelog("partition", "trim", "plant", number, "--before", "1").out
    assert said == f"partition {number} of plant begins at offset 1\n"
    assert onelog("stream", "delete", "plant").code == 0
    gone = onelog("partition", "list", "plant")
    assert (gone.code, gone.out) == (4, "")
    assert "there is no stream 'plant'" in gone.err


def test_topics_and_messages(onelog, publish):
    publish("look/a", "one", "two")
    publish("look/b", '{"t": 1}')
    assert {row["topic"] for row in onelog("topic", "list", "look/#", "--json").rows} == {
        "look/a", "look/b",
    }  # fmt: skip
    assert "two" in onelog("topic", "list", "look/#", "--last").out
    assert "last" not in onelog("topic", "list", "look/#").out, "columns that would be empty"
    assert [row["name"] for row in onelog("topic", "tree", "look", "--json").rows] == ["a", "b"]
    assert "look/a" in onelog("topic", "show", "look/a").out
    newest = onelog("message", "peek", "look/a", "--json").rows
    assert [row["value_text"] for row in newest] == ["two", "one"]
    first = onelog(
        "message", "peek", "look/a", "--start", "earliest", "--limit", "1", "--json"
    ).rows
    assert [row["value_text"] for row in first] == ["one"]
    since = onelog("message", "peek", "look/a", "--start", "time", "--time", "2026-01-01T00:00:00Z",
                   "--json").rows  # fmt: skip
    assert [row["value_text"] for row in since] == ["one", "two"]
    where = ("--stream", first[0]["stream"], "--partition", str(first[0]["partition"]))
    at = onelog("message", "peek", "look/a", "--start", "offset", *where, "--offset",
                str(newest[0]["offset"]), "--json").rows  # fmt: skip
    assert [row["value_text"] for row in at] == ["two"]
    said = onelog("message", "publish", "look/a", "x", "--header", "unit=celsius", "--key", "k",
                  "--content-type", "text/plain", "--retain", "--json")  # fmt: skip
    assert json.loads(said.out)["stream"]
    (row,) = onelog("message", "peek", "look/a", "--limit", "1", "--json").rows
    assert row["key_text"] == "k"
    assert {"unit": "celsius"}.items() <= {x["name"]: x["text"] for x in row["headers"]}.items()
    assert [row["value_text"] for row in onelog("retained", "list", "look/#", "--json").rows] == [
        "x"
    ]


def test_connections_sessions_and_wills(onelog, here):
    with mqtt(here, "probe-1") as client:
        client.subscribe("x/#")
        (row,) = onelog(
            "connection", "list", "--protocol", "mqtt", "--filter", "PROBE", "--json"
        ).rows
        assert "probe-1" in onelog("connection", "show", row["id"]).out
        assert onelog("session", "list", "--filter", "probe", "--json").rows[0]["attached"]
        gone = threading.Event()
        client.on_disconnect = lambda *_about: gone.set()
        said = onelog("connection", "kick", row["id"], "--reason", "maintenance")
        assert (said.code, said.out) == (0, "asked 1 connections to close\n")
        assert gone.wait(DEADLINE_S)
    again = onelog("connection", "kick", "mqtt-nobody:1")
    assert again.code == 4
    with mqtt(here, "keeper", clean_session=False) as client:
        client.subscribe("keep/#", 1)
    deadline = time.monotonic() + DEADLINE_S
    while onelog("session", "end", "keeper").code != 0:
        assert time.monotonic() < deadline
    assert "there are no sessions" in onelog("session", "list", "--filter", "keeper").out


def test_groups_of_kafka(onelog, here, publish):
    publish("orders", "1", "2")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{here.ports['kafka']}",
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    message = consumer.poll(DEADLINE_S)
    assert message is not None
    consumer.commit(message=message, asynchronous=False)
    busy = onelog("group", "seek", "billing", "orders", "earliest")
    assert busy.code == 1
    consumer.close()
    (row,) = onelog("group", "list", "--filter", "bill", "--json").rows
    assert row["lag"] == 1
    assert "orders" in onelog("group", "show", "billing").out
    assert onelog("group", "seek", "billing", "orders", "earliest").out == (
        "group billing is 2 records behind\n"
    )
    assert onelog("group", "seek", "billing", "orders", "nowhere").code == 2
    assert onelog("group", "delete", "billing").out == "forgot group billing\n"
    assert onelog("group", "show", "billing").code == 4


def test_queues_of_amqp(onelog, here):
    url = f"amqp://guest:guest@127.0.0.1:{here.ports['amqp']}/"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare("jobs", durable=True)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "jobs", b"x")
    (row,) = onelog("queue", "list", "--filter", "jobs", "--json").rows
    assert row["ready"] == 3
    assert onelog("cursor", "show", row["cursor"]).code == 0
    assert onelog("cursor", "redrive", row["cursor"]).code in (0, 1)  # it gave up nothing
    assert onelog("queue", "purge", "jobs").out == "settled 3 messages of queue jobs\n"
    assert onelog("queue", "purge", "nobody").code == 4
    assert "amq.topic" in onelog("exchange", "list").out
    connection.close()
    assert onelog("queue", "delete", "jobs").out == "deleted queue jobs\n"


def test_exchanges_queues_and_bindings_are_made_and_removed(onelog):
    made = onelog("exchange", "create", "alarms", "--type", "topic", "--transient")
    assert made.out == "exchange alarms of type topic is there\n"
    assert onelog("exchange", "create", "alarms", "--type", "fanout").code == 1
    assert onelog("exchange", "create", "alarms", "--type", "round").code == 2
    made = onelog("queue", "create", "bells", "--argument", "x-message-ttl=60000")
    assert made.out == "queue bells is there; its topic is $q/bells\n"
    assert onelog("queue", "create", "bells", "--argument", "x-message-ttl").code == 2
    (row,) = onelog("exchange", "list", "--filter", "alarms", "--json").rows
    assert row["durable"] is False
    made = onelog("binding", "create", "alarms", "bells", "plant.#")
    assert made.out == "what alarms gets with the key plant.# goes to bells\n"
    assert onelog("exchange", "delete", "alarms", "--if-unused").code == 1
    assert onelog("binding", "delete", "alarms", "bells", "plant.#").code == 0
    assert onelog("binding", "delete", "alarms", "bells", "plant.#").code == 4
    assert onelog("exchange", "delete", "alarms", "--if-unused").code == 0
    assert onelog("queue", "delete", "bells").code == 0


def test_retained_messages_are_cleared_and_an_open_transaction_is_aborted(onelog, here):
    for topic in ("shown/1", "shown/2"):
        assert onelog("message", "publish", topic, "x", "--retain").code == 0
    cleared = "nothing is retained any more on 2 topics\n"
    assert onelog("retained", "clear", "shown/#").out == cleared
    assert onelog("retained", "list", "shown/#", "--json").rows == []
    assert onelog("retained", "clear").code == 2
    assert onelog("transaction", "abort", "nobody").code == 4
    place = f"127.0.0.1:{here.ports['kafka']}"
    producer = confluent_kafka.Producer({"bootstrap.servers": place, "transactional.id": "cli-pay"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce("paid", b"x")
    producer.flush(DEADLINE_S)
    assert "its producer is fenced" in onelog("transaction", "abort", "cli-pay").out
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(DEADLINE_S)


def test_the_log_level_changes_while_the_server_runs(onelog):
    assert onelog("config", "set", "--log-level", "debug").out == (
        "log.level is debug until the server ends\n"
    )
    (row,) = onelog("config", "list", "--filter", "log.level", "--json").rows
    assert (row["value"], row["source"]) == ("debug", "api")
    assert onelog("config", "set", "--log-level", "info").code == 0
    assert onelog("config", "set", "--log-level", "loud").code == 2


def test_bans_are_made_stricter_while_the_server_runs(onelog):
    assert onelog("config", "set", "--ban-failures", "3").out == (
        "security.bans.failures is 3 until the server ends\n"
    )
    assert onelog("config", "set", "--ban", "2h").code == 0
    assert onelog("config", "set", "--ban-delay", "1s").code == 0
    rows = onelog("config", "list", "--filter", "security.bans", "--json").rows
    found = {row["key"].rpartition(".")[2]: row["value"] for row in rows if row["hot"]}
    assert found == {"failures": 3, "ban_ms": 7_200_000, "delay_ms": 1000}
    for options in ((), ("--ban", "2h", "--ban-failures", "3")):
        refused = onelog("config", "set", *options)
        assert refused.code != 0
        assert "exactly one of" in refused.err


def test_events_are_followed_line_by_line(onelog, here):
    shown = onelog("event", "follow", "--interval", "250ms", "--count", "3")
    assert "rates" in shown.out
    lines = onelog("event", "follow", "--count", "2", "--json").out.splitlines()
    assert {json.loads(line)["event"] for line in lines} == {"rates", "alarms"}


# -- lists


@contextlib.contextmanager
def going_on(folder: Path, *words: str, **settings: str) -> Iterator[IO[bytes]]:
    """A command that ends by Ctrl-C only; what it prints."""
    # A suite that runs in the background ignores SIGINT, and so would its children.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command(*words),
        cwd=folder,
        env=environment() | settings,
        stdout=subprocess.PIPE,
        preexec_fn=heeds,  # noqa: PLW1509
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == failures.EXIT_INTERRUPTED
        finally:
            process.kill()


def test_a_list_that_is_watched_is_printed_again_and_again(here):
    with going_on(here.folder, "stream", "list", "--watch", "0.2", "--json") as printed:
        documents = [json.loads(printed.readline()) for _ in range(3)]
        assert all(row["items"] for row in documents)


def test_watch_without_a_number_has_its_usual_interval():
    assert main.with_interval(["stream", "list", "--watch", "--json"])[2:] == [
        "--watch=2", "--json",
    ]  # fmt: skip
    assert main.with_interval(["x", "--watch", "0.5"]) == ["x", "--watch", "0.5"]


def test_an_interval_or_limit_that_makes_no_sense_is_refused(onelog):
    assert onelog("stream", "list", "--watch", "0").code == 2
    assert onelog("stream", "list", "--limit", "0").code == 2


def test_names_that_steer_terminals_do_not_reach_one(onelog, publish):
    publish(HOSTILE, HOSTILE)
    for words in (
        ("topic", "list", "evil/#", "--last"),
        ("topic", "list", "evil/#", "--json"),
        ("topic", "show", HOSTILE),
        ("topic", "tree", "evil"),
        ("message", "peek", "evil/#"),
        ("message", "peek", "evil/#", "--json"),
        ("cursor", "show", HOSTILE),
        ("connection", "kick", HOSTILE),
        ("tail", HOSTILE + "/#/wrong"),
    ):
        ran = onelog(*words)
        assert "\x1b" not in ran.out + ran.err
        assert all(line.isprintable() for line in (ran.out + ran.err).splitlines()), words


# -- trouble


def test_without_a_server_the_error_says_what_to_do(onelog, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ran = onelog("stream", "list", "--set", "listeners.admin.port=1")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("onelog: no OneLog server answers at http://127.0.0.1:1")
    assert "onelog serve" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_wrong_url_is_one_clear_line(onelog, here):
    with socket.create_server(("127.0.0.1", 0)) as deaf:

        def hang_up() -> None:
            deaf.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        ran = onelog("stream", "list", "--url", f"http://127.0.0.1:{deaf.getsockname()[1]}")
    assert ran.code == 3
    ran = onelog("stream", "list", "--url", f"http://127.0.0.1:{here.ports['mqtt']}")
    assert ran.code == 3
    assert "Traceback" not in ran.err
    for wrong in ("ftp://x", "https://u:p@host", "http://host/path", "http://[", "http://h:99999"):
        assert onelog("stream", "list", "--url", wrong).code == 2, wrong


def test_a_name_that_does_not_exist_ends_with_4(onelog):
    for words in (
        ("stream", "show", "nobody"),
        ("cursor", "delete", "nobody"),
        ("view", "show", "nobody"),
        ("user", "show", "nobody"),
        ("session", "end", "nobody"),
    ):
        assert onelog(*words).code == 4, words


def test_a_reader_that_stops_reading_is_no_error(here):
    line = f"{sys.executable} -m onelog stream list --internal --json | head -c 20"
    done = subprocess.run(
        ["sh", "-c", line], cwd=here.folder, env=environment(), capture_output=True, check=False,
        timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.stderr == b""
    assert len(done.stdout) == 20
    line = f"({sys.executable} -m onelog stream list; echo $? >&2) | (exec <&-; sleep 5)"
    done = subprocess.run(
        ["sh", "-c", line], cwd=here.folder, env=environment(), capture_output=True, check=False,
        timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.stderr == b"0\n"


def test_output_that_finds_no_room_is_one_line(here):
    line = f"{sys.executable} -m onelog stream list > /dev/full"
    done = subprocess.run(["sh", "-c", line], cwd=here.folder, env=environment(), check=False,
                          capture_output=True, timeout=DEADLINE_S)  # fmt: skip
    assert (done.returncode, done.stderr.count(b"\n"), b"No space" in done.stderr) == (1, 1, True)


def test_a_hundred_thousand_rows_come_page_by_page_and_bounded(monkeypatch, capsys):
    alive = []

    def pages():
        for number in range(100):
            page = [{"name": f"row-{number}-{row}", "n": row} for row in range(1000)]
            alive.append(number)
            yield page

    begun = time.monotonic()
    show_list(pages, columns("name n:count"), ListShown())
    assert len(capsys.readouterr().out.splitlines()) == 100_001
    assert time.monotonic() - begun < 20
    show_list(pages, columns("name n:count"), ListShown(limit=1500))
    assert alive[100:] == [0, 1]


@pytest.mark.parametrize("came", [0, 1])
@pytest.mark.parametrize("watch", [None, 2.0])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_list_that_fails_at_once_prints_nothing_and_a_later_one_what_came(
    capsys, as_json, watch, came
):
    def pages():
        yield from [[{"name": "row"}]] * came
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        show_list(pages, columns("name"), ListShown(json=as_json, watch=watch))
    out = capsys.readouterr().out
    assert out.count("row") == came
    assert bool(out) == bool(came)
    assert "]}" not in out, "it looks whole"


def test_a_list_without_rows_is_a_whole_document(capsys):
    show_list(lambda: iter([[]]), columns("name"), ListShown(json=True))
    assert json.loads(capsys.readouterr().out) == {"items": []}


# -- who asks


@pytest.fixture
def guarded(tmp_path, monkeypatch):
    """A server with an administrator and a viewer."""
    server = Onelog(tmp_path).start()
    try:
        server.user("alice", "pencil-1", "--administrator")
        server.user("bob", "crayon-1")
        server.command("user", "role", "bob", "viewer")
        yield server
    finally:
        assert server.stop() == 0


def test_roles_logins_and_tokens(guarded, capsys, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
    monkeypatch.delenv("ONELOG_TOKEN", raising=False)
    url = f"http://127.0.0.1:{guarded.ports['admin']}"
    monkeypatch.setenv("ONELOG_URL", url)

    def ran(*words: str, given: str = "") -> Ran:
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        capsys.readouterr()
        try:
            code = run(list(words), no_server, _run_offline)
        except SystemExit as ended:  # `acl test`
            code = ended.code
        return Ran(code, *capsys.readouterr())

    # Nobody: a look is allowed on this machine, a change is not.
    assert ran("stream", "list").code == 0
    refused = ran("config", "set", "--log-level", "info")
    assert refused.code == 5
    assert "the role admin" in refused.err
    wrong = ran("login", "--user", "bob", "--password-stdin", given="pencil-1\n")
    assert wrong.code == 5
    # A viewer.
    said = ran("login", "--user", "bob", "--password-stdin", given="crayon-1\n")
    assert (said.code, f"logged in at {url} as bob, role viewer" in said.out) == (0, True)
    assert stat.S_IMODE(os.stat(logins_file()).st_mode) == 0o600  # noqa: PTH116
    assert json.loads(ran("whoami", "--json").out)["name"] == "bob"
    assert ran("user", "list").code == 5
    # An administrator: everything that works on the machine itself works from elsewhere.
    assert ran("login", "--user", "alice", "--password-stdin", given="pencil-1\n").code == 0
    assert "bob" in ran("user", "list").out
    assert ran("user", "disable", "bob").out == f"disabled user bob at {url}\n"
    assert ran("user", "add", "carol", "--password-stdin", given="an ink-pot\n").code == 0
    assert ran("user", "role", "carol", "operator").code == 0
    assert ran("user", "show", "carol").code == 0
    assert ran("user", "remove", "carol").code == 0
    assert ran("stream", "create", "plant", "--capture", "plant/#").code == 0
    assert ran("stream", "alter", "plant", "--partitions", "9").code == 0
    assert "9 partitions" in ran("stream", "show", "plant").out
    assert ran("stream", "delete", "plant").code == 0
    assert ran("view", "create", "v", "a/#").code == 0
    assert "a/#" in ran("view", "list").out
    assert ran("view", "delete", "v").code == 0
    assert ran("stream", "start-over", "main").code == 1
    assert ran("user", "groups", "bob", "ops").code == 0
    assert ran("acl", "status", "--json").out.startswith('{"open":true')
    assert ran("acl", "add", "allow", "group:ops", "publish", "topic:a/#", "--name", "r").code == 0
    assert (
        "rule r is now: deny user:x"
        in ran("acl", "replace", "r", "deny", "user:x,user:y", "publish,subscribe", "topic:b").out
    )
    assert "deny" in ran("acl", "list").out
    assert "user:y" in ran("acl", "show", "r").out
    assert ran("acl", "groups", "--json").rows[0]["users"] == ["bob"]
    assert ran("acl", "test", "user:x", "publish", "topic:b").out.startswith("no: rule r says so")
    assert ran("acl", "remove", "r", "nobody").code == 4
    assert ran("acl", "remove", "r").code == 0
    token = ran("token", "create", "ci", "--role", "viewer").out.strip()
    number = ran("token", "list", "--json").rows[0]["id"]
    # A token, from the variable and from a file.
    monkeypatch.setenv("ONELOG_TOKEN", token)
    assert json.loads(ran("whoami", "--json").out)["role"] == "viewer"
    monkeypatch.delenv("ONELOG_TOKEN")
    assert ran("token", "revoke", number).code == 0
    assert ran("login", "--token-stdin", given=f"{token}\n").code == 5
    assert ran("logout").out == f"logged out at {url}\n"
    assert ran("user", "list").code == 5
    assert "there is no login" in ran("logout").out


def test_where_the_server_runs_its_own_user_needs_no_login(guarded, monkeypatch, capsys):
    monkeypatch.chdir(guarded.folder)
    monkeypatch.delenv("ONELOG_URL", raising=False)
    assert run(["config", "set", "--log-level", "info"], no_server, _run_offline) == 0
    assert run(["whoami", "--json"], no_server, _run_offline) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["name"], told["role"], told["proof"]) == ("local", "admin", "token")


def test_pipelines_are_the_same_from_the_files_here_and_from_a_server_elsewhere(onelog, server):
    gold = Status(
        name="gold",
        file="gold.toml",
        master="local[2]",
        mode="continuous",
        pid=1,
        started="2026-01-01T00:00:00",
        phase="done",
        targets={"sums": Progress(batch=3, rows=40, lag=2)},
    )
    state = State(server.folder / "data" / "pipelines" / "gold")
    with state.held():
        state.save(gold)
    elsewhere = ("--url", f"http://127.0.0.1:{server.ports['admin']}")
    for words in (("list",), ("status", "gold"), ("status", "gold", "--json")):
        shown = onelog("pipeline", *words)
        assert (shown.code, "gold" in shown.out) == (0, True)
        assert onelog("pipeline", *words, *elsewhere).out == shown.out
    assert onelog("pipeline", "status", "none", *elsewhere).code == 4
    assert json.loads(onelog("login-ways", *elsewhere, "--json").out) == {"provider_url": None}


def test_the_trail_and_backups_of_a_server_elsewhere(guarded, capsys, monkeypatch, tmp_path):
    """This machine's own broker is not asked: there is none in this folder."""
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.delenv("ONELOG_URL", raising=False)
    token = guarded.command("token", "create", "there", "--role", "admin").strip()
    there = ("--url", f"http://127.0.0.1:{guarded.ports['admin']}")

    def ran(*words: str) -> Ran:
        capsys.readouterr()
        code = run([*words, *there], no_server, _run_offline)
        return Ran(code, *capsys.readouterr())

    monkeypatch.delenv("ONELOG_TOKEN", raising=False)
    assert ran("audit").code == 5
    monkeypatch.setenv("ONELOG_TOKEN", token)
    trail = ran("audit", "--action", "token", "--limit", "1", "--json")
    assert (trail.code, json.loads(trail.out)["action"]) == (0, "token.create")
    store = str(tmp_path / "store")
    made = ran("backup", "create", store, "--json")
    assert made.code == 0, made.err
    number = json.loads(made.out.splitlines()[-1])["id"]
    assert number in ran("backup", "status").out
    assert "done already" in ran("backup", "cancel", number).err
    assert "whole path" in ran("backup", "create", "store").err  # of which folder there?
    assert ran("backup", "list", store, "--json").rows[0]["id"] == number
    assert "1 backups are whole" in ran("backup", "verify", store).out
    assert ran("backup", "verify", store, "--id", "20000101T000000000Z-000000").code == 4
    pruned = ran("backup", "prune", store, "--dry-run", "--json")
    assert json.loads(pruned.out)["backups"] == []
    assert "stored-backup.verify" in ran("audit", "--action", "stored-backup").out


def test_what_goes_on_asks_a_server_elsewhere_again_and_again(guarded, monkeypatch, tmp_path):
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    monkeypatch.chdir(empty)
    token = guarded.command("token", "create", "first", "--role", "admin").strip()
    url = f"http://127.0.0.1:{guarded.ports['admin']}"
    there = {"ONELOG_TOKEN": token, "ONELOG_URL": url}
    for name, value in there.items():
        monkeypatch.setenv(name, value)

    def ran(*words: str) -> int:
        return run(list(words), no_server, _run_offline)

    assert ran("acl", "add", "allow", "everyone", "all", "topic:#") == 0
    store = str(tmp_path / "store")
    assert ran("backup", "create", store) == 0
    for words in (("acl", "list"), ("backup", "list", store)):
        with going_on(empty, *words, "--watch", "0.2", "--json", **there) as printed:
            shown = [json.loads(printed.readline())["items"] for _ in range(2)]
            assert [len(rows) for rows in shown] == [1, 1], words
            if words[0] == "acl":  # what changes meanwhile is seen
                assert ran("acl", "add", "allow", "everyone", "all", "cursor:*") == 0
                lengths = (len(json.loads(row)["items"]) for row in printed)
                assert 2 in lengths
    choice = ("--action", "token", "--limit", "1", "--json")
    with going_on(empty, "audit", "--follow", *choice, **there) as printed:
        assert json.loads(printed.readline())["action"] == "token.create"
        guarded.command("token", "create", "second", "--role", "viewer")
        event = json.loads(printed.readline())
        assert (event["action"], "second" in json.dumps(event)) == ("token.create", True)


def test_a_secret_does_not_cross_a_network_in_clear(here, onelog, monkeypatch):
    monkeypatch.setenv("ONELOG_TOKEN", "olt_x")
    ran = onelog("stream", "list", "--url", "http://broker.example:8080")
    assert ran.code == 2
    assert "has no TLS" in ran.err


def test_a_file_of_logins_that_others_can_read_is_refused(onelog, here):
    logins_file().parent.mkdir(parents=True)
    logins_file().write_text("{}")
    logins_file().chmod(0o644)
    ran = onelog("stream", "list", "--url", f"http://127.0.0.1:{here.ports['admin']}")
    assert ran.code == 2
    assert "chmod 600" in ran.err
