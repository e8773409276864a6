"""A Spark in this process that clients reach by Spark Connect.

Rules: the Spark has the settings of `onelog.spark.session`. It listens on loopback only, for
clients that have its token. It ends with this process, however that ends.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, cast

from onelog.spark.connect import need_connect
from onelog.spark.sessions import Jars, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVER_SETTINGS: Final = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
}
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - the name of a variable
_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""By it `pyspark.sql` knows that its functions are to be Connect's."""


class ConnectServer:
    """A Spark of this process that others, and this process itself, connect to."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self._spark = spark
        self.address = address

    @classmethod
    def start(
        cls,
        master: str,
        *,
        name: str = "onelog",
        port: int = 0,
        jars: Sequence[Jars | str] = (),
        config: Mapping[str, str] | None = None,
    ) -> Self:
        """Start it; with port 0 on one that is free."""
        token, before = secrets.token_urlsafe(24), os.environ.get(_TOKEN)
        settings = {**SERVER_SETTINGS, "spark.connect.grpc.binding.port": str(port)}
        # A setting would be part of Java's command line, which every user of the machine can read.
        os.environ[_TOKEN] = token
        try:
            spark = session(master, name=name, jars=jars, config=settings | dict(config or {}))
        finally:
            if before is None:
                del os.environ[_TOKEN]
            else:
                os.environ[_TOKEN] = before
        service = "org.apache.spark.sql.connect.service.SparkConnectService$"
        bound = getattr(getattr(cast("Any", spark)._jvm, service), "MODULE$").localPort()
        # Without encryption a token is sent to this name only.
        return cls(spark, f"sc://localhost:{bound}/;token={token}")

    def session(self) -> SparkSession:
        """A session for this process, beside the one that the server lives in."""
        need_connect()
        from pyspark.sql.connect.session import SparkSession as Remote  # noqa: PLC0415 - an extra

        os.environ[_MODE] = "1"
        return cast("SparkSession", Remote.builder.remote(self.address).create())

    def stop(self) -> None:
        """End it, and every session of it."""
        os.environ.pop(_MODE, None)
        self._spark.stop()
