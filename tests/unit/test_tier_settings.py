"""The tier of a stream as people set it: what is refused and why, by the log's own door."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from onelog.base.errors import InvalidRequest
from onelog.broker import Broker, Cleanup, ColdFormat, Retention, StreamConfig, TierConfig
from onelog.broker.stream_commands import (
    AlterStream,
    CreateStream,
    StreamChoice,
    default_stream,
    run_stream,
)
from onelog.config.model import Config, whole_problems
from onelog.config.store import Store
from onelog.config.streams import Defaults, StreamDefaults
from onelog.log.config import check_change, check_config
from onelog.log.tier_config import AS_TOTAL, NO_BOUND, LocalWindow, StoreSupport
from onelog.objects.store import StoreSettings
from tests.support.brokers import FAST, running

LOG = TierConfig(format=ColdFormat.LOG)
BUILT_IN = StreamDefaults()
PLAIN = StreamConfig(name="t", captures=("t/#",), partitions=4)


def refused(config: StreamConfig) -> str:
    with pytest.raises(InvalidRequest) as caught:
        check_config(config)
    return str(caught.value)


@pytest.mark.parametrize("engine", ["memory", "kv"])
def test_an_engine_that_cannot_have_a_tier_is_named(engine: str) -> None:
    assert f"needs the engine segment or object, not {engine}" in refused(
        replace(PLAIN, engine=engine, tier=LOG)
    )


@pytest.mark.parametrize("cleanup", [Cleanup.COMPACT, Cleanup.COMPACT_DELETE])
def test_a_compacted_stream_has_no_tier(cleanup: Cleanup) -> None:
    assert "cannot go with cleanup = compact" in refused(replace(PLAIN, cleanup=cleanup, tier=LOG))
    check_config(replace(PLAIN, cleanup=cleanup, engine="object"))


def test_the_engine_object_has_no_second_copy_of_batches_but_tables() -> None:
    config = replace(PLAIN, engine="object")
    assert "keeps everything in the store already" in refused(replace(config, tier=LOG))
    for kind in (ColdFormat.ICEBERG, ColdFormat.DELTA):
        check_config(replace(config, tier=TierConfig(format=kind)))


def test_a_broker_without_a_disk_registers_tables_elsewhere() -> None:
    tier = TierConfig(format=ColdFormat.ICEBERG)
    support = StoreSupport(url="s3://bucket", formats=tuple(ColdFormat))
    assert "set lake.catalog" in (support.lacks(tier, "object") or "")
    assert support.lacks(tier, "segment") is None
    assert support.lacks(TierConfig(format=ColdFormat.DELTA), "object") is None
    named = replace(support, catalog="https://catalog.example")
    assert named.lacks(tier, "object") is None
    assert support.lacks(replace(tier, catalog="https://catalog.example"), "object") is None


def test_columns_are_for_tables() -> None:
    wrong = TierConfig(format=ColdFormat.LOG, columns="json: temp double")
    assert "tier.columns needs tier.format iceberg or delta" in refused(replace(PLAIN, tier=wrong))
    check_config(replace(PLAIN, tier=replace(wrong, format=ColdFormat.DELTA)))


@pytest.mark.parametrize(
    ("tier", "key"),
    [
        (TierConfig(local_age_ms=-3), "tier.local_age_ms"),
        (TierConfig(local_bytes=-3), "tier.local_bytes"),
        (TierConfig(commit_ms=999), "tier.commit_ms"),
        (TierConfig(snapshot_age_ms=-2), "tier.snapshot_age_ms"),
        (TierConfig(table_age_ms=-3), "tier.table_age_ms"),
        (TierConfig(columns="x" * 32_768), "tier.columns"),
    ],
)
def test_a_number_outside_of_its_bounds_is_named(tier: TierConfig, key: str) -> None:
    assert f"{key} must be" in refused(replace(PLAIN, tier=tier))


@pytest.mark.parametrize(
    ("retention", "tier", "key"),
    [
        (Retention(age_ms=10), TierConfig(local_age_ms=11), "tier.local_age_ms (11) is more than"),
        (Retention(age_ms=10), TierConfig(local_age_ms=NO_BOUND), "tier.local_age_ms (unlimited)"),
        (Retention(bytes=10), TierConfig(local_bytes=11), "tier.local_bytes (11) is more than"),
    ],
)
def test_the_local_bound_is_never_more_than_the_total_one(
    retention: Retention, tier: TierConfig, key: str
) -> None:
    config = replace(PLAIN, retention=retention, tier=replace(tier, format=ColdFormat.LOG))
    assert key in refused(config)
    check_config(replace(config, tier=tier))  # without a tier, nobody looks at its bounds
    unbounded = Retention(age_ms=-1, bytes=-1)
    check_config(replace(config, retention=unbounded))


def test_the_local_window_of_a_partition_is_its_share_or_the_total() -> None:
    keep = Retention(age_ms=1000, bytes=4000)
    config = replace(PLAIN, retention=keep, tier=LOG)
    assert config.local_window() == LocalWindow(age_ms=1000, bytes=1000)
    tier = replace(LOG, local_age_ms=10, local_bytes=400)
    assert replace(config, tier=tier).local_window() == LocalWindow(age_ms=10, bytes=100)
    config = replace(config, retention=Retention(age_ms=-1, bytes=-1))
    assert config.local_window() == LocalWindow(age_ms=NO_BOUND, bytes=NO_BOUND)
    tier = replace(LOG, local_age_ms=AS_TOTAL, local_bytes=0)
    assert replace(config, tier=tier).local_window() == LocalWindow(age_ms=NO_BOUND, bytes=0)


SUPPORT = StoreSupport(url="s3://bucket/prefix", formats=(ColdFormat.LOG,))


@pytest.mark.parametrize("url", ["s3://bucket/prefix", "s3a://bucket/prefix/", "log"])
def test_the_url_of_the_store_is_the_format_log(url: str) -> None:
    assert SUPPORT.format_for(url) is ColdFormat.LOG


@pytest.mark.parametrize(
    ("support", "word", "why"),
    [
        (SUPPORT, "s3://other/prefix", "which is s3://bucket/prefix (store.url)"),
        (SUPPORT, "parquet", "none, log, iceberg, delta or the store's URL, not 'parquet'"),
        (StoreSupport(), "s3://bucket", "needs store.url = 's3://bucket'"),
    ],
)
def test_another_url_or_word_is_no_tier(support: StoreSupport, word: str, why: str) -> None:
    with pytest.raises(ValueError, match="tier") as caught:
        support.format_for(word)
    assert why in str(caught.value)


async def make(broker: Broker, defaults: StreamDefaults = BUILT_IN, **chosen) -> str:
    name = f"s{len(broker.streams.streams())}"
    command = CreateStream(name=name, captures=(f"{name}/#",), chosen=StreamChoice(**chosen))
    await run_stream(broker, defaults, command)
    return name


async def test_a_broker_without_a_store_refuses_a_tier_and_names_the_key(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        for chosen in ({"tier": "log"}, {"engine": "object"}):
            with pytest.raises(InvalidRequest, match=r"needs an object store: set store\.url"):
                await make(broker, **chosen)
        with pytest.raises(InvalidRequest, match=r"needs an object store: set store\.url"):
            command = AlterStream(name="main", chosen=StreamChoice(tier="log"))
            await run_stream(broker, BUILT_IN, command)


async def test_a_tier_changes_while_the_stream_runs_and_comes_back_after_a_start(
    tmp_path: Path,
) -> None:
    store = StoreSettings(url=f"file://{tmp_path}/store")
    settings = replace(FAST, store=store)
    async with running(tmp_path / "data", settings) as broker:
        name = await make(broker, tier=store.url, local_age_ms=5, local_bytes=6)
        assert broker.streams.get(name).config.tier == replace(LOG, local_age_ms=5, local_bytes=6)
        command = AlterStream(name=name, chosen=StreamChoice(tier_copy=False, local_age_ms=-2))
        await run_stream(broker, BUILT_IN, command)
        with pytest.raises(InvalidRequest, match="iceberg is not possible here"):
            command = AlterStream(name=name, chosen=StreamChoice(tier="iceberg"))
            await run_stream(broker, BUILT_IN, command)
    async with running(tmp_path / "data", settings) as broker:
        assert broker.streams.get(name).config.tier == replace(LOG, copy=False, local_bytes=6)
        await run_stream(broker, BUILT_IN, AlterStream(name=name, chosen=StreamChoice(tier="none")))
        assert not broker.streams.get(name).config.tier.is_on
    async with running(tmp_path / "data") as broker:  # the store is gone: the settings stay
        assert broker.streams.get(name).config.tier.local_bytes == 6


async def test_streams_that_cannot_have_the_default_tier_have_none(tmp_path: Path) -> None:
    settings = replace(FAST, store=StoreSettings(url=f"file://{tmp_path}/store"))
    defaults = StreamDefaults(tier="log", local_age_ms=60_000)
    async with running(tmp_path / "data", settings) as broker:
        for chosen, has in (
            ({}, True),
            ({"engine": "memory"}, False),
            ({"cleanup": Cleanup.COMPACT}, False),
        ):
            name = await make(broker, defaults, **chosen)
            assert broker.streams.get(name).config.tier.is_on is has
        with pytest.raises(InvalidRequest, match="needs the engine segment"):
            await make(broker, defaults, engine="memory", tier="log")


@pytest.mark.parametrize(
    ("chosen", "url", "key"),
    [
        (StreamDefaults(tier="log"), "", "defaults.stream.tier"),
        (StreamDefaults(tier="log", engine="kv"), "file:///s", "defaults.stream.tier"),
        (StreamDefaults(tier="log", engine="object"), "file:///s", "defaults.stream.tier"),
        (StreamDefaults(engine="object"), "", "defaults.stream.engine"),
        (StreamDefaults(tier="delta", engine="object"), "file:///s", ""),
        (StreamDefaults(tier="log"), "file:///s", ""),
    ],
)
def test_defaults_that_no_stream_could_have_stop_the_start(
    chosen: StreamDefaults, url: str, key: str
) -> None:
    config = Config(defaults=Defaults(stream=chosen), store=Store(url=url))
    assert [problem.path for problem in whole_problems(config)] == ([key] if key else [])


def test_the_defaults_are_those_of_a_plain_stream() -> None:
    made = default_stream(StreamDefaults(), "t", ("t/#",), 4)
    assert made.tier == PLAIN.tier == TierConfig()


@pytest.mark.parametrize(
    "columns",
    ["temp double", "json temp double", "json:", "json: a float", "json: 1a int",
     "json: key string", "json: a int, a int", "json: a int, A int",
     "json: a int,", "json: " + "a" * 129 + " int"],
)  # fmt: skip
def test_typed_columns_that_mean_nothing_are_refused(columns: str) -> None:
    tier = TierConfig(format=ColdFormat.ICEBERG, columns=columns)
    assert "tier.columns" in refused(replace(PLAIN, tier=tier))
    assert "tier.columns" in refused(replace(PLAIN, tier=replace(tier, format=ColdFormat.NONE)))


def test_a_typed_column_keeps_its_type_in_its_table() -> None:
    old = replace(PLAIN, tier=TierConfig(format=ColdFormat.DELTA, columns="json: a int, b string"))

    def with_columns(columns: str, **fields: str) -> StreamConfig:
        return replace(old, tier=replace(old.tier, columns=columns, **fields))

    with pytest.raises(InvalidRequest, match="b is string in the table and cannot become double"):
        check_change(old, with_columns("json: a int, b double"))
    check_change(old, with_columns("json: a bigint, b string, c double"))
    check_change(old, with_columns("json: b double", table="another"))
    check_change(old, with_columns(""))
