"""The example of one copy: its exit code is 0 only when each message lies in the bucket once."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onelog.objects.store import StoreSettings, open_store
from tests.batches import make_batch
from tests.conformance.mqtt_brokers import ROOT, environment
from tests.support.pieces import put_piece

EXAMPLE = ROOT / "examples" / "one-copy"
FORMATS = ("log", "iceberg", "delta")
READINGS = 50
MESSAGES = 20 * READINGS
RUN_S = 300


def run_examples(*words: str) -> dict[str, str]:
    """What it prints for each format; they run together, because they mostly wait for timers."""
    command = [sys.executable, str(EXAMPLE / "run.py"), "--readings", str(READINGS), *words]
    running = {
        table_format: subprocess.Popen(
            [*command, "--format", table_format],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for table_format in FORMATS
    }  # fmt: skip
    printed = {}
    for table_format, process in running.items():
        with process:
            printed[table_format], _nothing = process.communicate(timeout=RUN_S)
            assert process.returncode == 0, printed[table_format]
    return printed


def test_kafka_replays_what_lies_in_the_bucket_once():
    for printed in run_examples("--no-sql").values():
        assert f"a Kafka group that is new: {MESSAGES:,} messages of 20 devices" in printed
        assert f"the bucket: {MESSAGES:,} messages, each once" in printed


@pytest.mark.spark_slow
def test_sql_counts_the_same_files():
    for printed in run_examples().values():
        assert f"SQL, over the same files: {MESSAGES:,} messages of 20 devices" in printed
        assert f"the bucket: {MESSAGES:,} messages, each once" in printed


@pytest.fixture
def looking(monkeypatch) -> ModuleType:
    """The module of the example that reads the bucket."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "bucket", raising=False)
    found = importlib.import_module("bucket")
    monkeypatch.delitem(sys.modules, "bucket")
    return found


@pytest.fixture
def bucket(tmp_path) -> Path:
    """Ten messages in a piece, and ten more in a file of a table."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    store = open_store(StoreSettings(url=f"file://{folder}"))
    put_piece(store, "t/28/orders-1/0/one.p", 0, 10, [make_batch(0, 4), make_batch(4, 6)])
    (folder / "lake").mkdir()
    rows = {"partition": pa.array([1] * 10), "offset": pa.array(range(10))}
    pq.write_table(pa.table(rows), folder / "lake" / "one.parquet")
    return folder


ENDS = {0: 10, 1: 10}
LOG_BYTES = 2_000


def test_every_offset_in_the_bucket_counts_once(looking, bucket):
    assert set(looking.copies(bucket).values()) == {1}
    size = looking.check_once(bucket, ENDS, LOG_BYTES)
    assert size == sum(path.stat().st_size for path in bucket.rglob("*.p*"))


@pytest.mark.parametrize("name", ["t/28/orders-1/0/one.p", "lake/one.parquet"])
def test_a_second_copy_that_nobody_names_is_found(looking, bucket, name):
    path = bucket / name
    shutil.copy(path, path.with_stem("two"))
    with pytest.raises(looking.NotOnce, match="10 messages are in the bucket again"):
        looking.check_once(bucket, ENDS, LOG_BYTES)


@pytest.mark.parametrize("name", ["t/28/orders-1/0/one.p", "lake/one.parquet"])
def test_a_message_that_is_not_in_the_bucket_is_found(looking, bucket, name):
    (bucket / name).unlink()
    with pytest.raises(looking.NotOnce, match="10 messages are not in the bucket"):
        looking.check_once(bucket, ENDS, LOG_BYTES)


def test_bytes_that_are_no_messages_are_bounded(looking, bucket):
    (bucket / "more").write_bytes(bytes(looking.BOUND_BYTES + LOG_BYTES))
    with pytest.raises(looking.NotOnce, match="more than"):
        looking.check_once(bucket, ENDS, LOG_BYTES)


def test_offsets_that_the_log_has_not_are_found(looking, bucket):
    with pytest.raises(looking.NotOnce, match=r"\(0, 9\) is one"):
        looking.check_once(bucket, {0: 9, 1: 10}, LOG_BYTES)
