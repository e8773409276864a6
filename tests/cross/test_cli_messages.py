"""`onelog pub|sub|tail|replay` as people run them, against a real server, by every protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import confluent_kafka
import pytest
import trustme

from onelog.base.errors import InvalidRequest
from onelog.cli import run
from onelog.cli.talk.kafka import murmur2
from onelog.cli.talk.messages import from_json
from tests.conformance.mqtt_brokers import DEADLINE_S, Onelog, environment
from tests.cross.clients import Said
from tests.support.forks import run_onelog
from tests.support.listening import write_tls_files

VIAS = ("mqtt", "kafka", "amqp")
each_via = pytest.mark.parametrize("via", VIAS)


class Cli:
    """The command, in a folder of its own, with the ports of a server."""

    def __init__(self, ports: dict[str, int], folder: Any) -> None:
        self.ports = ports
        self.folder = folder

    def chosen(self, via: str) -> list[str]:
        return ["--via", via, "--port", str(self.ports[via])] if via else []

    def start(
        self, *arguments: str, via: str = "", out: Any = subprocess.PIPE, **options: Any
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "onelog", *arguments, *self.chosen(via)],
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.PIPE,
            **options,
        )

    def run(self, *arguments: str, via: str = "", given: bytes = b"", code: int = 0) -> bytes:
        done = run_onelog(
            *arguments,
            *self.chosen(via),
            folder=self.folder,
            environment=environment(),
            given=given,
            timeout_s=DEADLINE_S,
        )
        assert done.returncode == code, done.stderr.decode()
        return done.stdout if code == 0 else done.stderr

    def rows(self, *arguments: str, via: str) -> list[dict[str, Any]]:
        out = self.run(*arguments, "--json", via=via)
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def cli(server, tmp_path) -> Cli:
    return Cli(server.ports, tmp_path)


@each_via
def test_what_is_published_is_replayed_by_every_protocol_with_all_it_says(cli, via):
    topic = f"cli/all/{via}"
    cli.run(
        "pub", topic, "hello", "-H", "a=1", "-H", "b=x=y", "--content-type", "text/plain",
        "--reply-to", "answers/here", "--correlation", "17", "--expiry", "1h", "--qos", "2",
        via=via,
    )  # fmt: skip
    readers = [cli.start("replay", topic, "--json", via=reader) for reader in VIAS]
    for reader, process in zip(VIAS, readers, strict=True):
        row = json.loads(process.communicate(timeout=DEADLINE_S)[0])
        if reader == "amqp":  # a lifetime: from when on, AMQP does not say
            assert 3_540_000 < row.pop("expires_in_ms") <= 3_600_000
            assert "expires_ms" not in row
        else:
            assert abs(row.pop("expires_ms") - (time.time() + 3600) * 1000) < 60_000
        assert row["topic"] == topic
        assert row["payload"] == "hello"
        assert row["headers"] == [["a", "1"], ["b", "x=y"]]
        assert row["content_type"] == "text/plain"
        assert row["reply_to"] == "answers/here"
        assert row["correlation"] == "17"
        assert row["qos"] in (1, 2)


def test_the_key_and_the_place_are_told_by_kafka(cli):
    cli.run("pub", "cli/keyed", "hello", "-k", "order 7", via="kafka")
    (row,) = cli.rows("replay", "cli/keyed", via="kafka")
    assert (row["key"], row["offset"]) == ("order 7", 0)
    cli.run("pub", "cli/keyed", "there", "--partition", "0", via="kafka")
    found = cli.rows("replay", "cli/keyed", via="kafka")
    assert [row["partition"] for row in found if row["payload"] == "there"] == [0]
    assert abs(row["timestamp_ms"] / 1000 - time.time()) < 60


def test_a_filter_tells_the_topic_of_what_kafka_made_and_the_pipe_of_the_guide_copies_it(cli):
    cli.run("pub", "cli/made/d1", "21", "-k", "order 7", via="kafka")
    cli.run("pub", "cli/made/d2", "22", via="kafka")
    cli.run("pub", "cli/made/d3", "23", via="mqtt")
    found = cli.rows("replay", "cli/made/+", via="kafka")
    assert {row["topic"]: row.get("key") for row in found} == {
        "cli/made/d1": "order 7",
        "cli/made/d2": None,
        "cli/made/d3": "cli/made/d3",
    }
    text = cli.run("replay", "cli/made/+", "--json", via="kafka")
    cli.run("pub", "--json", via="amqp", given=text.replace(b'"cli/made', b'"cli/copy'))
    assert cli.run("replay", "cli/copy/d1", via="mqtt") == b"21\n"


def test_a_kafka_consumer_of_a_view_sees_the_topic_in_a_header(cli):
    cli.run("pub", "cli/seen/d1", "21", "-k", "order 7", via="kafka")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{cli.ports['kafka']}",
            "group.id": "seen",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe(["cli.seen._x2B_"])
        found = consumer.poll(DEADLINE_S)
        assert (found.value(), found.key(), found.headers()) == (
            b"21", b"order 7", [("~t", b"cli/seen/d1"), ("~q", b"1")],
        )  # fmt: skip
    finally:
        consumer.close()


@each_via
def test_each_line_of_the_input_is_a_message(cli, via):
    topic = f"cli/lines/{via}"
    lines = b"".join(b"line %d\n" % number for number in range(300))
    cli.run("pub", topic, "--lines", via=via, given=lines)
    assert cli.run("replay", topic, via="kafka") == lines


@each_via
def test_the_whole_input_or_a_file_is_one_message(cli, via):
    topic = f"cli/whole/{via}"
    data = bytes(range(256)) * 1000
    (cli.folder / "data").write_bytes(data)
    cli.run("pub", topic, via=via, given=data)
    cli.run("pub", topic, "--file", "data", via=via)
    assert cli.run("replay", topic, via=via) == data + b"\n" + data + b"\n"


def test_json_goes_from_one_protocol_to_the_next_and_stays_what_it_is(cli):
    rows = [
        {"topic": "cli/pipe/a", "payload": {"base64": "/wA="}, "headers": [["h", "1"]],
         "content_type": "x/y", "correlation": {"base64": "/w=="}, "qos": 1},
        {"topic": "cli/pipe/b", "payload": "text", "qos": 1},
    ]  # fmt: skip
    text = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    for number, via in enumerate(VIAS):
        cli.run("pub", "--json", via=via, given=text)
        reader = VIAS[(number + 1) % 3]
        text = cli.run("replay", "cli/pipe/#", "--json", via=reader)
        found = sorted(map(json.loads, text.splitlines()), key=lambda row: str(row["topic"]))
        found = [{name: row[name] for name in rows[0] if name in row} for row in found]
        assert found[:: number + 1] == rows
        text = b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_lifetime_read_by_amqp_is_not_a_time_that_moves_with_each_reading(cli):
    cli.run("pub", "cli/lives", "x", "--expiry", "10m", via="amqp")
    first, second = (cli.run("replay", "cli/lives", "--json", via="amqp") for _ in range(2))
    assert first == second
    assert 590_000 < json.loads(first)["expires_in_ms"] <= 600_000
    cli.run("pub", "--json", via="mqtt", given=first.replace(b"cli/lives", b"cli/lived"))
    (row,) = cli.rows("replay", "cli/lived", via="kafka")
    assert abs(row["expires_ms"] - row["timestamp_ms"] - 600_000) < 15_000


def test_no_payload_is_null(cli):
    cli.run("pub", "cli/null", "--null", "-k", "k", via="kafka")
    (row,) = cli.rows("replay", "cli/null", via="kafka")
    assert row["payload"] is None


@each_via
def test_a_subscriber_ends_after_so_many_messages(cli, clients, via):
    topic = f"cli/live/{via}"
    clients["mqtt5"].write(Said(b"before"), topic)
    process = cli.start("sub", topic, "--count", "2", "--timeout", "20", via=via)
    got = b""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    ends = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < ends:
        clients["mqtt5"].write(Said(b"live"), topic)  # until it is there and has two
        got += process.stdout.read() or b""
    got += process.stdout.read() or b""
    process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, got) == (0, b"live\nlive\n")


@each_via
def test_too_few_messages_in_time_are_a_failure_and_no_number_is_none(cli, clients, via):
    topic = f"cli/late/{via}"
    clients["mqtt5"].write(Said(b"before"), topic)
    errors = cli.run("sub", topic, "--count", "1", "--timeout", "0.3", via=via, code=1)
    assert errors == b"onelog: 0 of 1 messages came in time\n"
    assert cli.run("sub", topic, "--timeout", "0.3", via=via) == b""


@each_via
def test_history_begins_where_it_is_asked_to(cli, clients, via):
    topic = f"cli/from/{via}"
    for number in range(5):
        clients["mqtt5"].write(Said(b"%d" % number), topic)
    rows = cli.rows("replay", topic, via="kafka")
    at, time_ms = rows[3]["offset"], rows[4]["timestamp_ms"]
    assert cli.run("replay", topic, "--from", f"offset:{at}", via=via) == b"3\n4\n"
    late = cli.run("replay", topic, "--from", str(time_ms), via=via)
    assert late.endswith(b"4\n")
    assert b"0\n" not in late or rows[0]["timestamp_ms"] == time_ms
    assert cli.run("replay", topic, "--from", "2099-01-01T00:00:00Z", via=via) == b""
    assert cli.run("sub", topic, "--from", "earliest", "-n", "2", via=via) == b"0\n1\n"


@each_via
def test_a_filter_shows_every_topic_that_matches(cli, clients, via):
    for number in range(3):
        clients["mqtt5"].write(Said(b"%d" % number), f"cli/filter/{via}/d{number}/t")
    found = cli.rows("replay", f"cli/filter/{via}/+/t", via=via)
    assert {(row["topic"], row["payload"]) for row in found} == {
        (f"cli/filter/{via}/d{number}/t", str(number)) for number in range(3)
    }


@each_via
def test_tail_shows_topic_time_and_headers(cli, clients, via):
    process = cli.start("tail", "cli/tail/#", "--count", "1", via=via)
    said = Said(b"hello", [("h", b"1")], {"content_type": "text/plain"})
    while process.poll() is None:
        clients["mqtt5"].write(said, "cli/tail/x")
    out, _errors = process.communicate(timeout=DEADLINE_S)
    assert b"  cli/tail/x  hello  [" in out
    assert b"content_type='text/plain'" in out
    assert out.endswith(b", h: 1]\n")


def test_a_queue_is_read_and_acknowledged(cli, channel):
    channel.queue_declare("cli-jobs")
    cli.run("pub", "cli-jobs", "one", "--exchange", "", via="amqp")
    cli.run("pub", "$q/cli-jobs", "two", via="amqp")
    cli.run("pub", "$q/cli-jobs", "three", via="mqtt")
    out = cli.run("sub", "--queue", "cli-jobs", "--count", "2", via="amqp")
    assert out == b"one\ntwo\n"
    assert channel.queue_declare("cli-jobs", passive=True).method.message_count == 1
    channel.queue_delete("cli-jobs")


def test_an_exchange_is_written_and_read(cli, channel):
    channel.exchange_declare("cli-logs", "topic")
    cli.run("pub", "a.b", "no queue yet", "--exchange", "cli-logs", via="amqp", code=4)
    assert cli.run("replay", "a.*", "--exchange", "cli-logs", via="amqp") == b"no queue yet\n"
    (row,) = cli.rows("replay", "$x/cli-logs/a/+", via="amqp")
    assert (row["topic"], row["exchange"]) == ("$x/cli-logs/a/b", "cli-logs")


def test_retained_messages_come_first_to_a_subscriber_and_not_to_tail(cli):
    cli.run("pub", "cli/kept", "kept", "--retain", via="mqtt")
    (row,) = cli.rows("sub", "cli/kept", "-n", "1", via="mqtt")
    assert row["retain"] is True
    assert cli.run("tail", "cli/kept", "--timeout", "0.3", via="mqtt") == b""


@pytest.fixture(scope="module")
def ann(server) -> str:
    server.user("cli-ann", "the secret")
    return "cli-ann"


@each_via
def test_a_user_logs_in_with_the_password_of_a_file(ann, cli, via):
    (cli.folder / "good").write_text("the secret\n")
    (cli.folder / "bad").write_text("another\n")
    login = ("--user", ann, "--password-file")
    cli.run("pub", f"cli/user/{via}", "hello", *login, "good", via=via)
    errors = cli.run("pub", f"cli/user/{via}", "hello", *login, "bad", via=via, code=5)
    assert b"does not let cli-ann in" in errors
    assert errors.count(b"\n") == 1


def test_what_is_not_allowed_is_one_line_and_exit_code_5(server, cli):
    rules = (
        "allow everyone all topic:#",
        "allow everyone all cursor:*",
        "deny everyone all topic:no",
    )
    try:
        for number, rule in enumerate(rules):
            server.command("acl", "add", *rule.split(), "--name", f"cli-{number}")
        for via in ("mqtt", "kafka", "amqp"):
            assert cli.run("pub", "no", "1", via=via, code=5).count(b"\n") == 1
            assert cli.run("replay", "no", via=via, code=5).count(b"\n") == 1
    finally:
        for number in range(len(rules)):
            server.command("acl", "remove", f"cli-{number}")


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure")
    write_tls_files(folder, trustme.CA())
    listeners = tuple(f"{via}_tls" for via in VIAS)
    settings = []
    for name in listeners:
        settings += [
            f"listeners.{name}.enabled=true",
            f'listeners.{name}.tls.cert_file="{folder}/cert.pem"',
            f'listeners.{name}.tls.key_file="{folder}/key.pem"',
        ]
    found = Onelog(folder, *settings, listeners=listeners).start()
    yield found
    assert found.stop() == 0


@each_via
def test_tls_is_spoken_with_those_who_can_be_trusted(secure, tmp_path, via):
    ports = {name: secure.ports[f"{name}_tls"] for name in VIAS}
    cli = Cli(ports, tmp_path)
    trust = ("--tls", "--ca-file", str(secure.folder / "ca.pem"))
    cli.run("pub", "cli/tls", "hello", *trust, via=via)
    assert b"hello\n" in cli.run("replay", "cli/tls", *trust, via=via)
    code = 5 if via == "kafka" else 3
    errors = cli.run("pub", "cli/tls", "hello", "--tls", via=via, code=code)
    assert b"does not offer TLS that can be trusted" in errors


@each_via
def test_a_broker_that_is_not_there_is_one_line(cli, via):
    cli.ports = dict.fromkeys(VIAS, 1)
    errors = cli.run("pub", "a", "b", via=via, code=3)
    assert errors.startswith(b"onelog: nothing answers at 127.0.0.1:1 (")
    assert errors.count(b"\n") == 1


@each_via
def test_a_server_of_something_else_is_one_line(server, cli, via):
    other = {"mqtt": "admin", "kafka": "admin", "amqp": "kafka"}[via]
    cli.ports = {via: server.ports[other]}
    errors = cli.run("pub", "a", "b", via=via, code=1)
    assert errors.startswith(b"onelog: ")
    assert errors.count(b"\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pub", "a/+", "x"), "has a wildcard"),
        (("pub", "a", "x", "--qos", "3"), "--qos: qos is 0 to 2, not 3"),
        (("pub", "a", "x", "--priority", "256"), "--priority: priority is 0 to 255, not 256"),
        (("pub", "a", "x", "-H", "novalue"), "write NAME=VALUE"),
        (("pub", "a", "x", "--lines"), "exclude each other"),
        (("pub", "a", "x", "--expiry", "soon"), "--expiry soon"),
        (("pub", "a", "--file", "missing"), "missing: No such file"),
        (("pub",), "which topic?"),
        (("pub", "a", "x", "-k", "k"), "--key needs --via kafka"),
        (("pub", "a", "x", "-k", "k", "--via", "amqp"), "--key needs --via kafka"),
        (("pub", "a", "x", "--user", "ann"), "--user needs --password-file"),
        (("sub",), "which topic or filter?"),
        (("sub", "a/#/b"), "the # must be the whole last level"),
        (("sub", "a", "--count", "0"), "--count 0"),
        (("sub", "a", "--queue", "q"), "--queue needs --via amqp"),
        (("replay", "a", "--from", "yesterday"), "is not a position to begin at"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    monkeypatch, tmp_path, capsys, arguments, said
):
    monkeypatch.chdir(tmp_path)
    assert run(arguments, no_server) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.startswith("onelog: ")
    assert errors.count("\n") == 1


def no_server(_loaded: Any, _on_ready: Any) -> None:
    raise AssertionError("the server was not asked for")


def test_keys_are_spread_as_kafka_s_own_clients_spread_them():
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert {key: murmur2(key) for key in known} == {
        key: number & 0x7FFF_FFFF for key, number in known.items()
    }


def test_what_a_protocol_has_no_word_for_is_refused(cli):
    assert b"clients may not publish to $SYS/x" in cli.run("pub", "$SYS/x", "x", via="mqtt", code=5)
    assert b"no queue takes 'none'" in cli.run("pub", "$q/none", "x", via="amqp", code=4)
    assert b"no such topic" in cli.run("sub", "cli/unknown", via="kafka", code=4)
    assert b"no queue 'none'" in cli.run("sub", "--queue", "none", via="amqp", code=4)


@pytest.mark.parametrize(
    "line", ['{"payload": 5}', '{"qos": 9}', "[]", "none", '{"headers": [["a"]]}', '{"key": {}}']
)
def test_json_that_is_none_is_refused_by_its_line(line):
    with pytest.raises(InvalidRequest, match="is not a message in JSON"):
        from_json(line.encode(), "a")


def test_what_is_too_long_for_a_protocol_is_one_line(cli):
    long = "x" * 300
    errors = cli.run("pub", "a", "x", "--content-type", long, via="amqp", code=1)
    assert b"is longer than AMQP's 255 bytes" in errors
    assert b"a name has at most 249" in cli.run("pub", long, "x", via="kafka", code=1)
    assert b"longer than 1024" in cli.run("pub", long * 4, "x", via="mqtt", code=2)


def test_ctrl_c_ends_a_subscriber_without_a_word(server, cli):
    before = server.metric("onelog_mqtt_subscriptions")
    # A suite that runs in the background ignores SIGINT, and so would its children.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = cli.start("tail", "cli/quiet", via="mqtt", preexec_fn=heeds)
    while server.metric("onelog_mqtt_subscriptions") == before:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, errors) == (130, b"", b"")


def test_who_stops_to_read_is_no_error(cli, clients):
    for _ in range(50):
        clients["mqtt5"].write(Said(b"x" * 10_000), "cli/pipe-broken")
    process = cli.start("replay", "cli/pipe-broken", via="kafka")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    process.stdout = None
    assert process.wait(DEADLINE_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.communicate()
