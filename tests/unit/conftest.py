"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.base.clock import SystemClock
from onelog.log.syncer import Syncer
from onelog.metadata.local import LocalStore
from tests.support.cluster_nodes import Nodes


@pytest.fixture
def empty_place(tmp_path, monkeypatch) -> None:
    """A folder where nothing is, and no settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in ("ONELOG_CONFIG", "ONELOG_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def syncer() -> AsyncIterator[Syncer]:
    """The threads that sync, for the length of a test."""
    syncer = Syncer(2)
    yield syncer
    await syncer.close()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Brokers of one cluster in this process; a test starts those that it wants."""
    store = await LocalStore.open(tmp_path / "cluster.db", SystemClock())
    made = Nodes(tmp_path, store)
    yield made
    for number in [*made.running]:
        await made.stop(number)
    await store.close()
