"""The brokers of the Kafka scenarios, ours and Apache Kafka, and the clients that are here."""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from bench.kafka_jars import jars
from bench.kafka_peer import KafkaPeer
from tests.conformance import kafka_kcat
from tests.conformance.kafka_clients import ALL_CODECS, ROOT, KafkaClient, LineClient
from tests.conformance.kafka_cluster import KafkaCluster
from tests.conformance.mqtt_brokers import Onelog

HERE = Path(__file__).parent
JS = ROOT / "build" / "js"
_numbers = itertools.count()


class KafkaOnelog(Onelog):
    """`onelog serve` with its Kafka listener."""

    @property
    def port(self) -> int:
        return self.ports["kafka"]


KafkaServer = KafkaOnelog | KafkaCluster | KafkaPeer


def serve_guarded(folder: Path) -> Iterator[Onelog]:
    """A broker, for a fixture, that lets only `al,i=ce` in; by TLS too, with the CA in `ca.pem`."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other-ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    server = Onelog(
        folder,
        "security.anonymous=never",
        "listeners.kafka_tls.enabled=true",
        "listeners.kafka_tls.tls.cert_file=server.pem",
        "listeners.kafka_tls.tls.key_file=server.pem",
        listeners=("kafka_tls",),
    ).start()
    server.user("al,i=ce", "secret-1")
    yield server
    assert server.stop() == 0


def unique(prefix: str = "t") -> str:
    return f"{prefix}{next(_numbers)}"


# -- which clients there are


def python(name: str, port: int) -> KafkaClient:
    lines = "tests.conformance.kafka_lines"
    return LineClient([sys.executable, "-W", "ignore", "-m", lines, name, str(port)])


def kafkajs(port: int) -> KafkaClient:
    return LineClient(["node", str(HERE / "kafka_kafkajs_client.js"), str(JS), str(port)])


@functools.cache
def node_version() -> tuple[int, int]:
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
    major, minor, *_ = said.strip().removeprefix("v").split(".")
    return int(major), int(minor)


def platformatic(port: int) -> KafkaClient:
    """Its zstd is Node's own, which has it from 22.15 on."""
    codecs = ALL_CODECS if node_version() >= (22, 15) else ALL_CODECS - {"zstd"}
    script = HERE / "kafka_platformatic_client.mjs"
    return LineClient(["node", str(script), str(JS), str(port)], codecs)


def java(name: str, port: int) -> KafkaClient:
    script = HERE / "kafka_java_client.java"
    heap = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return LineClient(["java", *heap, "-cp", f"{jars(name)}/*", str(script), str(port)])


def lacks_js(package: str) -> str | None:
    if shutil.which("node") and (JS / "node_modules" / package).is_dir():
        return None
    return f"{package} is missing: run 'apt-get install nodejs npm' as root, then 'make setup'"


def lacks_platformatic() -> str | None:
    missing = lacks_js("@platformatic/kafka")
    if missing is None and node_version() < (20, 19):
        return "@platformatic/kafka needs Node 20.19 or newer"
    return missing


def lacks_java(name: str) -> str | None:
    if shutil.which("javac") and jars(name) is not None:
        return None
    return "the Java clients are missing: run 'apt-get install maven' as root, then 'make setup'"


def lacks_kcat() -> str | None:
    return None if kafka_kcat.available() else "kcat is missing: run 'apt-get install kcat' as root"


class Kind(NamedTuple):
    """A client: how it is made, and what is missing for it here."""

    make: Callable[[int], KafkaClient]
    lacks: Callable[[], str | None] = lambda: None


KINDS: dict[str, Kind] = {
    "confluent": Kind(functools.partial(python, "confluent")),
    "aiokafka": Kind(functools.partial(python, "aiokafka")),
    "kafka-python": Kind(functools.partial(python, "kafka-python")),
    "kafkajs": Kind(kafkajs, functools.partial(lacks_js, "kafkajs")),
    "platformatic": Kind(platformatic, lacks_platformatic),
    "kcat": Kind(kafka_kcat.Kcat, lacks_kcat),  # type: ignore[arg-type]
    "java-3": Kind(functools.partial(java, "client-3"), functools.partial(lacks_java, "client-3")),
    "java-4": Kind(functools.partial(java, "client-4"), functools.partial(lacks_java, "client-4")),
}


STAYS = ("platformatic",)
"""Clients that find the coordinator of a group or transaction once, and ask it for ever: wherever
coordinators move, as with Apache Kafka, they do not go on."""


class Clients:
    """The clients of all scenarios, each made once for each broker: a JVM takes seconds."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], KafkaClient] = {}

    def get(self, server: KafkaServer, kind: str) -> KafkaClient:
        """A client, or the test is skipped."""
        key = server.name, kind
        if key not in self._made:
            lacks = KINDS[kind].lacks()
            if lacks is not None:
                pytest.skip(lacks)
            self._made[key] = KINDS[kind].make(server.port)
        return self._made[key]

    def for_scenario(self, server: KafkaServer, kind: str, scenario: str) -> KafkaClient:
        client = self.get(server, kind)
        if scenario not in client.scenarios:
            pytest.skip(f"{kind} cannot do this")
        if server.name == "cluster" and kind in STAYS and scenario != "admin":
            pytest.skip(f"{kind} never looks for another coordinator")
        return client

    def close(self) -> None:
        for client in self._made.values():
            client.close()
