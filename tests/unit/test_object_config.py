"""Keys of the engine `object` and of metadata in the store that do not fit each other."""

from __future__ import annotations

import pytest

from onelog.base.errors import ConfigError, InvalidRequest
from onelog.config import load
from onelog.log.config import Durability, StreamConfig, check_config

STORE = 'store.url="s3://bucket/prefix"'
OBJECT = 'defaults.stream.engine="object"'


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (['metadata.url="store"'], "needs an object store"),
        ([STORE, 'metadata.url="store"'], "needs defaults.stream.engine = 'object'"),
        ([STORE, OBJECT, 'defaults.stream.durability="os"'], "choose fsync or memory"),
        ([STORE, "object.buffer_bytes=2000000"], "has to be twice object.settle_bytes"),
        (
            [STORE, "object.settle_bytes=1000000", "object.buffer_bytes=8000000"],
            "object.batch_bytes = 8388608 is more than",
        ),
        ([STORE, 'object.chain_url="fast"'], "is no store"),
        (['object.chain_url="s3://fast/x"'], "needs an object store"),
    ],
)
def test_keys_that_do_not_fit_are_refused_with_what_to_do(chosen, words):
    with pytest.raises(ConfigError, match=words):
        load(None, {}, chosen)


def test_a_broker_without_a_disk_is_two_keys_and_a_store():
    config = load(None, {}, [STORE, OBJECT, 'metadata.url="store"']).config
    assert (config.object.linger_ms, config.object.inflight) == (250, 4)


def test_a_stream_of_the_engine_cannot_promise_what_the_operating_system_keeps():
    with pytest.raises(InvalidRequest, match="choose fsync"):
        check_config(StreamConfig(name="s", engine="object", durability=Durability.OS))
    for durability in (Durability.FSYNC, Durability.MEMORY):
        check_config(StreamConfig(name="s", engine="object", durability=durability))
