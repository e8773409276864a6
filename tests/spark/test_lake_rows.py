"""Do upserts keep the latest row of each key, do columns evolve, and where do bad rows go?"""

from __future__ import annotations

import datetime
import json
import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyiceberg.types import StringType as IcebergString
from pyspark.sql.types import LongType, StringType, StructField, StructType

from onelog.base.errors import ConfigError, InvalidRequest
from onelog.lake.file_rows import FileRows
from onelog.lake.options import OPTIONS, parse_options
from onelog.spark.lakehouse.sink import TableSink
from tests.spark.lakes import FORMATS, WITH_UPSERT, Lake, stage, write
from tests.spark.lines import ROOT

DDL = "id BIGINT, seq BIGINT, value STRING"
SCHEMA = pa.schema([("id", pa.int64()), ("seq", pa.int64()), ("value", pa.string())])
UPSERT = {"mode": "upsert", "keys": "id", "orderBy": "seq"}


@pytest.fixture(params=FORMATS)
def lake(request, tmp_path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture(params=WITH_UPSERT)
def upserted(request, tmp_path) -> Lake:
    return Lake(request.param, tmp_path)


def row(key: int | None, seq: int, value: str | None = None) -> dict[str, object]:
    return {"id": key, "seq": seq, "value": value or f"{key}@{seq}"}


def found(lake: Lake, name: str = "t") -> dict[int, str]:
    rows = lake.rows(name)
    assert len({one["id"] for one in rows}) == len(rows), "a key is there twice"
    return {one["id"]: one["value"] for one in rows}


# -- upsert


def test_the_latest_row_of_each_key_stays_within_a_task_over_tasks_and_over_batches(upserted):
    sink = upserted.sink(DDL, **UPSERT)
    write(sink, SCHEMA, "q", 0, [row(1, 1), row(1, 3), row(1, 2)], [row(2, 1), row(1, 4)])
    assert found(upserted) == {1: "1@4", 2: "2@1"}
    write(sink, SCHEMA, "q", 1, [row(2, 5), row(3, 1)])
    assert found(upserted) == {1: "1@4", 2: "2@5", 3: "3@1"}


def opened(monkeypatch) -> list[str]:
    """The files of tables that are opened from now on."""
    seen: list[str] = []
    real = FileRows.read

    def read(self: FileRows) -> pa.Table:
        seen.append(self.path)
        return real(self)

    monkeypatch.setattr(FileRows, "read", read)
    return seen


def test_files_that_hold_no_key_of_a_batch_by_their_statistics_are_not_opened(
    upserted, monkeypatch
):
    sink = upserted.sink(DDL, **UPSERT)
    for number in range(10):
        write(sink, SCHEMA, "q", number, [row(10 * number, 1), row(10 * number + 5, 1)])
    assert len(upserted.open().files()) == 10
    seen = opened(monkeypatch)
    write(sink, SCHEMA, "q", 10, [row(35, 2), row(1_000, 1), row(62, 1)])
    # In the ranges of two files; one of them holds the key and is written anew.
    assert len(set(seen)) == 2
    monkeypatch.undo()
    held = {10 * number + more: 1 for number in range(10) for more in (0, 5)}
    held |= {35: 2, 1_000: 1, 62: 1}
    assert found(upserted) == {key: f"{key}@{seq}" for key, seq in held.items()}


@pytest.mark.parametrize("keys", ["name", "name,id", "day", "at", "raw"])
def test_pruned_upserts_end_with_the_same_rows_whatever_the_keys_are(upserted, monkeypatch, keys):
    chance = random.Random(keys)
    ddl = "id BIGINT, seq BIGINT, name STRING, day DATE, at TIMESTAMP, raw BINARY"
    schema = pa.schema([
        ("id", pa.int64()), ("seq", pa.int64()), ("name", pa.string()), ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")), ("raw", pa.binary()),
    ])  # fmt: skip
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)

    def made(number: int, seq: int) -> dict[str, object]:
        # Longer than the 16 characters and bytes that bounds are cut at, and past ASCII.
        name = ("\U0001f600é" * 9 if number % 2 else "n" * 20) + f"{number:04d}"
        time = noon + datetime.timedelta(days=number, microseconds=number)
        return {"id": number, "seq": seq, "name": name, "day": time.date(), "at": time,
                "raw": b"\xff" * 20 + number.to_bytes(2, "big")}  # fmt: skip

    sink = upserted.sink(ddl, mode="upsert", keys=keys, orderBy="seq")
    wanted: dict[int, int] = {}
    seen = opened(monkeypatch)
    for batch in range(12):
        first = chance.randrange(60)
        numbers = chance.sample(range(first, first + 12), 5)
        write(sink, schema, "q", batch, [made(number, batch) for number in numbers])
        wanted |= dict.fromkeys(numbers, batch)
    assert seen
    assert sorted((one["id"], one["seq"]) for one in upserted.rows()) == sorted(wanted.items())


def test_a_row_that_is_older_than_the_tables_changes_nothing(upserted):
    sink = upserted.sink(DDL, **UPSERT)
    write(sink, SCHEMA, "q", 0, [row(1, 9), row(2, 1)])
    write(sink, SCHEMA, "q", 1, [row(1, 3)], [row(2, 2)])
    assert found(upserted) == {1: "1@9", 2: "2@2"}


def test_a_batch_whose_rows_are_all_too_old_still_leaves_its_mark(upserted):
    sink = upserted.sink(DDL, **UPSERT)
    write(sink, SCHEMA, "q", 0, [row(1, 9)])
    assert write(sink, SCHEMA, "q", 1, [row(1, 3)])
    assert found(upserted) == {1: "1@9"}
    assert upserted.open().mark("q") == 1


def test_of_equals_the_one_that_came_last_stays(upserted):
    sink = upserted.sink(DDL, **UPSERT)
    write(sink, SCHEMA, "q", 0, [row(1, 1, "first"), row(1, 1, "second")])
    assert found(upserted) == {1: "second"}
    write(sink, SCHEMA, "q", 1, [row(1, 1, "third")])
    assert found(upserted) == {1: "third"}


def test_a_replayed_upsert_is_dropped(upserted):
    sink = upserted.sink(DDL, **UPSERT)
    write(sink, SCHEMA, "q", 0, [row(1, 1)])
    write(sink, SCHEMA, "q", 1, [row(1, 2)])
    assert not write(sink, SCHEMA, "q", 1, [row(1, 2, "again")])
    assert found(upserted) == {1: "1@2"}


def test_files_without_a_changed_key_stay_as_they_are(upserted):
    sink = upserted.sink(DDL, **UPSERT)
    write(sink, SCHEMA, "q", 0, [row(n, 1) for n in range(10)])
    write(sink, SCHEMA, "q", 1, [row(n, 1) for n in range(10, 20)])
    before = {file.path for file in upserted.open().files()}
    write(sink, SCHEMA, "q", 2, [row(15, 2)])
    after = {file.path for file in upserted.open().files()}
    assert len(before & after) == 1
    assert found(upserted)[15] == "15@2"
    assert len(found(upserted)) == 20


def test_deletes_take_their_keys_out(upserted):
    ddl = DDL + ", gone BOOLEAN"
    schema = SCHEMA.append(pa.field("gone", pa.bool_()))
    sink = upserted.sink(ddl, **UPSERT, deleteColumn="gone")
    write(
        sink,
        schema,
        "q",
        0,
        [row(1, 1) | {"gone": None}, row(2, 1) | {"gone": False}, row(3, 1) | {"gone": True}],
    )
    assert found(upserted) == {1: "1@1", 2: "2@1"}
    write(sink, schema, "q", 1, [row(1, 2) | {"gone": True}], [row(2, 0) | {"gone": True}])
    assert found(upserted) == {2: "2@1"}
    assert "gone" not in upserted.open().layout.schema.names


def test_an_overwrite_keeps_the_latest_of_its_own_rows_only(upserted):
    ddl, schema = DDL + ", gone BOOLEAN", SCHEMA.append(pa.field("gone", pa.bool_()))
    write(upserted.sink(DDL, **UPSERT), SCHEMA, "q", 0, [row(1, 99), row(5, 1)])
    sink = upserted.sink(ddl, overwrite=True, **UPSERT, deleteColumn="gone")
    tasks = [[row(1, 2), row(2, 1)], [row(1, 3), row(2, 2) | {"gone": True}]]
    write(sink, schema, "other", 0, *tasks)
    assert found(upserted) == {1: "1@3"}


def test_keys_of_several_columns_in_a_partitioned_table(upserted):
    options = {"mode": "upsert", "keys": "id,value", "orderBy": "seq", "partitionBy": "value"}
    sink = upserted.sink(DDL, **options)
    write(sink, SCHEMA, "q", 0, [row(1, 1, "a"), row(1, 1, "b"), row(2, 1, "a")])
    write(sink, SCHEMA, "q", 1, [row(1, 2, "a"), row(3, 1, "c")])
    rows = sorted((one["id"], one["value"], one["seq"]) for one in upserted.rows())
    assert rows == [(1, "a", 2), (1, "b", 1), (2, "a", 1), (3, "c", 1)]


def test_any_sequence_of_upserts_is_what_a_dictionary_says(upserted):
    chance = random.Random(7)
    sink = upserted.sink(DDL, **UPSERT)
    model: dict[int, tuple[int, str]] = {}
    for batch in range(8):
        tasks = []
        for task in range(chance.randint(1, 3)):
            rows = []
            for number in range(chance.randint(0, 30)):
                key, seq = chance.randint(0, 25), chance.randint(0, 1000) * 10 + batch
                value = f"{batch}-{task}-{number}"
                rows.append(row(key, seq, value))
            tasks.append(rows)
        for one in (one for rows in tasks for one in rows):
            if one["seq"] >= model.get(one["id"], (-1, ""))[0]:
                model[one["id"]] = (one["seq"], one["value"])
        write(sink, SCHEMA, "q", batch, *tasks)
        assert found(upserted) == {key: value for key, (_, value) in model.items()}


def test_two_upserts_that_race_leave_every_key_once(upserted):
    upserted.sink(DDL, **UPSERT)

    def many(number: int) -> None:
        sink = upserted.sink(DDL, **UPSERT)
        for batch in range(3):
            write(
                sink, SCHEMA, f"q{number}", batch, [row(n, batch * 10 + number) for n in range(5)]
            )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(many, [0, 1]))
    assert found(upserted) == {n: f"{n}@21" for n in range(5)}


def test_plain_parquet_refuses_upserts(tmp_path):
    with pytest.raises(ConfigError, match="use iceberg or delta"):
        Lake("parquet", tmp_path).sink(DDL, **UPSERT)


@pytest.mark.parametrize("missing", ["keys", "orderBy"])
def test_an_upsert_without_keys_or_order_is_refused(missing, tmp_path):
    given = {name: value for name, value in UPSERT.items() if name != missing}
    with pytest.raises(ConfigError, match="upsert needs keys"):
        Lake("iceberg", tmp_path).sink(DDL, **given)


def test_a_key_that_the_rows_do_not_have_is_refused(upserted):
    with pytest.raises(InvalidRequest, match="has no column nothing"):
        upserted.sink(DDL, mode="upsert", keys="nothing", orderBy="seq")


# -- schema evolution


def test_a_new_column_of_the_rows_becomes_one_of_the_table(lake):
    write(lake.sink(DDL), SCHEMA, "q", 0, [row(1, 1)])
    wider = SCHEMA.append(pa.field("extra", pa.float64()))
    write(lake.sink(DDL + ", extra DOUBLE"), wider, "q", 1, [row(2, 1) | {"extra": 0.5}])
    assert {one["id"]: one["extra"] for one in lake.rows()} == {1: None, 2: 0.5}


def test_rows_without_a_column_of_the_table_are_null_in_it(lake):
    write(lake.sink(DDL), SCHEMA, "q", 0, [row(1, 1)])
    narrow = pa.schema([("id", pa.int64())])
    write(lake.sink("id BIGINT"), narrow, "q", 1, [{"id": 2}])
    assert {one["id"]: one["value"] for one in lake.rows()} == {1: "1@1", 2: None}


def test_without_evolve_a_new_column_is_refused_and_named(lake):
    lake.sink(DDL)
    with pytest.raises(InvalidRequest, match=r"extra, which the table .* has not"):
        lake.sink(DDL + ", extra DOUBLE", evolve="false")


def test_types_that_have_nothing_to_do_with_each_other_are_refused(lake):
    lake.sink(DDL)
    with pytest.raises(InvalidRequest, match="column id of the rows is bool, but int64"):
        lake.sink("id BOOLEAN, seq BIGINT, value STRING")


def test_iceberg_widens_a_type_that_the_rows_need_wider(tmp_path):
    lake = Lake("iceberg", tmp_path)
    narrow = pa.schema([("id", pa.int32())])
    write(lake.sink("id INT"), narrow, "q", 0, [{"id": 1}])
    write(lake.sink("id BIGINT"), pa.schema([("id", pa.int64())]), "q", 1, [{"id": 1 << 40}])
    assert sorted(one["id"] for one in lake.rows()) == [1, 1 << 40]


def test_columns_are_known_by_id_not_by_name(tmp_path):
    lake = Lake("iceberg", tmp_path)
    write(lake.sink(DDL), SCHEMA, "q", 0, [row(1, 1)])
    with lake.open().inner.update_schema() as update:
        update.rename_column("value", "text")
        update.delete_column("seq")
    with lake.open().inner.update_schema() as update:
        update.add_column("seq", IcebergString())
    assert lake.rows() == [{"id": 1, "text": "1@1", "seq": None}]
    fresh = pa.schema([("id", pa.int64()), ("seq", pa.string()), ("text", pa.string())])
    sink = lake.sink("id BIGINT, seq STRING, text STRING")
    write(sink, fresh, "q", 1, [{"id": 2, "seq": "s", "text": "t"}])
    assert sorted(map(str, lake.rows())) == sorted(
        map(str, [{"id": 1, "text": "1@1", "seq": None}, {"id": 2, "text": "t", "seq": "s"}])
    )


def test_a_column_that_carries_the_id_of_another_name_renames_it(tmp_path):
    lake = Lake("iceberg", tmp_path)
    write(lake.sink(DDL), SCHEMA, "q", 0, [row(1, 1)])
    number = lake.open().inner.schema().find_field("value").field_id
    renamed = StructType(
        [
            StructField("id", LongType()),
            StructField("text", StringType(), metadata={"parquet.field.id": number}),
        ]
    )
    sink = TableSink(lake.parsed(), renamed, False)
    write(
        sink,
        pa.schema([("id", pa.int64()), ("text", pa.string())]),
        "q",
        1,
        [{"id": 2, "text": "t"}],
    )
    assert {one["id"]: one["text"] for one in lake.rows()} == {1: "1@1", 2: "t"}


def test_nested_columns_go_through(lake):
    ddl = StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": "id", "type": "long", "nullable": True, "metadata": {}},
                {
                    "name": "headers",
                    "nullable": True,
                    "metadata": {},
                    "type": {
                        "type": "array",
                        "containsNull": True,
                        "elementType": {
                            "type": "struct",
                            "fields": [
                                {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                                {
                                    "name": "value",
                                    "type": "binary",
                                    "nullable": True,
                                    "metadata": {},
                                },
                            ],
                        },
                    },
                },
                {
                    "name": "tags",
                    "nullable": True,
                    "metadata": {},
                    "type": {
                        "type": "map",
                        "keyType": "string",
                        "valueType": "integer",
                        "valueContainsNull": True,
                    },
                },
            ],
        }
    )
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("headers", pa.list_(pa.field("element", header))),
            ("tags", pa.map_(pa.string(), pa.int32())),
        ]
    )
    rows = [
        {"id": 1, "headers": [{"key": "a", "value": b"\x00"}], "tags": [("x", 1)]},
        {"id": 2, "headers": None, "tags": None},
    ]
    write(TableSink(lake.parsed(), ddl, False), schema, "q", 0, rows)
    assert sorted(lake.rows(), key=lambda one: one["id"]) == rows


# -- bad rows

REQUIRED = {"required": "value", "deadLetterTable": "dead"}


def letters(lake: Lake) -> list[tuple[str, dict[str, object]]]:
    return sorted((one["_reason"], json.loads(one["_row"])) for one in lake.rows("dead"))


def test_bad_rows_go_to_the_dead_letter_table_with_reason_and_content(lake):
    ddl, schema = DDL + ", _error STRING", SCHEMA.append(pa.field("_error", pa.string()))
    sink = lake.sink(ddl, **REQUIRED)
    given = [
        row(1, 1) | {"_error": None},
        {"id": 2, "seq": 1, "value": None, "_error": None},
        row(3, 1) | {"_error": "not JSON"},
    ]
    write(sink, schema, "q", 0, given)
    assert found(lake) == {1: "1@1"}
    assert letters(lake) == [("column value is null", given[1]), ("not JSON", given[2])]
    assert "_error" not in lake.open().layout.schema.names


def test_what_the_source_could_not_decode_goes_apart_with_its_bytes(lake):
    ddl, schema = DDL + ", corrupt BINARY", SCHEMA.append(pa.field("corrupt", pa.binary()))
    sink = lake.sink(ddl, errorColumn="corrupt", deadLetterTable="dead")
    write(sink, schema, "q", 0, [row(1, 1) | {"corrupt": None}, row(2, 1) | {"corrupt": b"{"}])
    assert found(lake) == {1: "1@1"}
    assert letters(lake) == [("the value could not be decoded", row(2, 1) | {"corrupt": "ew=="})]


def test_dead_letters_are_written_once_also_when_the_batch_is_replayed(lake):
    sink = lake.sink(DDL, **REQUIRED)
    bad = {"id": 2, "seq": 1, "value": None}
    write(sink, SCHEMA, "q", 0, [row(1, 1), bad])
    write(sink, SCHEMA, "q", 0, [row(1, 1), bad])
    assert len(letters(lake)) == 1
    assert found(lake) == {1: "1@1"}


def test_a_driver_that_dies_between_letters_and_rows_writes_both_once(lake, monkeypatch):
    sink = lake.sink(DDL, **REQUIRED)
    tasks = [row(1, 1), {"id": 2, "seq": 1, "value": None}]
    kind = type(lake.open())
    real = kind.commit

    def dies_at_the_rows(self, change):
        if self._options.table == lake.table("t"):
            raise KeyboardInterrupt
        real(self, change)

    monkeypatch.setattr(kind, "commit", dies_at_the_rows)
    with pytest.raises(KeyboardInterrupt):
        write(sink, SCHEMA, "q", 0, tasks)
    monkeypatch.undo()
    write(lake.sink(DDL, **REQUIRED), SCHEMA, "q", 0, tasks)
    assert found(lake) == {1: "1@1"}
    assert len(letters(lake)) == 1


def test_a_batch_of_bad_rows_only_does_not_stop_the_next_one(lake):
    sink = lake.sink(DDL, **REQUIRED)
    write(sink, SCHEMA, "q", 0, [{"id": 2, "seq": 1, "value": None}])
    write(sink, SCHEMA, "q", 1, [row(1, 1)])
    assert found(lake) == {1: "1@1"}


def test_values_that_do_not_fit_the_tables_type_are_bad_rows_and_the_others_are_not(lake):
    write(lake.sink(DDL), SCHEMA, "q", 0, [row(0, 0)])
    texts = pa.schema([("id", pa.string()), ("seq", pa.int64()), ("value", pa.string())])
    sink = lake.sink("id STRING, seq BIGINT, value STRING", deadLetterTable="dead")
    given = [{"id": str(n) if n % 7 else f"x{n}", "seq": 1, "value": "v"} for n in range(1, 100)]
    write(sink, texts, "q", 1, given)
    assert sorted(found(lake)) == [n for n in range(100) if n % 7 or not n]
    assert len(letters(lake)) == 14
    assert all("column id" in reason for reason, _ in letters(lake))


def test_without_a_place_for_bad_rows_the_batch_fails_and_says_why(lake):
    sink = lake.sink(DDL, required="value")
    with pytest.raises(InvalidRequest, match=r"column value is null.*deadLetterTable"):
        stage(sink, SCHEMA, "q", [{"id": 2, "seq": 1, "value": None}])


def test_a_null_key_is_a_bad_row(upserted):
    sink = upserted.sink(DDL, **UPSERT, deadLetterTable="dead")
    write(sink, SCHEMA, "q", 0, [row(1, 1), row(None, 1)])
    assert found(upserted) == {1: "1@1"}
    assert len(letters(upserted)) == 1


def test_content_that_json_has_no_word_for_is_kept(lake):
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    schema = pa.schema(
        [("raw", pa.binary()), ("at", pa.timestamp("us", tz="UTC")), ("value", pa.string())]
    )
    sink = lake.sink("raw BINARY, at TIMESTAMP, value STRING", **REQUIRED)
    write(sink, schema, "q", 0, [{"raw": b"\xff\x00", "at": at, "value": None}])
    ((_, kept),) = letters(lake)
    assert kept == {"raw": "/wA=", "at": "2026-01-02T00:00:00+00:00", "value": None}


# -- options


def base(**more: str) -> dict[str, str]:
    return {"tableFormat": "delta", "table": "somewhere", **more}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tableFormat": "hudi"}, "not one of iceberg, delta, parquet"),
        ({"table": ""}, "table is missing"),
        ({"tabel": "x"}, "did you mean table"),
        ({"mode": "merge"}, "not one of append, upsert"),
        ({"evolve": "maybe"}, "not true or false"),
        ({"fileBytes": "10"}, "at least 1048576"),
        ({"compression": "brotli"}, "not one of zstd"),
        ({"keys": "id"}, "need mode=upsert"),
        ({"catalog": "sqlite:///x"}, "delta has none"),
        ({"tableFormat": "iceberg"}, "catalog is missing: Iceberg needs one"),
        ({"tableFormat": "iceberg", "catalog": "sqlite:///x"}, "warehouse"),
        ({"queryId": "q"}, "need each other"),
        ({"deadLetterTable": "a", "deadLetterTopic": "b"}, "drop one"),
        ({"deadLetterTopic": "b"}, "dead.servers"),
        ({"partitionBy": "week(at)"}, "week is not one of"),
        ({"partitionBy": "a,a"}, "twice"),
        ({"s3.endpont": "x"}, "s3.endpont is unknown"),
        ({"s3.endpoint": "host:1"}, "begins with http"),
        ({"s3.access-key-id": "k"}, "belong together"),
        ({"s3.profile-name": "p"}, "set s3.credentials-file"),
        ({"s3.credentials-file": "/nowhere"}, "No such file"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(given, says):
    with pytest.raises(ConfigError, match=says):
        parse_options(base() | given)


def test_names_are_compared_as_spark_compares_them():
    lower = {name.lower(): value for name, value in base(partitionBy="a").items()}
    assert parse_options(lower) == parse_options(base(partitionBy="a"))


def test_every_option_is_told_what_it_means_and_stands_in_the_page():
    page = (ROOT / "docs" / "reference" / "spark-tables.md").read_text()
    for option in OPTIONS:
        assert option.means
        assert f"`{option.name}`" in page


def test_a_rest_catalog_is_known_by_its_address():
    given = {"tableFormat": "iceberg", "table": "a.b", "catalog": "https://lake.example"}
    options = parse_options(given | {"catalog.token": "secret"})
    assert dict(options.catalog) == {
        "type": "rest",
        "uri": "https://lake.example",
        "token": "secret",
    }


def test_iceberg_wants_a_namespace(tmp_path):
    given = Lake("iceberg", tmp_path).options() | {"table": "alone"}
    with pytest.raises(InvalidRequest, match=r"namespace\.name"):
        TableSink(parse_options(given), StructType([StructField("id", LongType())]), False)
