"""Tiers and tables on SeaweedFS: the store is killed and started again at each step; so is the
broker, and the lake process. Every record is there once, and nothing lies there unnamed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onelog.base import faults
from onelog.base.errors import ColdUnavailable
from onelog.objects.store import ObjectStore, StoreSettings, open_store
from onelog.objects.sweeping import sweep
from onelog.storage.tiered import TieredEngine, stored_partition
from tests.batches import append, fill, make_batch, read_all, spans
from tests.fault.tiered_child import TRIMMED
from tests.support.lakehouses import LakeSite, table_settings
from tests.support.s3_server import S3Server, available, s3_server
from tests.support.store_proxy import StoreProxy, store_proxy
from tests.support.tiers import KEY, SMALL, Owner, move_all, tiered, upload_all

pytest.importorskip("obstore")
pytestmark = pytest.mark.skipif(not available(), reason="SeaweedFS is not installed")

WAIT_S = 90.0
CHILD_S = 120.0
DIED = 137
FORMATS = ("iceberg", "delta")
METADATA = {"iceberg": "/metadata/", "delta": "/_delta_log/"}


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.bucket("kills")
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[StoreProxy]:
    with store_proxy(s3.endpoint) as between:
        yield between


@pytest.fixture
def url() -> str:
    return f"s3://kills/{uuid.uuid4()}"


class Kill:
    """Kills the store once, and starts it again."""

    def __init__(self, server: S3Server, after: int = 0) -> None:
        self._server = server
        self._after = after
        self._lock = threading.Lock()
        self._starting: threading.Thread | None = None

    def __call__(self) -> None:
        with self._lock:
            self._after -= 1
            if self._starting is not None or self._after >= 0:
                return
            self._server.kill()
            self._starting = threading.Thread(target=self._server.start)
            self._starting.start()

    def join(self) -> None:
        """Wait until it is there again."""
        assert self._starting is not None, "the store was not killed"
        self._starting.join()


def until_done(step: Callable[[], Any]) -> Any:
    """As a broker does: what the store did not do is tried again."""
    ends = time.monotonic() + WAIT_S
    while True:
        try:
            return step()
        except ColdUnavailable:
            assert time.monotonic() < ends, "nothing goes on"
            time.sleep(0.2)


def opened(s3: S3Server, url: str) -> ObjectStore:
    return open_store(StoreSettings(url=url, options=s3.store_options, deadline_ms=2000))


def settle(log: Any) -> None:
    log.tier.settle(int(time.time() * 1000) + 10_000_000, 0)


def check_tier(engine: TieredEngine, log: Any, start: int, end: int) -> None:
    """Every record once, in order; after a sweep, what lies there is named."""
    assert (log.start_offset, log.end_offset) == (start, end)
    assert spans(until_done(lambda: read_all(log))) == [(at, at) for at in range(start, end)]
    until_done(lambda: settle(log))
    until_done(lambda: sweep(engine.store, engine.keepers(), age_ms=-10_000))
    named = {row.object for row in log.cold_rows(0, end)}
    assert {row.name for row in engine.store.list("t/")} == named
    assert {row.object for row in stored_partition(engine.store, KEY).manifest.rows} == named


STORE_KILLS = [
    pytest.param("tier.manifest", 1, marks=pytest.mark.fault),
    *(
        pytest.param(point, after, marks=pytest.mark.fault_long)
        for point, after in (
            ("store.put", 0), ("store.put", 3), ("store.put.after", 0), ("store.put.after", 4),
            ("tier.manifest", 0), ("tier.local", 1), ("tier.trim", 0), ("doom.delete", 0),
            ("store.delete", 0), ("store.get", 0),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("point", "after"), STORE_KILLS)
def test_a_tier_loses_nothing_when_the_store_is_killed_at_a_step(s3, url, tmp_path, point, after):
    engine = tiered(tmp_path / "data", opened(s3, url))
    log = engine.open(KEY, SMALL)
    kill = Kill(s3, after)
    faults.arm(point, kill)
    try:
        fill(log, 100)
        log.sync()
        until_done(lambda: upload_all(log))
        log.tier.trim_local(log.end_offset)
        fill(log, 60)
        log.sync()
        log.trim(TRIMMED)
        until_done(lambda: settle(log))
        until_done(lambda: move_all(log))
        assert len(spans(until_done(lambda: read_all(log)))) == 160 - TRIMMED
        until_done(log.tier.bring_back)
    finally:
        faults.disarm()
        kill.join()
    check_tier(engine, log, TRIMMED, 160)
    engine.close()


def child(module: str, s3: S3Server, url: str, *words: str, point: str = "") -> str:
    """A process that dies at a point; what it said."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.fault.{module}", *words],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "ONELOG_FAULTS": point,
            "STORE_URL": url,
            "STORE_OPTIONS": json.dumps(s3.store_options),
        },
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
    assert done.returncode == DIED, done.stdout + done.stderr
    return done.stdout


BROKER_KILLS = [
    pytest.param("tier.manifest=exit:2", marks=pytest.mark.fault),
    *(
        pytest.param(f"{point}=exit:{after}", marks=pytest.mark.fault_long)
        for point, after in (
            ("store.put", 0), ("store.put", 5), ("store.put.after", 0), ("store.put.after", 6),
            ("tier.manifest", 0), ("tier.local", 0), ("tier.local", 5), ("tier.trim", 0),
            ("doom.delete", 0), ("store.delete", 0),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("point", BROKER_KILLS)
def test_a_broker_that_is_killed_at_a_step_finds_everything_in_the_bucket(s3, url, tmp_path, point):
    lines = child("tiered_child", s3, url, str(tmp_path), point=point).split("\n")[:-1]
    synced = max([int(line.split()[1]) for line in lines if line.startswith("synced")], default=0)
    engine = tiered(tmp_path / "data", opened(s3, url))
    log = engine.open(KEY, SMALL)
    assert log.end_offset >= synced
    fill(log, 60)
    move_all(log)
    check_tier(engine, log, int(log.start_offset), int(log.end_offset))
    engine.close()


def write(log: Any, count: int) -> None:
    for _ in range(count):
        append(log, make_batch(log.end_offset, 10, size=400))
    log.roll()
    log.sync()


def lake_site(s3: S3Server, tmp_path: Path, table_format: str, url: str, endpoint: str) -> LakeSite:
    options = {**s3.store_options, "aws_endpoint": endpoint}
    return LakeSite(tmp_path, table_format, url, options, s3.options)


def check_table(site: LakeSite, log: Any, end: int) -> None:
    """Each record is a row once, and a batch once; frames lie there only if a manifest names them.

    Files that a commit did not name go with the upkeep of the table, a day later.
    """
    assert site.offsets() == list(range(end))
    log.tier.trim_local(log.end_offset)
    assert [last + 1 for _, last in spans(read_all(log))][-1] == end
    (engine, _lake) = site._open[-1]
    until_done(lambda: sweep(engine.store, engine.keepers(), age_ms=-10_000))
    named = {row.object for row in log.cold_rows(0, end)}
    assert {row.name for row in engine.store.list("f/")} == named


def go_on(site: LakeSite, log: Any) -> None:
    """After a kill over the first 30 records: ten more, and all of them are in the table."""
    write(log, 1)
    while log.tier.status().cold_end_offset < 40:
        until_done(lambda: log.tier.upload(log.end_offset, Owner()))
    check_table(site, log, 40)


LAKE_STEPS = [
    (table_format, kind, path)
    for table_format in FORMATS
    for path in (".parquet", "/f/", METADATA[table_format], "/m/")
    for kind in ("before", "after")
]


@pytest.mark.fault_long
@pytest.mark.parametrize(("table_format", "kind", "path"), LAKE_STEPS)
def test_a_table_has_each_row_once_when_the_store_is_killed_at_a_step(
    s3, proxy, url, tmp_path, table_format, kind, path
):
    site = lake_site(s3, tmp_path, table_format, url, proxy.endpoint)
    kill = Kill(s3)
    try:
        log = site.engine().open(KEY, table_settings(table_format))
        write(log, 3)
        assert until_done(lambda: log.tier.upload(log.end_offset, Owner())).end == 30
        write(log, 3)
        proxy.fault(kind, 1, method="PUT", path=path, call=kill)
        until_done(lambda: log.tier.upload(log.end_offset, Owner()))
        kill.join()
        write(log, 1)
        assert until_done(lambda: log.tier.upload(log.end_offset, Owner())).end == 70
        check_table(site, log, 70)
    finally:
        site.close()


@pytest.mark.fault_long
@pytest.mark.parametrize("point", ["store.put", "tier.manifest", "tier.local"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_broker_that_is_killed_leaves_each_row_once_in_the_bucket(
    s3, url, tmp_path, table_format, point
):
    child("lakehouse_child", s3, url, str(tmp_path), table_format, point, "disk")
    site = lake_site(s3, tmp_path, table_format, url, s3.endpoint)
    try:
        log = site.engine().open(KEY, table_settings(table_format))
        go_on(site, log)
    finally:
        site.close()


@pytest.mark.fault_long
@pytest.mark.parametrize("point", ["lake.file", "lake.commit", "lake.commit.after"])
@pytest.mark.parametrize("table_format", FORMATS)
def test_a_lake_process_that_is_killed_leaves_each_row_once_in_the_bucket(
    s3, url, tmp_path, table_format, point
):
    site = lake_site(s3, tmp_path, table_format, url, s3.endpoint)
    try:
        log = site.engine(faults=f"{point}=exit").open(KEY, table_settings(table_format))
        write(log, 3)
        with pytest.raises(ColdUnavailable):
            log.tier.upload(log.end_offset, Owner())
        site.close()
        log = site.engine().open(KEY, table_settings(table_format))
        go_on(site, log)
    finally:
        site.close()
