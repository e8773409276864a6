"""The admin API over our own seam: pages, errors, health, and loopback only."""

from __future__ import annotations

import asyncio
import socket

import httpx2 as httpx
import pytest

from onelog.admin.application import build_application
from onelog.admin.contract import (
    CursorInfo,
    CursorPosition,
    ListenerInfo,
    PartitionInfo,
    RetentionInfo,
    ServerInfo,
    StreamInfo,
)
from onelog.admin.endpoints import Endpoints
from onelog.admin.server import AdminServer
from onelog.base.clock import SystemClock
from onelog.base.errors import ConfigError, Conflict, CursorNotFound, StreamNotFound
from onelog.net import Listener, bind
from onelog.observe import Health, Registry, Sample, Troubles


class FewStreams:
    """A broker view that holds what the test says; the real one is tested over `onelog serve`."""

    def __init__(self, streams: list[str], partitions: int = 1, cursors: tuple[str, ...] = ()):
        self._streams = sorted(streams)
        self._partitions = partitions
        self._cursors = sorted(cursors)
        self.asked: list[int] = []

    def streams(self, after: str, limit: int) -> list[StreamInfo]:
        self.asked.append(limit)
        return [self.stream(name) for name in self._streams if name > after][:limit]

    def stream(self, name: str) -> StreamInfo:
        if name not in self._streams:
            raise StreamNotFound(f"no stream is named {name!r}")
        return StreamInfo(
            name=name,
            id=f"id-{name}",
            captures=(name,),
            partitions=self._partitions,
            engine="segment",
            durability="fsync",
            retention=RetentionInfo(age_ms=1000, bytes=None, consumed=False),
            cleanup="delete",
            internal=False,
            size_bytes=10,
            records=3,
        )

    def partitions(self, name: str, after: int, limit: int) -> list[PartitionInfo]:
        self.stream(name)
        return [
            PartitionInfo(
                partition=number,
                start_offset=0,
                end_offset=3,
                high_watermark=3,
                last_stable_offset=3,
                durable_offset=3,
                size_bytes=10,
                segments=1,
                state="running",
            )
            for number in range(after + 1, min(self._partitions, after + 1 + limit))
        ]

    def cursors(self, after: str, limit: int) -> list[CursorInfo]:
        return [self.cursor(name) for name in self._cursors if name > after][:limit]

    def cursor(self, name: str) -> CursorInfo:
        if name not in self._cursors:
            raise CursorNotFound(f"no cursor is named {name!r}")
        return CursorInfo(
            name=name,
            kind="queue",
            filter="#",
            durable=True,
            positions=(CursorPosition(stream="main", partition=0, offset=7),),
            lag=2,
            pending=1,
            connected=0,
        )


def info() -> ServerInfo:
    return ServerInfo(
        version="1",
        node_id=0,
        node_name="n",
        pid=1,
        python="3",
        event_loop="uvloop",
        kernel="compiled",
        data_dir="data",
        config_file=None,
        started_ms=1,
        uptime_s=1.0,
        listeners=(ListenerInfo(name="admin", address="127.0.0.1:8080"),),
    )


@pytest.fixture
def endpoints() -> Endpoints:
    return Endpoints(Health(), Registry(Troubles(SystemClock())), info, Troubles(SystemClock()))


def client_of(endpoints: Endpoints, host: str = "localhost") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=build_application(endpoints), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}")


async def get(endpoints: Endpoints, path: str, host: str = "localhost") -> httpx.Response:
    async with client_of(endpoints, host) as client:
        return await client.get(path)


async def test_pages_visit_every_stream_once_in_order(endpoints):
    names = [f"s{number:03}" for number in range(25)]
    endpoints.broker = FewStreams(names)
    seen: list[str] = []
    path = "/api/v1/streams?limit=10"
    while path:
        body = (await get(endpoints, path)).json()
        seen += [item["name"] for item in body["items"]]
        cursor = body["next_cursor"]
        path = f"/api/v1/streams?limit=10&cursor={cursor}" if cursor else ""
    assert seen == names


async def test_a_page_that_ends_exactly_at_the_last_item_has_no_next_one(endpoints):
    endpoints.broker = FewStreams(["a", "b"])
    body = (await get(endpoints, "/api/v1/streams?limit=2")).json()
    assert len(body["items"]) == 2
    assert body["next_cursor"] is None


async def test_pages_visit_every_partition_once_in_order(endpoints):
    endpoints.broker = FewStreams(["big"], partitions=10_000)
    seen: list[int] = []
    path = "/api/v1/streams/big/partitions?limit=1000"
    while path:
        body = (await get(endpoints, path)).json()
        assert len(body["items"]) <= 1000
        seen += [item["partition"] for item in body["items"]]
        cursor = body["next_cursor"]
        path = f"/api/v1/streams/big/partitions?limit=1000&cursor={cursor}" if cursor else ""
    assert seen == list(range(10_000))


async def test_the_broker_is_never_asked_for_more_than_a_page(endpoints):
    """I8: what a client asks for costs bounded memory."""
    view = endpoints.broker = FewStreams(["a"])
    await get(endpoints, "/api/v1/streams")
    await get(endpoints, "/api/v1/streams?limit=1000")
    assert view.asked == [101, 1001]


async def test_cursors_are_listed_and_found_also_with_a_slash_in_the_name(endpoints):
    endpoints.broker = FewStreams([], cursors=("group/one", "two"))
    assert [c["name"] for c in (await get(endpoints, "/api/v1/cursors")).json()["items"]] == [
        "group/one",
        "two",
    ]
    body = (await get(endpoints, "/api/v1/cursors/group/one")).json()
    assert body["positions"] == [{"stream": "main", "partition": 0, "offset": 7}]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/streams/missing", 404, "not_found"),
        ("/api/v1/streams/missing/partitions", 404, "not_found"),
        ("/api/v1/cursors/missing", 404, "not_found"),
        ("/nowhere", 404, "not_found"),
        ("/api/v1/streams?limit=0", 400, "invalid_request"),
        ("/api/v1/streams?limit=1001", 400, "invalid_request"),
        ("/api/v1/streams?limit=-1", 400, "invalid_request"),
        ("/api/v1/streams?limit=x", 400, "invalid_request"),
        ("/api/v1/streams?limit=%C2%B2", 400, "invalid_request"),
        ("/api/v1/streams?page=2", 400, "invalid_request"),
        ("/api/v1/streams/a/partitions?cursor=x", 400, "invalid_request"),
        ("/api/v1/streams?cursor=" + "x" * 5000, 400, "invalid_request"),
    ],
)
async def test_every_failure_has_the_same_shape(endpoints, path, status, code):
    endpoints.broker = FewStreams(["a"])
    response = await get(endpoints, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["message"]


async def test_a_write_is_answered_with_405_and_what_is_allowed(endpoints):
    async with client_of(endpoints) as client:
        response = await client.post("/api/v1/streams", json={})
    assert response.status_code == 405
    assert response.json()["error"]["code"] == "method_not_allowed"
    assert "GET" in response.headers["allow"]


async def test_until_the_broker_has_recovered_the_api_answers_503_and_probes_answer(endpoints):
    assert (await get(endpoints, "/api/v1/streams")).status_code == 503
    assert (await get(endpoints, "/health/live")).status_code == 200
    assert (await get(endpoints, "/api/v1/info")).json()["kernel"] == "compiled"


async def test_a_bug_is_a_500_without_its_insides(endpoints):
    class Broken(FewStreams):
        def streams(self, after: str, limit: int) -> list[StreamInfo]:
            raise RuntimeError("secret")

    endpoints.broker = Broken([])
    response = await get(endpoints, "/api/v1/streams")
    assert response.status_code == 500
    assert "secret" not in response.text
    (row,) = endpoints.troubles.rows()
    assert (row.kind, row.place) == ("http-request", "admin")
    assert row.facts == {"path": "/api/v1/streams"}


async def test_ready_is_503_with_the_reason_while_a_check_fails():
    health = Health()
    health.register("disk", lambda: "no room")
    health.register("loop", lambda: None)
    response = await get(
        Endpoints(health, Registry(Troubles(SystemClock())), info, Troubles(SystemClock())),
        "/health/ready",
    )
    assert response.status_code == 503
    assert response.json() == {"status": "failing", "checks": {"disk": "no room", "loop": "ok"}}


@pytest.mark.parametrize("host", ["evil.example", "10.0.0.1", "localhost.evil.example"])
async def test_a_request_for_another_host_name_is_refused(endpoints, host):
    """A web page that points its own name at 127.0.0.1 must not read the answers."""
    response = await get(endpoints, "/health/live", host)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "wrong_host"


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"])
async def test_every_loopback_name_is_served(endpoints, host):
    assert (await get(endpoints, "/health/live", host)).status_code == 200


async def test_metrics_are_read_at_scrape_time_and_named_once_per_family():
    registry = Registry(Troubles(SystemClock()))
    value = 0

    def source():
        for number in range(1200):  # more than one slice
            yield Sample("onelog_x_total", "An x.", "counter", value, (("stream", f's"{number}'),))
        yield Sample("onelog_y", "A y.", "gauge", 1.5)

    registry.register("x", source)
    value = 41
    text = (
        await get(Endpoints(Health(), registry, info, Troubles(SystemClock())), "/metrics")
    ).text
    assert text.count("# TYPE onelog_x_total counter") == 1
    assert text.count("onelog_x_total{") == 1200
    assert 'onelog_x_total{stream="s\\"7"} 41.0' in text
    assert "onelog_y 1.5" in text
    assert "process_cpu_seconds_total" in text


async def test_streams_are_measured_only_while_the_broker_is_open(endpoints):
    assert "onelog_stream" not in (await get(endpoints, "/metrics")).text
    endpoints.broker = FewStreams([f"s{number:04}" for number in range(1001)], partitions=3)
    text = (await get(endpoints, "/metrics")).text
    assert 'onelog_stream_partitions{stream="s1000"} 3.0' in text
    assert "onelog_streams 1001.0" in text


async def test_a_failing_metrics_source_does_not_blind_the_scrape():
    registry = Registry(Troubles(SystemClock()))

    def broken():
        yield Sample("onelog_before", "Before.", "gauge", 1)
        raise RuntimeError("broken")

    registry.register("broken", broken)
    registry.register("good", lambda: [Sample("onelog_good", "Good.", "gauge", 2)])
    text = (
        await get(Endpoints(Health(), registry, info, Troubles(SystemClock())), "/metrics")
    ).text
    assert "onelog_good 2.0" in text
    assert "onelog_metrics_source_errors_total 1.0" in text


async def test_the_server_answers_on_its_socket_and_lets_go_of_the_port(endpoints):
    listener = bind("admin", "127.0.0.1", 0)
    server = AdminServer(listener, endpoints, connections_max=10)
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


def test_the_admin_server_refuses_a_socket_that_other_machines_reach(endpoints):
    with socket.create_server(("0.0.0.0", 0)) as sock:
        listener = Listener("admin", "0.0.0.0", sock.getsockname()[1], [sock])
        with pytest.raises(ConfigError, match="no credentials"):
            AdminServer(listener, endpoints, connections_max=10)
