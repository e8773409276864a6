"""RabbitMQ's own command line against ours, and what only ours does: users, restarts, guards."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pika
import pytest

from tests.conformance.amqp_management_brokers import Api, managed_onelog
from tests.conformance.mqtt_brokers import Onelog, environment

LACKS_TOOL = "rabbitmqadmin is missing: run 'apt-get install rabbitmq-server' as root"
BOSS = "boss:of them all"
"""An administrator: who gives no name is none as soon as there is a user."""
EVERYTHING = dict.fromkeys(("configure", "write", "read"), ".*")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    found = managed_onelog(tmp_path_factory.mktemp("managed")).start()
    found.user(*BOSS.split(":"), "--administrator")
    yield found
    assert found.stop() == 0
    assert not found.errors()


@pytest.fixture
def api(server) -> Api:
    return Api(server, BOSS)


@pytest.fixture
def own(tmp_path) -> Iterator[Callable[..., Onelog]]:
    """Servers of one test."""
    made: list[Onelog] = []

    def start(*assignments: str) -> Onelog:
        made.append(managed_onelog(tmp_path, *assignments).start())
        return made[-1]

    yield start
    for found in made:
        found.stop()


# -- rabbitmqadmin


@pytest.fixture
def admin(server) -> Callable[..., str]:
    """Run rabbitmqadmin; what it printed."""
    tool = shutil.which("rabbitmqadmin")
    if tool is None:
        pytest.skip(LACKS_TOOL)

    def run(*words: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [tool, "-P", str(server.ports["amqp_management"]), "-f", "tsv", *words],
            input=stdin.encode(),
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode != 0) == fails, done
        return (done.stderr if fails else done.stdout).decode()

    return run


def rows(printed: str) -> list[list[str]]:
    """The rows of a table without its head."""
    return [line.split("\t") for line in printed.splitlines()[1:]]


def test_rabbitmqadmin_makes_uses_and_deletes_everything(admin, tmp_path):
    admin("declare", "vhost", "name=team")
    here = ("-V", "team")
    admin(*here, "declare", "exchange", "name=logs", "type=topic")
    admin(*here, "declare", "queue", "name=q", 'arguments={"x-max-length": 9}')
    admin(*here, "declare", "queue", "name=safe", "queue_type=quorum")
    admin(*here, "declare", "binding", "source=logs", "destination=q", "routing_key=a.#")
    said = admin(*here, "publish", "exchange=logs", "routing_key=a.b", "payload=hello")
    assert said.strip() == "Message published"
    said = admin(*here, "publish", "exchange=logs", "routing_key=nobody", "payload=x")
    assert said.strip() == "Message published but NOT routed"
    admin(*here, "publish", "routing_key=q", stdin="from a pipe")
    assert rows(admin(*here, "list", "queues", "name", "messages")) == [["q", "2"], ["safe", "0"]]
    got = rows(admin(*here, "get", "queue=q", "count=5"))
    assert [row[3] for row in got] == ["hello", "from a pipe"]
    file = tmp_path / "payload"
    admin(*here, "get", "queue=q", "ackmode=ack_requeue_false", f"payload_file={file}")
    assert file.read_text() == "hello"
    admin(*here, "purge", "queue", "name=q")
    assert rows(admin(*here, "list", "bindings", "source", "routing_key"))[-1] == ["logs", "a.#"]
    delete = ("delete", "binding", "source=logs", "destination_type=queue", "destination=q")
    admin(*here, *delete, "properties_key=a.%23")
    assert len(rows(admin(*here, "list", "bindings"))) == 2
    admin(*here, "delete", "queue", "name=q")
    admin(*here, "delete", "exchange", "name=logs")
    admin("delete", "vhost", "name=team")
    assert rows(admin("list", "vhosts", "name")) == [["/"]]


@pytest.mark.parametrize(
    "what",
    [
        "connections",
        "channels",
        "consumers",
        "exchanges",
        "queues",
        "bindings",
        "users",
        "vhosts",
        "permissions",
        "nodes",
        "parameters",
        "policies",
        "operator_policies",
        "vhost_limits",
    ],
)
def test_rabbitmqadmin_lists_with_every_depth(admin, server, what):
    url = f"amqp://guest:guest@127.0.0.1:{server.ports['amqp']}/%2F"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_consume(queue, lambda *_: None)
    Api(server, BOSS).do("PUT", "/users/ann", {"password": "secret-1", "tags": ""})
    empty = {"parameters", "policies", "operator_policies", "vhost_limits"}
    for depth in ("1", "2", "3"):
        printed = admin("-f", "long", "-d", depth, "list", what)
        assert ("No items" in printed) == (what in empty), printed
    assert json.loads(admin("-f", "raw_json", "list", what)) != [] or what in empty
    connection.close()


def test_rabbitmqadmin_moves_definitions(admin, tmp_path):
    file = tmp_path / "definitions.json"
    admin("declare", "vhost", "name=moved")
    admin("-V", "moved", "declare", "queue", "name=q", "durable=true")
    admin("-V", "moved", "declare", "binding", "source=amq.fanout", "destination=q")
    admin("export", str(file))
    assert "password_hash" in file.read_text()
    admin("delete", "vhost", "name=moved")
    admin("import", str(file))
    assert rows(admin("-V", "moved", "list", "queues", "name")) == [["q"]]
    assert ["amq.fanout", "q"] in rows(
        admin("-V", "moved", "list", "bindings", "source", "destination")
    )
    admin("delete", "vhost", "name=moved")


def test_rabbitmqadmin_is_told_what_is_wrong(admin):
    assert "Not found" in admin("delete", "queue", "name=none", fails=True)
    refused = admin("declare", "policy", "name=p", "pattern=x", 'definition={"a":1}', fails=True)
    assert "policies are not kept here" in refused
    assert "Access refused" in admin("-u", "ann", "-p", "wrong", "list", "queues", fails=True)


# -- users


def test_a_user_made_here_logs_in_everywhere_until_it_is_deleted(api, server):
    assert api.ask("PUT", "/users/carl", {"password": "the-first", "tags": ""}).status == 201
    url = f"amqp://carl:the-first@127.0.0.1:{server.ports['amqp']}/%2F"
    pika.BlockingConnection(pika.URLParameters(url)).close()
    assert Api(server, "carl:the-first").get("/whoami")["name"] == "carl"
    assert api.ask("PUT", "/users/carl", {"password": "the-second", "tags": ""}).status == 204
    assert Api(server, "carl:the-first").ask("GET", "/whoami").status == 401
    assert Api(server, "carl:the-second").ask("GET", "/whoami").status == 200
    api.do("PUT", "/permissions/%2F/carl", EVERYTHING)
    assert api.ask("PUT", "/permissions/%2F/carl", {**EVERYTHING, "write": "x$"}).status == 400
    less = {**EVERYTHING, "write": "^x"}
    try:
        assert api.ask("PUT", "/permissions/%2F/carl", less).status == 204
        shown = api.ask("GET", "/permissions/%2F/carl").body
        assert {name: shown[name] for name in less} == less
        assert Api(server, "carl:the-second").ask("GET", "/overview").status == 401
        last = api.ask("DELETE", "/permissions/%2F/carl")
        assert (last.status, "the last access rules" in last.body["reason"]) == (400, True)
    finally:  # the first rule closed everything that no rule allows
        listed = json.loads(server.command("acl", "list", "--json"))["items"]
        server.command("acl", "remove", *(row["id"] for row in listed))
    assert api.ask("DELETE", "/users/carl").status == 204
    refused = Api(server, "carl:the-second").ask("GET", "/whoami")
    assert (refused.status, refused.body["reason"]) == (401, "Login failed")
    assert refused.headers["www-authenticate"].startswith("Basic ")


def test_without_anonymous_peers_a_password_is_needed(own):
    server = own('security.anonymous="never"')
    server.user("ann", "secret-1")
    for user in (None, "guest:guest", "ann:wrong", "nobody:x"):
        assert Api(server, user).ask("GET", "/overview").status == 401
    assert Api(server, "ann:secret-1").ask("GET", "/overview").status == 200


@pytest.mark.parametrize("header", ["Basic %%%", "Basic YQ==", "Bearer x", "Basic", "Basic /w=="])
def test_a_login_that_cannot_be_read_lets_nobody_in(api, header):
    assert api.ask("GET", "/whoami", headers={"authorization": header}).status in (400, 401)


# -- what is kept


def test_virtual_hosts_queues_and_users_outlive_a_restart(own, tmp_path):
    server = own()
    api = Api(server)
    api.do("PUT", "/vhosts/team%2Fone", {"description": "ours", "tags": "a,b"})
    api.do("PUT", "/vhosts/empty")
    api.do("PUT", "/queues/team%2Fone/q", {"durable": True})
    api.do("PUT", "/queues/team%2Fone/gone", {"durable": False})
    assert api.publish("team%2Fone", "amq.default", "q", "kept")
    assert server.stop() == 0
    server.start()
    row = api.get("/vhosts/team%2Fone")
    assert (row["description"], row["tags"], row["messages"]) == ("ours", ["a", "b"], 1)
    assert api.get("/vhosts/empty")["tags"] == []
    assert [queue["name"] for queue in api.get("/queues")] == ["q"]
    assert api.take("team%2Fone", "q")[0]["payload"] == "kept"
    api.do("DELETE", "/vhosts/team%2Fone")
    server.kill()
    server.start()
    assert [host["name"] for host in api.get("/vhosts")] == ["/", "empty"]
    assert api.get("/queues") == []


def test_a_deleted_virtual_host_takes_its_connections_along(api, server):
    api.do("PUT", "/vhosts/short")
    url = f"amqp://guest:guest@127.0.0.1:{server.ports['amqp']}/short"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare("q", durable=True)
    api.do("DELETE", "/vhosts/short")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="vhost 'short' is down"):
        connection.process_data_events(10)
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="not found"):
        pika.BlockingConnection(pika.URLParameters(url))
    api.do("PUT", "/vhosts/short")
    assert api.get("/queues/short") == []
    api.do("DELETE", "/vhosts/short")


def test_a_virtual_host_that_comes_while_it_goes_is_whole_or_refused(api):
    """Deleted and made by many at once: what is there at the end works and is kept."""

    def change(number: int) -> int:
        if number % 2:
            return api.ask("DELETE", "/vhosts/busy").status
        status = api.ask("PUT", "/vhosts/busy").status
        api.ask("PUT", f"/queues/busy/q{number}", {"durable": True})
        return status

    with ThreadPoolExecutor(8) as threads:
        statuses = set(threads.map(change, range(60)))
    assert statuses <= {201, 204, 400, 404}
    api.do("PUT", "/vhosts/busy")
    api.do("PUT", "/queues/busy/last", {"durable": True})
    assert api.publish("busy", "amq.default", "last", "x")
    assert api.take("busy", "last")[0]["payload"] == "x"
    api.do("DELETE", "/vhosts/busy")


def test_virtual_hosts_of_the_configuration_stay(own):
    api = Api(own('amqp.vhosts="built"'))
    for name in ("%2F", "built"):
        answer = api.ask("DELETE", f"/vhosts/{name}")
        assert (answer.status, "cannot be deleted" in answer.body["reason"]) == (400, True)


# -- definitions

REFUSED: dict[str, dict[str, Any]] = {
    "a policy": {"policies": [{"name": "p"}]},
    "a parameter": {"parameters": [{"name": "p"}]},
    "a narrow permission": {"permissions": [{**EVERYTHING, "read": "^x"}]},
    "a queue in no virtual host": {"queues": [{"name": "q", "vhost": "no"}]},
    "a queue without a name": {"queues": [{"vhost": "/"}]},
    "an exchange of no type": {"exchanges": [{"name": "e", "vhost": "/", "type": "x"}]},
    "a binding to no kind": {
        "bindings": [{"source": "e", "vhost": "/", "destination": "q", "destination_type": "x"}]
    },
    "a virtual host with a long name": {"vhosts": [{"name": "x" * 300}]},
    "an argument that is null": {"queues": [{"name": "q", "vhost": "/", "arguments": {"a": None}}]},
    "queues that are no list": {"queues": {}},
    "users that are no objects": {"users": [1]},
}


@pytest.mark.parametrize("what", REFUSED)
def test_definitions_that_cannot_be_kept_are_refused_as_a_whole(api, what):
    body = {"vhosts": [{"name": "new"}], **REFUSED[what]}
    if what == "a virtual host with a long name":
        body["vhosts"] = [{"name": "new"}, *REFUSED[what]["vhosts"]]
    answer = api.ask("POST", "/definitions", body)
    assert (answer.status, answer.body["error"]) == (400, "bad_request")
    assert "new" not in [row["name"] for row in api.get("/vhosts")]


def test_users_with_only_a_hash_are_left_out_and_named_in_the_log(api, server):
    made = {
        "users": [
            {"name": "hashed", "password_hash": "abc"},
            {"name": "x", "password": "long enough"},
        ]
    }
    api.do("POST", "/definitions", made)
    assert Api(server, "x:long enough").ask("GET", "/whoami").status == 200
    assert api.ask("GET", "/users/hashed").status == 404
    assert '"hashed"' in (server.folder / "stderr").read_text()


def test_an_export_holds_no_secret(api):
    api.do("PUT", "/users/secretive", {"password": "very-secret", "tags": ""})
    text = json.dumps(api.get("/definitions"))
    assert '"secretive"' in text
    assert "very-secret" not in text
    assert "argon2id$" not in text


# -- bounds and guards


def test_a_body_that_is_too_large_is_refused(api):
    payload = "x" * (33 * 1024 * 1024)
    try:
        answer = api.ask("PUT", "/queues/%2F/q", {"arguments": {"a": payload}})
    except (BrokenPipeError, ConnectionResetError):
        return  # it was told before it had sent all
    assert (answer.status, "larger than" in answer.body["reason"]) == (400, True)


def test_deep_json_is_refused(api):
    deep: Any = 1
    for _ in range(100):
        deep = {"a": deep}
    answer = api.ask("PUT", "/queues/%2F/q", {"arguments": deep})
    assert (answer.status, "deeper than" in answer.body["reason"]) == (400, True)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**70])
def test_numbers_that_no_table_holds_are_refused(api, value):
    assert api.ask("PUT", "/queues/%2F/q", {"arguments": {"x": value}}).status == 400


@pytest.mark.parametrize(
    "raw", [b'{"arguments": {"\\ud800": 1}}', b'{"arguments": {"a": "\\ud800"}}']
)
def test_text_that_is_no_unicode_ends_in_an_error_and_not_in_a_bug(api, raw):
    assert api.ask("PUT", "/queues/%2F/q", raw=raw).status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},  # another program of this machine serves it
    ],
    ids=["host", "origin", "null origin", "another port"],
)
def test_other_names_and_pages_of_other_sites_are_refused(server, headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["amqp_management"])
    body = b'{"properties":{},"routing_key":"q","payload":"","payload_encoding":"string"}'
    path = "/api/exchanges/%2F/amq.default/publish"
    connection.request("POST", path, body, headers)
    assert connection.getresponse().status == 403
    connection.close()


def test_other_machines_are_refused_by_the_configuration(tmp_path):
    arguments = ["--set", "listeners.amqp_management.enabled=true"]
    arguments += ["--set", 'listeners.amqp_management.host="0.0.0.0"']
    done = subprocess.run(
        [sys.executable, "-m", "onelog", "serve", *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert b"listeners.amqp_management.host" in done.stderr


def test_an_exclusive_queue_is_its_connections_alone(api, server):
    url = f"amqp://guest:guest@127.0.0.1:{server.ports['amqp']}/%2F"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    name = connection.channel().queue_declare("", exclusive=True).method.queue
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    answer = api.ask("POST", f"/queues/%2F/{name}/get", body)
    assert (answer.status, "exclusive" in answer.body["reason"]) == (400, True)
    connection.close()


def test_totals_do_not_shrink_when_a_queue_goes(api):
    api.do("PUT", "/queues/%2F/passing", {})
    api.publish("%2F", "amq.default", "passing", "x")
    api.take("%2F", "passing")
    before = api.get("/overview")["message_stats"]
    api.do("DELETE", "/queues/%2F/passing")
    after = api.get("/overview")["message_stats"]
    names = [name for name in before if not name.endswith("_details")]
    assert all(after[name] >= before[name] for name in names)
    assert after["ack"] >= 1


def test_what_is_got_and_acknowledged_is_gone_and_rejected_goes_to_dead_letters(api):
    api.do("PUT", "/queues/%2F/dead", {})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    api.do("PUT", "/queues/%2F/live", {"arguments": arguments})
    for payload in ("one", "two", "three"):
        api.publish("%2F", "amq.default", "live", payload)
    assert api.take("%2F", "live", 1, "reject_requeue_false")[0]["payload"] == "one"
    assert api.take("%2F", "live", 1, "reject_requeue_true")[0]["payload"] == "two"
    assert [row["payload"] for row in api.take("%2F", "live", 9)] == ["two", "three"]
    deadline = time.monotonic() + 10
    while not (dead := api.take("%2F", "dead")):
        assert time.monotonic() < deadline, "the dead letter did not come"
        time.sleep(0.01)  # it is written before it is in its queue
    assert (dead[0]["payload"], dead[0]["properties"]["headers"]["x-death"][0]["reason"]) == (
        "one",
        "rejected",
    )
    for name in ("dead", "live"):
        api.do("DELETE", f"/queues/%2F/{name}")


def test_values_of_every_type_are_shown_as_json(api, server):
    url = f"amqp://guest:guest@127.0.0.1:{server.ports['amqp']}/%2F"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("typed")
    table = {"b": b"\xff\x00", "l": [1, {"x": True}], "n": None, "d": Decimal("1.5")}
    channel.basic_publish("", "typed", b"", pika.BasicProperties(headers=table, timestamp=7))
    (row,) = api.take("%2F", "typed")
    assert row["properties"]["timestamp"] == 7
    assert row["properties"]["headers"]["l"] == [1, {"x": True}]
    assert row["properties"]["headers"]["d"] == 1.5
    channel.queue_delete("typed")
    connection.close()


def test_credentials_are_taken_as_utf_8(api):
    api.do("PUT", "/users/j%C3%BCrgen", {"password": "süß-süßer", "tags": ""})
    word = base64.b64encode("jürgen:süß-süßer".encode()).decode()
    answer = api.ask("GET", "/whoami", headers={"authorization": f"Basic {word}"})
    assert answer.body["name"] == "jürgen"


def test_who_gives_no_name_makes_the_first_user_and_changes_none(own):
    server = own()
    nobody = Api(server)
    assert nobody.get("/whoami")["tags"] == ["administrator"]
    ann = {"password": "secret-1", "tags": ""}
    assert nobody.ask("PUT", "/users/ann", ann).status == 201
    assert nobody.get("/whoami")["tags"] == ["management"]
    for path in ("/users/ann", "/users/bob"):
        assert nobody.ask("PUT", path, ann | {"password": "taken over"}).status == 401
    assert nobody.ask("DELETE", "/users/ann").status == 401
    assert nobody.ask("POST", "/users/bulk-delete", {"users": ["ann"]}).status == 401
    assert nobody.ask("POST", "/definitions", {"users": [{"name": "x", **ann}]}).status == 401
    login = Api(server, "ann:secret-1")
    assert login.ask("PUT", "/users/bob", ann).status == 401
    server.command("user", "promote", "ann")
    assert login.get("/whoami")["tags"] == ["administrator"]
    assert login.ask("PUT", "/users/bob", ann).status == 201
    server.command("user", "demote", "ann")
    assert login.ask("PUT", "/users/bob", ann).status == 401
    assert nobody.get("/overview")["object_totals"]["queues"] == 0, "all else is as before"


def test_only_administrators_change_other_users(api, server):
    for name, tags in (("dora", ""), ("emil", ""), ("frida", "policymaker,administrator")):
        api.do("PUT", f"/users/{name}", {"password": "secret-1", "tags": tags})
    dora, frida = Api(server, "dora:secret-1"), Api(server, "frida:secret-1")
    taken = {"password": "taken over", "tags": "administrator"}
    assert dora.ask("PUT", "/users/emil", taken).status == 401
    assert dora.ask("PUT", "/users/new", taken).status == 401
    assert dora.ask("DELETE", "/users/emil").status == 401
    assert dora.ask("POST", "/users/bulk-delete", {"users": ["emil"]}).status == 401
    users = [{"name": "new", "password": "long enough", "tags": "administrator"}]
    assert dora.ask("POST", "/definitions", {"users": users}).status == 401
    assert Api(server, "emil:secret-1").get("/whoami")["tags"] == ["management"]
    assert dora.ask("PUT", "/users/dora", taken).status == 204  # its own, and no more than that
    own = Api(server, "dora:taken over")
    assert own.get("/whoami")["tags"] == ["management"]
    assert own.ask("DELETE", "/users/emil").status == 401
    assert frida.get("/whoami")["tags"] == ["administrator"]
    assert frida.ask("PUT", "/users/emil", {"password": "the other", "tags": ""}).status == 204
    names = ["dora", "emil", "frida"]
    assert frida.ask("POST", "/users/bulk-delete", {"users": names}).status == 204
