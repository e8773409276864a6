"""Hadoop's S3 file system: for checkpoints in a bucket (`s3a://…`), which Spark writes by itself.

Rules: tables need none of this. The jars are those of the Hadoop that Spark has, and of Amazon's
SDK the few parts that it uses: all of it would be more than half a gigabyte. Keys never stand on
the command line of the JVM, where every user of the machine sees them: Hadoop gets them when it
runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import ConfigError
from onelog.lake.s3_access import S3_OPTIONS, s3_access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX: Final = "s3."
SDK: Final = {"3.4.2": "2.29.52", "3.5.0": "2.35.4"}
"""Amazon's SDK that a Hadoop was built with."""
PARTS: Final = ("s3", "s3-transfer-manager", "sts")
NETTY: Final = (
    "buffer", "codec", "codec-http", "codec-http2", "common", "handler", "resolver", "transport",
    "transport-classes-epoll", "transport-native-unix-common",
)  # fmt: skip
EXCLUDED: Final = (
    "software.amazon.awssdk:bundle",
    "org.slf4j:slf4j-api",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    *(f"io.netty:netty-{part}" for part in NETTY),
)
"""The whole SDK, and what Spark has already."""


def s3_packages(hadoop: str) -> tuple[str, ...]:
    """The jars for a Spark that brings this Hadoop, by Maven's coordinates."""
    sdk = (f"software.amazon.awssdk:{part}:{SDK[hadoop]}" for part in PARTS)
    return (f"org.apache.hadoop:hadoop-aws:{hadoop}", *sdk)


def split_access(
    config: Mapping[str, str], environment: Mapping[str, str], *, wanted: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """The settings that are Spark's, and what `s3.endpoint` … among them mean to Hadoop."""
    given = {name: text for name, text in config.items() if name.startswith(PREFIX)}
    rest = {name: text for name, text in config.items() if name not in given}
    if not wanted:
        if given:
            raise ConfigError(
                f"{min(given)} configures Hadoop's S3 file system: set jars = ['s3'], too"
            )
        return rest, {}
    found = s3_access(given, environment)
    told = {f"fs.s3a.{S3_OPTIONS[name].hadoop}": text for name, text in found.items()}
    if "s3.endpoint" in found:  # a name for each bucket is Amazon's way
        told["fs.s3a.path.style.access"] = "true"
    return rest, told


def tell_hadoop(spark: SparkSession, told: Mapping[str, str]) -> None:
    """Give a session its access; executors have it from there."""
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    for name, text in told.items():
        hadoop.set(name, text)
