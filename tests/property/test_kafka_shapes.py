"""Control requests of any shape: what passes is read by kio, and counts never lie (I10)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_reader

from onelog.base.errors import ProtocolViolation
from onelog.kernel import check_shape as chosen
from onelog.kernel.pure.kafka_shape import check_shape as pure
from onelog.protocols.kafka.apis import APIS, Api, ApiKey
from onelog.protocols.kafka.codec import _shape, decode_request
from tests.support.kafka_entities import written

CONTROL = [api for api in APIS.values() if api.key not in (ApiKey.PRODUCE, ApiKey.FETCH)]
CASES = [
    (api, version) for api in CONTROL for version in range(max(api.first, api.served), api.last + 1)
]
EVERY = [pure, chosen]


def empty_request(api: Api, version: int) -> bytes:
    """A request in which every field has the value that says least."""
    return written(load_request_schema(int(api.key), version), {})


@pytest.mark.parametrize("check", EVERY)
@pytest.mark.parametrize(("api", "version"), CASES)
def test_a_whole_request_passes_to_its_last_byte(check, api, version) -> None:
    data = empty_request(api, version)
    shape = _shape(api.key, version)
    assert check(data, 0, len(data), shape, version >= api.flexible) == (len(data), [])
    for cut in range(len(data)):
        with pytest.raises(ProtocolViolation):
            check(data[:cut], 0, cut, shape, version >= api.flexible)


@given(st.sampled_from(CASES), st.binary(max_size=120))
def test_both_kernels_judge_alike_and_what_passes_can_be_read(case, data) -> None:
    api, version = case
    shape, flexible = _shape(api.key, version), version >= api.flexible
    found: list[str | tuple[int, list[tuple[int, int]]]] = []
    for check in EVERY:
        try:
            found.append(check(data, 0, len(data), shape, flexible))
        except ProtocolViolation as error:
            found.append(str(error))
    assert found[0] == found[1]
    if isinstance(found[0], tuple) and not found[0][1]:  # kio refuses every tag
        try:
            _body, size = entity_reader(load_request_schema(int(api.key), version))(data, 0)
        except Exception as error:  # noqa: BLE001 - a null or a text that kio refuses
            assert "exhausted" not in str(error)
        else:
            assert size == found[0][0]


def test_a_count_that_lies_is_refused_before_anything_is_made_of_it() -> None:
    rng = random.Random(7)
    for api, version in CASES:
        data = empty_request(api, version)
        for _ in range(50):
            changed = bytearray(data + b"\xff" * 8)
            at = rng.randrange(len(changed))
            changed[at : at + 4] = b"\x7f\xff\xff\xff"
            try:
                decode_request(api, version, bytes(changed), 0)
            except ProtocolViolation:
                continue
