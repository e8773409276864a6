"""The Spark session that OneLog's sources and sinks want, on one machine or on a cluster.

Rules: every setting here has a reason, speed or correctness, which stands beside it. The caller's
`config` takes precedence over all of them. Jars are never needed; they are an option for users who
want Iceberg's or Delta's own SQL, or Spark's Kafka source, beside ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from onelog.base.errors import ConfigError
from onelog.spark.connect import connect
from onelog.spark.java import java_home
from onelog.spark.masters import Kind, find_master
from onelog.spark.s3_jars import EXCLUDED, s3_packages, split_access, tell_hadoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Settings = dict[str, str]
CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Jars(Enum):
    """Sets of jars that a session can be given by name; Spark fetches them by Maven's rules."""

    ICEBERG = "iceberg"
    DELTA = "delta"
    KAFKA = "kafka"
    S3 = "s3"


SETTINGS: dict[str, str] = {
    # A Python task over TCP costs twice of one over a socket file.
    "spark.python.unix.domain.socket.enabled": "true",
    # A source that offers filters fails where Spark does not ask for them.
    "spark.sql.python.filterPushdown.enabled": "true",
    # A record's time is a moment; it must not depend on where the driver stands.
    "spark.sql.session.timeZone": "UTC",
    # State outside the heap: a large table of keys must not stop the driver.
    "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
}

LOCAL_SETTINGS: dict[str, str] = {
    # On a local disk Spark's other way starts `chmod` twice for each file of a checkpoint: that is
    # half of the time of a small micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
}

YARN_SETTINGS: dict[str, str] = {
    # The directories of YARN's containers have names too long for a socket file.
    "spark.python.unix.domain.socket.dir": "/tmp",  # noqa: S108 - each file has a name of its own
}

MASTER_SETTINGS: dict[Kind, dict[str, str]] = {
    Kind.LOCAL: LOCAL_SETTINGS,
    Kind.YARN: YARN_SETTINGS,
}

# Which runtimes exist, by the line of Spark. A line without a row has none that works.
PACKAGES: dict[Jars, dict[str, tuple[str, ...]]] = {
    Jars.ICEBERG: {
        "4.1": (
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
            "org.xerial:sqlite-jdbc:3.50.3.0",
        ),
    },
    Jars.DELTA: {"4.1": ("io.delta:delta-spark_4.1_2.13:4.4.0",)},
    Jars.KAFKA: dict.fromkeys(
        ("4.1", "4.2", "4.3"), ("org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",)
    ),
    Jars.S3: {
        "4.1": s3_packages("3.4.2"),
        "4.2": s3_packages("3.5.0"),
        "4.3": s3_packages("3.5.0"),
    },
}
EXTENSIONS: dict[Jars, str] = {
    Jars.ICEBERG: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    Jars.DELTA: "io.delta.sql.DeltaSparkSessionExtension",
}
JAR_SETTINGS: dict[Jars, dict[str, str]] = {
    Jars.DELTA: {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    },
    Jars.S3: {
        "spark.jars.excludes": ",".join(EXCLUDED),
        # Spark's other way asks for renames that a bucket has not.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    },
}


def session(
    master: str = "local[*]",
    *,
    name: str = "onelog",
    jars: Sequence[Jars | str] = (),
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session; the one that runs already is given back, as Spark does.

    `master` is a Spark master (`local[*]`, `spark://…`, `k8s://…`, `yarn`) or a Spark Connect
    address (`sc://…`). `jars` are names of `Jars` or Maven coordinates `group:artifact:version`;
    with `s3` among them `config` may have `s3.endpoint` … as of tables, or AWS's environment is
    asked.
    """
    try:
        import pyspark  # noqa: PLC0415 - an extra: said in words where it is missing
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("PySpark is missing: install 'onelog[spark]'") from error
    kind = find_master(master)
    if kind is Kind.CONNECT:
        if jars:
            raise ConfigError(
                "jars: a Spark that runs already cannot load them; start it with these jars"
            )
        return connect(master, SETTINGS, config or {})
    # A worker takes `python3` from the path otherwise, which may be another Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(java_home())
    has_s3 = any(asked in (Jars.S3, Jars.S3.value) for asked in jars)
    own, access = split_access(config or {}, os.environ, wanted=has_s3)
    wanted = settings(pyspark.__version__, jars) | MASTER_SETTINGS.get(kind, {}) | own
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    tell_hadoop(made, access)
    return made


def iceberg_catalog(catalog: str, warehouse: str | None = None, name: str = "onelog") -> Settings:
    """The settings by which Spark SQL, with Iceberg's jar, sees the tables of a catalog.

    `catalog`, `warehouse` and `name` are the options `catalog`, `warehouse` and `catalogName` of
    `format("onelog-table")`; tables are then `name.namespace.table`.
    """
    prefix = f"spark.sql.catalog.{name}"
    wanted = {prefix: "org.apache.iceberg.spark.SparkCatalog"}
    if catalog.startswith(("http://", "https://")):
        wanted |= {f"{prefix}.type": "rest", f"{prefix}.uri": catalog}
    else:
        address, user, password = _jdbc(catalog)
        wanted |= {f"{prefix}.type": "jdbc", f"{prefix}.uri": address}
        wanted |= {f"{prefix}.jdbc.schema-version": "V1"}
        if user:
            wanted |= {f"{prefix}.jdbc.user": user, f"{prefix}.jdbc.password": password}
    if warehouse is not None:
        wanted[f"{prefix}.warehouse"] = warehouse if "://" in warehouse else f"file://{warehouse}"
    return wanted


def _jdbc(catalog: str) -> tuple[str, str, str]:
    """The address of an SQL catalog in Java's words, the user, and the password."""
    parts = urlsplit(catalog)
    kind = parts.scheme.partition("+")[0]
    if kind == "sqlite":
        return f"jdbc:sqlite:{parts.path.removeprefix('/')}", "", ""
    if kind != "postgresql":
        raise ConfigError(f"catalog: {parts.scheme} is unknown: sqlite, postgresql, http or https")
    host = parts.netloc.rpartition("@")[2]
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return f"jdbc:postgresql://{host}{parts.path}", user, password


def settings(version: str, jars: Sequence[Jars | str] = ()) -> dict[str, str]:
    """The settings of a session of this PySpark, with these jars."""
    line = ".".join(version.split(".")[:2])
    wanted = dict(SETTINGS)
    packages: list[str] = []
    extensions: list[str] = []
    for asked in jars:
        if isinstance(asked, str) and ":" in asked:
            packages.append(asked)
            continue
        known = _known_jars(asked)
        packages += [text.format(version=version) for text in _packages(known, line)]
        if known in EXTENSIONS:
            extensions.append(EXTENSIONS[known])
        wanted |= JAR_SETTINGS.get(known, {})
    if packages:
        wanted["spark.jars.packages"] = ",".join(packages)
    if extensions:
        wanted["spark.sql.extensions"] = ",".join(extensions)
    return wanted


def _known_jars(asked: Jars | str) -> Jars:
    try:
        return Jars(asked)
    except ValueError:
        names = ", ".join(known.value for known in Jars)
        raise ConfigError(
            f"jars: {asked!r} is neither one of {names} nor group:artifact:version"
        ) from None


def _packages(jars: Jars, line: str) -> tuple[str, ...]:
    lines = PACKAGES[jars]
    if line not in lines:
        raise ConfigError(
            f"jars: {jars.value} has no runtime for Spark {line}, only for {', '.join(lines)}: "
            f"install pyspark=={next(iter(lines))}.*, or write the table without jars"
        )
    return lines[line]
