"""Checks that the libraries of the extras are installed, before anything needs them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from onelog.base.errors import ConfigError

SPARK: Final = ("pyspark", "pyarrow", "numpy")
CONNECT: Final = (*SPARK, "pandas", "grpc", "grpc_status", "zstandard", "yaml")


def need_spark() -> None:
    """Raise ConfigError where the extra `onelog[spark]` is not installed."""
    _need(SPARK, "pipelines run on Spark", "onelog[spark]")


def need_connect() -> None:
    """Raise ConfigError where the extra `onelog[spark-connect]` is not installed."""
    _need(CONNECT, "declarative pipelines and sc:// need Spark Connect", "onelog[spark-connect]")


def _need(libraries: tuple[str, ...], what_for: str, extra: str) -> None:
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed, and"
            f" {what_for}: {sys.executable} -m pip install '{extra}'"
        )
