"""Whether the libraries of the extra are there; said in words before anything needs them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from onelog.base.errors import ConfigError

LIBRARIES: Final = ("pyspark", "pyarrow", "numpy")


def need_spark() -> None:
    """Raise ConfigError where the extra `onelog[spark]` is not installed."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed, and"
            " pipelines run on Spark: pip install 'onelog[spark]'"
        )
