"""The settings of a session that lives for a minute on one machine."""

from __future__ import annotations

from pathlib import Path

from pyspark import __version__ as spark_version

ROOT = Path(__file__).resolve().parents[2]
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")
"""Such a JVM does not repay the second compiler and the parallel collector."""


def local_settings(*, writes_archive: bool) -> dict[str, str]:
    """Settings of a driver; one that ends by itself may write the archive of classes."""
    return {
        "spark.driver.extraJavaOptions": " ".join((*SHORT_LIVED, *_archive(writes_archive))),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
    }


def _archive(writes: bool) -> list[str]:
    path = ROOT / "build" / "spark" / f"classes-{spark_version}.jsa"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return [f"-XX:SharedArchiveFile={path}"]
    return [f"-XX:ArchiveClassesAtExit={path}"] if writes else []
