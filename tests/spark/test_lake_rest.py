"""Do tables of a REST catalog keep the same promises as those of an SQL catalog?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from onelog.lake.upkeep import keep_up
from tests.spark.lakes import Lake, stage, write
from tests.spark.rest_catalog import available, rest_catalog

pytestmark = pytest.mark.spark_slow
DDL = "id BIGINT, seq BIGINT"
SCHEMA = pa.schema([("id", pa.int64()), ("seq", pa.int64())])


@dataclasses.dataclass(frozen=True)
class RestLake(Lake):
    address: str = ""

    def options(self, name: str = "t", **more: str) -> dict[str, str]:
        given = super().options(name, **more)
        del given["warehouse"]  # the server's own
        return given | {"catalog": self.address}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory) -> Iterator[str]:
    if not available():
        pytest.skip("the REST catalog is missing: run 'make conformance-spark' where Maven is")
    with rest_catalog(tmp_path_factory.mktemp("rest")) as address:
        yield address


@pytest.fixture
def lake(catalog, tmp_path, request) -> RestLake:
    return RestLake("iceberg", tmp_path, catalog)


def rows(*numbers: int, seq: int = 0) -> list[dict[str, object]]:
    return [{"id": n, "seq": seq} for n in numbers]


def test_batches_are_there_once_upserted_and_kept_up(lake):
    sink = lake.sink(DDL, "a", partitionBy="bucket(4, id)")
    assert write(sink, SCHEMA, "q", 0, rows(1, 2), rows(3))
    assert write(sink, SCHEMA, "q", 1, rows(4))
    assert not write(lake.sink(DDL, "a"), SCHEMA, "q", 1, rows(4))
    assert sorted(row["id"] for row in lake.rows("a")) == [1, 2, 3, 4]
    keep_up(lake.parsed("a"))
    assert sorted(row["id"] for row in lake.rows("a")) == [1, 2, 3, 4]


def test_the_latest_by_key_and_new_columns(lake):
    merge = {"mode": "upsert", "keys": "id", "orderBy": "seq"}
    write(lake.sink(DDL, "b", **merge), SCHEMA, "q", 0, rows(1, 2), rows(1, seq=5))
    wider = SCHEMA.append(pa.field("more", pa.string()))
    sink = lake.sink(DDL + ", more STRING", "b", **merge)
    write(sink, wider, "q", 1, [{"id": 2, "seq": 9, "more": "x"}, {"id": 1, "seq": 1, "more": "y"}])
    found = {row["id"]: (row["seq"], row["more"]) for row in lake.rows("b")}
    assert found == {1: (5, None), 2: (9, "x")}


def test_two_drivers_that_commit_the_same_batch_at_once_write_it_once(lake):
    first, second = lake.sink(DDL, "c"), lake.sink(DDL, "c")
    for batch in range(3):
        staged = [(one, stage(one, SCHEMA, "q", rows(batch))) for one in (first, second)]
        with ThreadPoolExecutor(2) as pool:
            done = list(pool.map(lambda pair, n=batch: pair[0].commit(pair[1], "q", n), staged))
        assert sorted(done) == [False, True]
    assert sorted(row["id"] for row in lake.rows("c")) == [0, 1, 2]
