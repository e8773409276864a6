"""The Spark of one command: started or connected to, quiet, and ended with it.

Rules: Spark's standard error goes to a log file, so that the terminal shows only the output of the
command. A failed start is an error of one line, like every other error.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.base.errors import OnelogError
from onelog.pipelines.failures import PipelineFailed, told
from onelog.pipelines.needs import need_connect, need_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onelog.spark.serving import ConnectServer


@contextlib.contextmanager
def spark_session(
    master: str,
    name: str,
    log: Path,
    *,
    config: Mapping[str, str] | None = None,
    jars: tuple[str, ...] = (),
) -> Iterator[SparkSession]:
    """A session for one command; it ends with the block."""
    need_spark()
    from onelog.spark import session  # noqa: PLC0415 - an extra
    from onelog.spark.masters import Kind, kind_of  # noqa: PLC0415

    kind = kind_of(master)
    ours = {} if kind is Kind.CONNECT else own_settings(local=kind is Kind.LOCAL)
    with _started(log):
        spark = session(master, name=name, jars=jars, config=ours | dict(config or {}))
    try:
        yield spark
    finally:
        with errors_into(log):
            spark.stop()


@contextlib.contextmanager
def connect_session(
    master: str, name: str, log: Path, *, config: Mapping[str, str]
) -> Iterator[SparkSession]:
    """The same by Spark Connect; where `master` is not `sc://`, with a server in this process."""
    need_connect()
    from onelog.spark.masters import Kind, kind_of  # noqa: PLC0415 - an extra

    if kind_of(master) is Kind.CONNECT:
        with spark_session(master, name, log, config=config) as spark:
            yield spark
        return
    with connect_server(master, name, log, config=config) as server:
        with _started(log):
            spark = server.session()
        try:
            yield spark
        finally:
            with errors_into(log):
                spark.stop()


@contextlib.contextmanager
def connect_server(
    master: str, name: str, log: Path, *, port: int = 0, config: Mapping[str, str] | None = None
) -> Iterator[ConnectServer]:
    """A Spark of this process that is connected to; it ends with the block."""
    need_connect()
    from onelog.spark.masters import Kind, kind_of  # noqa: PLC0415 - an extra
    from onelog.spark.serving import ConnectServer  # noqa: PLC0415

    ours = own_settings(local=kind_of(master) is Kind.LOCAL)
    with _started(log):
        server = ConnectServer.start(master, name=name, port=port, config=ours | dict(config or {}))
    try:
        yield server
    finally:
        with errors_into(log):
            server.stop()


def own_settings(*, local: bool) -> dict[str, str]:
    """Settings for a Spark that a command starts, besides those of every session."""
    found = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    found["spark.log.level"] = "WARN"
    if local:
        # One machine: no other machine should reach it, and a shuffle has as many parts as there
        # are cores, not the two hundred of a cluster.
        found |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        found["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 1)
    return found


def kept_catalog(folder: Path) -> dict[str, str]:
    """The settings of a catalog that outlives Spark, as the files of its tables do."""
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder / 'catalog'};create=true"
        ),
        "spark.sql.warehouse.dir": str(folder / "tables"),
        "spark.driver.extraJavaOptions": (f'"-Dderby.stream.error.file={folder / "catalog.log"}"'),
    }


@contextlib.contextmanager
def errors_into(log: Path) -> Iterator[None]:
    """Processes that are started in this block write their errors into a file while they live."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as out:
            os.dup2(out.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def environment(said: Mapping[str, str]) -> Iterator[None]:
    """Set the environment of processes that are started in this block."""
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


@contextlib.contextmanager
def _started(log: Path) -> Iterator[None]:
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - an extra

    # It would print the pages of Java of an error that is reported in one line.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        with errors_into(log):
            yield
    except OnelogError:
        raise
    except Exception as error:
        raise PipelineFailed(
            f"Spark does not start: {told(error)}; Spark's own log is {log}"
        ) from error
