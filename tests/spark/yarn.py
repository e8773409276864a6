"""A real YARN on loopback: one ResourceManager and one NodeManager, of Hadoop's jars by Maven.

Usage: python -m tests.spark.yarn    (fetches them into `build/spark/yarn` once)
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from bench.kafka_jars import fetch_into
from onelog.spark import java_home
from tests.spark.lines import ROOT
from tests.support.s3_server import free_pairs

FOLDER = ROOT / "build" / "spark" / "yarn"
START_S = 120.0
HADOOP = "3.5.0"
JARS = (
    f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP}",
    "org.bouncycastle:bcprov-jdk18on:1.82",
    "org.bouncycastle:bcpkix-jdk18on:1.82",
    "ch.qos.reload4j:reload4j:1.2.26",
    "org.slf4j:slf4j-simple:1.7.36",
)
DAEMONS = ("resourcemanager.ResourceManager", "nodemanager.NodeManager")
ADDRESSES = (
    "resourcemanager.address", "resourcemanager.scheduler.address",
    "resourcemanager.resource-tracker.address", "resourcemanager.admin.address",
    "resourcemanager.webapp.address", "nodemanager.address", "nodemanager.localizer.address",
    "nodemanager.webapp.address", "nodemanager.collector-service.address",
)  # fmt: skip
PAGES = ("cluster", "node", "static")
"""What its web server looks for beside its classes, and the jar leaves out."""
SETTINGS = {
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.hostname": "127.0.0.1",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager"
    ".scheduler.fifo.FifoScheduler",
}
SPARK_DEFAULTS = {
    # The jars of Spark are on the one node there is: nothing has to be sent.
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
    "spark.yarn.am.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.instances": "2",
}


def available() -> bool:
    return (FOLDER / "complete").exists()


@dataclass(frozen=True)
class Yarn:
    """Its environment for clients, and what it says of applications."""

    folder: Path
    web: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HADOOP_CONF_DIR": str(self.folder / "conf"),
            "SPARK_CONF_DIR": str(self.folder / "spark"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def ask(self, what: str) -> Any:
        """A page of its REST API; None when nobody answers."""
        host, _, port = self.web.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        try:
            connection.request("GET", f"/ws/v1/cluster/{what}")
            return json.loads(connection.getresponse().read())
        except (OSError, ValueError):
            return None
        finally:
            connection.close()

    def applications(self) -> dict[str, str]:
        """How each application ended, by its name."""
        apps = (self.ask("apps") or {}).get("apps") or {}
        return {one["name"]: one["finalStatus"] for one in apps.get("app", [])}


@contextmanager
def yarn(folder: Path) -> Iterator[Yarn]:
    """YARN for as long as the block runs."""
    conf = folder / "conf"
    for page in PAGES:
        (conf / "webapps" / page).mkdir(parents=True)
    ports = free_pairs(len(ADDRESSES))
    named = {
        f"yarn.{name}": f"127.0.0.1:{port}" for name, port in zip(ADDRESSES, ports, strict=True)
    }
    places = {
        "yarn.nodemanager.local-dirs": f"{folder}/local",
        "yarn.nodemanager.log-dirs": f"{folder}/logs",
    }
    write_xml(conf / "yarn-site.xml", SETTINGS | named | places)
    write_xml(conf / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{folder}/t"})
    (folder / "spark").mkdir()
    lines = [f"{name} {text}\n" for name, text in SPARK_DEFAULTS.items()]
    (folder / "spark" / "spark-defaults.conf").write_text("".join(lines))
    made = Yarn(folder, named["yarn.resourcemanager.webapp.address"])
    with ExitStack() as stack:
        daemons = [stack.enter_context(daemon(name, folder)) for name in DAEMONS]
        deadline = time.monotonic() + START_S
        while '"state": "RUNNING"' not in json.dumps(made.ask("nodes")):
            assert all(one.poll() is None for one in daemons), said(folder)
            assert time.monotonic() < deadline, said(folder)
            time.sleep(0.5)
        yield made


@contextmanager
def daemon(name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One process of YARN."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(java_home() / "bin" / "java"), "-Xmx512m", "-XX:TieredStopAtLevel=1",
             "--add-opens=java.base/java.lang=ALL-UNNAMED", "-cp", f"{folder}/conf:{FOLDER}/*",
             f"org.apache.hadoop.yarn.server.{name}"],
            stdout=log, stderr=log, cwd=folder,
            env=os.environ | {"HADOOP_CONF_DIR": str(folder / "conf"), "HADOOP_HOME": str(folder)},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def write_xml(file: Path, settings: dict[str, str]) -> None:
    rows = [
        f"<property><name>{name}</name><value>{text}</value></property>\n"
        for name, text in settings.items()
    ]
    file.write_text(f"<configuration>\n{''.join(rows)}</configuration>\n")


def said(folder: Path) -> str:
    return "\n".join(file.read_text()[-3000:] for file in folder.glob("*.log"))


if __name__ == "__main__":
    problem = None
    if not available():
        problem = fetch_into(FOLDER, JARS, "Hadoop's YARN")
    if problem:
        sys.stderr.write(f"onelog: {problem}; tests with YARN are skipped\n")
