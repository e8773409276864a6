"""Spark Connect: a session of a Spark that runs already.

Rules: some settings count only when Spark starts. For a Spark that runs already, our own settings
of that kind are left out, and such a setting of the user is an error. Ending a session does not end
the server.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from onelog.base.errors import ConfigError, Unavailable
from onelog.spark.masters import find_master, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTRA: Final = "onelog[spark-connect]"
READY_S: Final = 30.0


def connect(address: str, ours: Mapping[str, str], config: Mapping[str, str]) -> SparkSession:
    """A session of the Spark at `sc://…`, with all of `config` and what is possible of `ours`."""
    _find_server(address)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    spark = SparkSession.builder.remote(address).getOrCreate()
    _tell(spark, ours, config)
    return spark


def need_connect() -> None:
    """Raise ConfigError where what Spark Connect needs is not installed."""
    try:
        import pyspark.sql.connect.session  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        missing = getattr(error, "name", None) or "PySpark's Connect"
        raise ConfigError(
            f"{missing} is not installed, and Spark Connect needs it:"
            f" {sys.executable} -m pip install '{EXTRA}'"
        ) from error


def _find_server(address: str) -> None:
    """That a Spark Connect server is there; Spark itself would look for it for ten minutes."""
    need_connect()
    find_master(address)
    import grpc  # noqa: PLC0415 - an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

    try:
        channel = DefaultChannelBuilder(address).toChannel()
    except PySparkException as error:
        raise ConfigError(f"master {shown(address)!r}: {error}") from None
    try:
        grpc.channel_ready_future(channel).result(timeout=READY_S)
    except grpc.FutureTimeoutError:
        raise Unavailable(
            f"master {shown(address)}: somebody listens there, but it is no Spark"
            " Connect server that takes us (a token needs TLS, except at localhost)"
        ) from None
    finally:
        channel.close()


def _tell(spark: SparkSession, ours: Mapping[str, str], config: Mapping[str, str]) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    for key, value in ours.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    for key, value in config.items():
        try:
            spark.conf.set(key, value)
        except PySparkException as error:
            raise ConfigError(
                f"{key} counts only when Spark starts, and this Spark runs already: drop it, or"
                f" set it there ({str(error).splitlines()[0]})"
            ) from None
