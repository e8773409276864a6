"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from onelog.log.syncer import Syncer


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
