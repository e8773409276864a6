"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def empty_place(tmp_path, monkeypatch) -> None:
    """A folder where nothing is, and no settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in ("ONELOG_CONFIG", "ONELOG_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
