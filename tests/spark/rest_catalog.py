"""A real REST catalog for Iceberg tables: the reference server of Iceberg's own tests, by Maven.

Usage: python -m tests.spark.rest_catalog    (fetches it into `build/spark/rest-catalog` once)
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.kafka_jars import fetch_into
from onelog.spark import java_home

FOLDER = Path(__file__).resolve().parents[2] / "build" / "spark" / "rest-catalog"
START_S = 120.0
S3_FILES = "org.apache.iceberg.aws.s3.S3FileIO"
MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
ICEBERG, JETTY, HADOOP = "1.11.0", "12.1.8", "3.4.1"
JARS = (
    f"org.apache.iceberg:iceberg-open-api:{ICEBERG}@test-fixtures",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.apache.iceberg:iceberg-aws:{ICEBERG}:alone",
    f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}@tests",
    "dev.failsafe:failsafe:3.3.2",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    f"org.eclipse.jetty:jetty-server:{JETTY}",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{JETTY}",
    f"org.apache.hadoop:hadoop-client-api:{HADOOP}",
    f"org.apache.hadoop:hadoop-client-runtime:{HADOOP}",
    "org.slf4j:slf4j-nop:2.0.17",
)


def available() -> bool:
    return (FOLDER / "complete").exists()


@contextmanager
def rest_catalog(
    folder: Path, bucket: str | None = None, access: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The address of a catalog whose tables lie in a folder, or in a bucket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "CATALOG_WAREHOUSE": bucket or f"file://{folder}/warehouse",
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:sqlite:{folder}/rest.db",
        "CATALOG_IO__IMPL": S3_FILES if bucket else "org.apache.iceberg.hadoop.HadoopFileIO",
        "CATALOG_REST_PORT": str(port),
    }
    if access is not None:
        settings |= {"CATALOG_S3_PATH__STYLE__ACCESS": "true", "AWS_REGION": access["s3.region"]}
        for name in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key"):
            settings[f"CATALOG_{name.replace('-', '__').replace('.', '_').upper()}"] = access[name]
    server = subprocess.Popen(
        [str(java_home() / "bin" / "java"), "-XX:TieredStopAtLevel=1", "-cp", f"{FOLDER}/*", MAIN],
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Until it answers; a JVM takes seconds, and on a busy machine many."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "the catalog ended"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/v1/config")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
        finally:
            connection.close()
    raise TimeoutError("the catalog did not answer")


if __name__ == "__main__":
    problem = None
    if not available():
        problem = fetch_into(FOLDER, JARS, "Iceberg's REST catalog")
    if problem:
        sys.stderr.write(f"onelog: {problem}; tests with a REST catalog are skipped\n")
