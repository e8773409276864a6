"""Dashboard and alerts are true: their metrics exist, and Prometheus itself judges and runs them.

Prometheus and promtool are Debian's; where neither is, their tests are skipped
(`tools/provision … tests` brings them).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from onelog.base.clock import SystemClock
from onelog.cluster.watching import ReplicaWatch
from onelog.observe import Troubles
from tests.conformance.mqtt_brokers import DEADLINE_S, ROOT, Onelog
from tests.cross.clients import Amqp, Kafka, Mqtt, Said
from tests.support.ports import free_ports

PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "onelog.json").read_text())
ALERTS = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
PANELS = [row for row in DASHBOARD["panels"] if row["type"] != "row"]
EXPRESSIONS = [one["expr"] for panel in PANELS for one in panel["targets"]] + [
    row["expr"] for row in DASHBOARD["annotations"]["list"]
]
METRIC = re.compile(r"\b(?:onelog|process)_\w+")
OF_FAILURES = "onelog_troubles_total"
"""A broker without failures shows no row of it."""
OF_CLUSTERS = "onelog_cluster_"
"""A broker on its own shows none of them."""


async def metrics_of_a_cluster() -> set[str]:
    """What a node of a cluster shows beyond a node on its own."""
    nothing: Any = None
    host: Any = SimpleNamespace(observed=SimpleNamespace(keys=(), size_bytes=0))
    watch = ReplicaWatch(host, nothing, Troubles(SystemClock()))
    return {row.name for row in watch.samples()}


def find(name: str) -> str | None:
    own = ROOT / "build" / "prometheus" / "usr" / "bin" / name
    return shutil.which(name) or (str(own) if own.exists() else None)


needs_prometheus = pytest.mark.skipif(find("prometheus") is None, reason="no Prometheus here")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Onelog]:
    found = Onelog(tmp_path_factory.mktemp("metrics")).start()
    yield found
    assert found.stop() == 0


def names_in(text: str) -> set[str]:
    """The metrics of an expression; a quoted value of a label is none."""
    return set(METRIC.findall(re.sub(r'"[^"]*"', "", text)))


def test_every_metric_of_dashboard_and_alerts_is_one_that_a_broker_shows(server):
    shown = set(re.findall(r"^(\w+)(?:\{.*\})? \S+$", server.get("/metrics"), re.MULTILINE))
    troubles = Troubles(SystemClock())
    troubles.note("kind", "place", ValueError("a failure"))
    shown |= {row.name for row in troubles.samples()} | asyncio.run(metrics_of_a_cluster())
    asked = set().union(*map(names_in, [*EXPRESSIONS, *(row["expr"] for row in ALERTS)]))
    asked |= names_in(DASHBOARD["templating"]["list"][1]["definition"])
    assert len(asked) > 50
    assert asked <= shown, sorted(asked - shown)


def test_clients_cursors_and_topics_add_no_series(server):
    """Everything that a peer may choose as it likes is not a label."""

    def series() -> set[str]:
        rows = re.findall(r"^(\w+(?:\{.*\})?) \S+$", server.get("/metrics"), re.MULTILINE)
        return set(rows)

    def use(number: int) -> None:
        mqtt = Mqtt(server.ports["mqtt"], 5, f"series/{number}/#")
        mqtt.write(Said(b"x"), f"series/{number}/a")
        kafka = Kafka(server.ports["kafka"], f"series/{number}/a")
        amqp = Amqp(server.ports["amqp"], f"series/{number}/a")
        amqp.channel.queue_declare(f"series-{number}", durable=True)
        for client in (mqtt, kafka, amqp):
            client.write(Said(b"x", key=b"k"), f"series/{number}/a")
            client.close()

    use(0)
    before = series()
    for number in range(1, 6):
        use(number)
    assert series() == before


def test_a_metric_that_no_broker_has_would_be_found():
    assert names_in('rate(onelog_gone_total{job="onelog_x"}[5m]) / process_y') == {
        "onelog_gone_total", "process_y",
    }  # fmt: skip


def test_the_panels_of_the_dashboard_have_room_of_their_own_and_the_chosen_source():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in PANELS:
        for one in [panel, *panel["targets"]]:
            assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all('instance=~"$instance"' in one["expr"] for one in panel["targets"])


def test_an_alert_says_what_happened_and_what_to_do():
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert {"summary", "do"} == set(rule["annotations"]), rule["alert"]
    tested = {
        row["name"] for row in yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    }
    assert {rule["alert"] for rule in ALERTS} <= tested


@needs_prometheus
@pytest.mark.parametrize(
    "words",
    ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts_test.yml"],
)
def test_promtool_accepts_the_files_and_every_alert_fires(words):
    done = subprocess.run(
        [find("promtool"), *words.split()],
        cwd=PROMETHEUS, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


class Scraping:
    """Prometheus with our own configuration, reading one broker more often than it asks for."""

    def __init__(self, folder, target: str) -> None:
        self._port = free_ports(1)[0]
        text = (PROMETHEUS / "prometheus.yml").read_text()
        assert "localhost:8080" in text
        text = text.replace("localhost:8080", target).replace("interval: 15s", "interval: 1s")
        (folder / "prometheus.yml").write_text(text)
        shutil.copy(PROMETHEUS / "alerts.yml", folder / "alerts.yml")
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    find("prometheus"), f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def ask(self, expression: str) -> list[dict]:
        """What an expression is now. Raises OSError while Prometheus starts."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE_S)
        try:
            query = urllib.parse.urlencode({"query": expression})
            connection.request("GET", f"/api/v1/query?{query}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert answer["status"] == "success", f"{expression}: {answer}"
        return answer["data"]["result"]

    def until_scraped(self, times: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                found = self.ask("count_over_time(onelog_ready[1h])")
            except (OSError, ValueError):
                found = []
            if found and float(found[0]["value"][1]) >= times:
                return
            time.sleep(0.1)  # Prometheus tells nobody when it has scraped
        raise TimeoutError("Prometheus read nothing")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE_S)


@needs_prometheus
def test_prometheus_reads_a_broker_and_every_panel_has_numbers(server, tmp_path):
    reading = Scraping(tmp_path, f"127.0.0.1:{server.ports['admin']}")
    try:
        reading.until_scraped(3)
        for expression in EXPRESSIONS:
            text = expression.replace("$instance", ".*").replace("$__rate_interval", "1m")
            found = reading.ask(text)
            is_elsewhere = OF_FAILURES in text or OF_CLUSTERS in text
            assert found or is_elsewhere or " > 0" in text, text
        fired = 'ALERTS{alertstate="firing", alertname!="OnelogInterpreted"}'
        assert reading.ask(fired) == []
        assert float(reading.ask("onelog_disk_free_bytes")[0]["value"][1]) > 0
    finally:
        reading.close()
