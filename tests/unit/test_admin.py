"""The admin listener: pages, errors, health, and loopback only."""

from __future__ import annotations

import asyncio
import socket

import httpx2 as httpx
import pytest
from starlette.types import ASGIApp

from onelog.admin.api.desk import AdminDesk
from onelog.admin.application import build_application
from onelog.admin.server import HttpServer
from onelog.base.clock import SystemClock
from onelog.base.errors import ConfigError, Conflict
from onelog.broker import LOCAL, StreamConfig
from onelog.net import Listener, bind
from onelog.observe import Health, Registry, Sample, Troubles
from tests.support.admin import admin_api, client_of, new_desk


@pytest.fixture
def desk() -> AdminDesk:
    return new_desk()


@pytest.fixture
async def api(tmp_path):
    async with admin_api(tmp_path) as found:
        yield found


async def get(desk: AdminDesk, path: str, **options) -> httpx.Response:
    async with client_of(desk, **options) as client:
        return await client.get(path)


def build(desk: AdminDesk) -> ASGIApp:
    return build_application(desk, Registry(desk.troubles), SystemClock())


async def test_pages_visit_every_stream_once_in_order(api):
    names = [f"s{number:03}" for number in range(25)]
    for name in names:
        await api.broker.streams.create(StreamConfig(name=name, captures=(name,)))
    rows = await api.items("/streams", limit=10)
    assert [row["name"] for row in rows] == ["main", *names]


async def test_a_page_that_ends_exactly_at_the_last_item_has_no_next_one(api):
    await api.broker.streams.create(StreamConfig(name="a", captures=("a",)))
    body = (await api.get("/streams?limit=2")).json()
    assert [row["name"] for row in body["items"]] == ["a", "main"]
    assert body["next_cursor"] is None


async def test_streams_of_the_broker_itself_are_shown_on_demand_and_found_by_a_part(api):
    await api.broker.streams.create(StreamConfig(name="Orders", captures=("shop/orders",)))
    assert [row["name"] for row in await api.items("/streams")] == ["Orders", "main"]
    assert "~cursors" in [row["name"] for row in await api.items("/streams?internal=true")]
    assert [row["name"] for row in await api.items("/streams?search=oRD")] == ["Orders"]
    assert [row["name"] for row in await api.items("/streams?search=shop")] == ["Orders"]


async def test_pages_visit_every_partition_once_in_order(api):
    await api.broker.streams.create(
        StreamConfig(name="big", captures=("big",), partitions=250, engine="memory")
    )
    rows = await api.items("/streams/big/partitions", limit=100)
    assert [row["partition"] for row in rows] == list(range(250))


async def test_a_partition_shows_its_segments(api):
    (row,) = await api.items("/streams/main/partitions/0/segments")
    assert (row["base_offset"], row["end_offset"], row["sealed"]) == (0, 0, False)
    assert (await api.get("/streams/main/partitions/9/segments")).status_code == 404


async def test_cursors_are_listed_and_found_also_with_a_slash_in_the_name(api):
    for name in ("two", "group/one"):
        await api.broker.cursors.open_offset(name, ["#"], principal=LOCAL)
    assert [row["name"] for row in await api.items("/cursors", limit=1)] == ["group/one", "two"]
    body = (await api.get("/cursors/group%2Fone")).json()
    assert body["positions"][0] == {"stream": "main", "partition": 0, "offset": 0, "end": 0}


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/streams/missing", 404, "not_found"),
        ("/streams/missing/partitions", 404, "not_found"),
        ("/cursors/missing", 404, "not_found"),
        ("/nowhere", 404, "not_found"),
        ("/streams?limit=0", 400, "invalid_request"),
        ("/streams?limit=1001", 400, "invalid_request"),
        ("/streams?limit=-1", 400, "invalid_request"),
        ("/streams?limit=x", 400, "invalid_request"),
        ("/streams?limit=%C2%B2", 400, "invalid_request"),
        ("/streams?limit=5&limit=6", 400, "invalid_request"),
        ("/streams?page=2", 400, "invalid_request"),
        ("/streams/main/partitions?cursor=x", 400, "invalid_request"),
        ("/streams?cursor=" + "x" * 9000, 400, "invalid_request"),
        ("/streams/%", 400, "invalid_request"),
        ("/streams/%FF", 404, "not_found"),
        ("/streams/main/partitions/x/segments", 400, "invalid_request"),
    ],
)
async def test_every_failure_has_the_same_shape(api, path, status, code):
    response = await api.get(path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["message"]


async def test_a_method_that_a_path_does_not_have_is_answered_with_405_and_what_is_allowed(api):
    response = await api.ask("PUT", "/streams", {})
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert set(response.headers["allow"].split(", ")) >= {"GET", "POST"}


async def test_until_the_broker_has_recovered_the_api_answers_503_and_probes_answer(desk):
    assert (await get(desk, "/api/v1/streams")).status_code == 503
    assert (await get(desk, "/health/live")).status_code == 200
    assert (await get(desk, "/api/v1/info")).json()["kernel"] == "compiled"


async def test_a_bug_is_a_500_without_its_insides(api, monkeypatch):
    def broken(_name: str) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(api.desk.view, "stream", broken)
    response = await api.get("/streams")
    assert response.status_code == 500
    assert "secret" not in response.text
    (row,) = api.desk.troubles.rows()
    assert (row.kind, row.place) == ("http-request", "admin")
    assert row.facts == {"path": "/api/v1/streams"}


async def test_ready_is_503_with_the_reason_while_a_check_fails():
    health = Health()
    health.register("disk", lambda: "no room")
    health.register("loop", lambda: None)
    response = await get(new_desk(health), "/health/ready")
    assert response.status_code == 503
    assert response.json() == {"status": "failing", "checks": {"disk": "no room", "loop": "ok"}}


@pytest.mark.parametrize("host", ["evil.example", "10.0.0.1", "localhost.evil.example"])
async def test_a_request_for_another_host_name_is_refused(desk, host):
    """A web page that points its own name at 127.0.0.1 must not read the answers."""
    response = await get(desk, "/health/live", host=host)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "wrong_host"


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"])
async def test_every_loopback_name_is_served(desk, host):
    assert (await get(desk, "/health/live", host=host)).status_code == 200


async def test_metrics_are_read_at_scrape_time_and_named_once_per_family():
    registry = Registry(Troubles(SystemClock()))
    value = 0

    def source():
        for number in range(1200):  # more than one slice
            yield Sample("onelog_x_total", "An x.", "counter", value, (("stream", f's"{number}'),))
        yield Sample("onelog_y", "A y.", "gauge", 1.5)

    registry.register("x", source)
    value = 41
    text = (await get(new_desk(), "/metrics", metrics=registry)).text
    assert text.count("# TYPE onelog_x_total counter") == 1
    assert text.count("onelog_x_total{") == 1200
    assert 'onelog_x_total{stream="s\\"7"} 41.0' in text
    assert "onelog_y 1.5" in text
    assert "process_cpu_seconds_total" in text


async def test_streams_are_measured_only_while_the_broker_is_open(desk, tmp_path):
    assert "onelog_stream" not in (await get(desk, "/metrics")).text
    async with admin_api(tmp_path) as api:
        text = (await api.client.get("/metrics")).text
        assert 'onelog_stream_partitions{stream="main"} 4.0' in text
        assert "onelog_streams " in text


async def test_a_failing_metrics_source_does_not_blind_the_scrape():
    registry = Registry(Troubles(SystemClock()))

    def broken():
        yield Sample("onelog_before", "Before.", "gauge", 1)
        raise RuntimeError("broken")

    registry.register("broken", broken)
    registry.register("good", lambda: [Sample("onelog_good", "Good.", "gauge", 2)])
    text = (await get(new_desk(), "/metrics", metrics=registry)).text
    assert "onelog_good 2.0" in text
    assert "onelog_metrics_source_errors_total 1.0" in text


async def test_the_server_answers_on_its_socket_and_lets_go_of_the_port(desk):
    listener = bind("admin", "127.0.0.1", 0)
    server = HttpServer(listener, build(desk), connections_max=10)
    task = server.start()
    async with httpx.AsyncClient() as client:
        response = await client.get(f"http://{listener.address}/health/live")
    assert response.json() == {"status": "ok", "checks": {}}
    await asyncio.wait_for(server.close(), 10)
    assert task.done()
    bind("admin", "127.0.0.1", listener.port).close()


def test_a_taken_port_is_named_with_what_to_do():
    first = bind("admin", "127.0.0.1", 0)
    try:
        with pytest.raises(Conflict, match=rf"port {first.port} is taken.*listeners\.admin\.port"):
            bind("admin", "127.0.0.1", first.port)
    finally:
        first.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "name.invalid"])
def test_a_host_that_is_not_ours_is_a_configuration_error(host):
    with pytest.raises(ConfigError):
        bind("admin", host, 0)


def test_the_admin_server_refuses_a_socket_that_other_machines_reach(desk):
    with socket.create_server(("0.0.0.0", 0)) as sock:
        listener = Listener("admin", "0.0.0.0", sock.getsockname()[1], [sock])
        with pytest.raises(ConfigError, match="no credentials"):
            HttpServer(listener, build(desk), connections_max=10)
