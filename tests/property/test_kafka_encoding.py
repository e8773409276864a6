"""Answers of control APIs are the bytes that kio would write, at every version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.encoding import structure_writer
from onelog.protocols.kafka.schema import fields_of
from tests.support.kafka_entities import written

CASES = [
    (api.key, version)
    for api in APIS.values()
    if api.key not in (ApiKey.PRODUCE, ApiKey.FETCH)
    for version in range(max(api.first, api.served), api.last + 1)
]

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "error_code": st.sampled_from(list(ErrorCode)),
    "timedelta_i32": st.integers(0, 2**31 - 1),
    "timedelta_i64": st.integers(0, 2**40),
    "datetime_i64": st.integers(0, 2**41),
    "uuid": st.just(uuid.UUID(int=7)) | st.none(),
    "string": st.text(max_size=3) | st.just("x" * 200),
    "bytes": st.binary(max_size=3) | st.just(b"y" * 200),
    "records": st.binary(max_size=3),
}


def bodies(schema: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies with some of the fields of a class."""
    rows: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields_of(schema):
        one = VALUES[field.kind] if field.structure is None else bodies(field.structure)
        rows[field.name] = st.lists(one, max_size=2) if field.is_array else one
    return st.fixed_dictionaries({}, optional=rows)


@pytest.mark.parametrize(("key", "version"), CASES)
def test_the_least_answer_is_kio_s(key, version) -> None:
    schema = load_response_schema(int(key), version)
    out = bytearray()
    structure_writer(schema)(out, {})
    assert bytes(out) == written(schema, {})


@given(st.data())
def test_any_answer_is_kio_s(data) -> None:
    key, version = data.draw(st.sampled_from(CASES))
    schema: Any = load_response_schema(int(key), version)
    body = data.draw(bodies(schema))
    out = bytearray()
    structure_writer(schema)(out, body)
    assert bytes(out) == written(schema, body)


def test_a_field_that_no_version_has_is_a_bug_and_raises() -> None:
    schema: Any = load_response_schema(int(ApiKey.HEARTBEAT), 4)
    with pytest.raises(AssertionError, match="eror_code"):
        structure_writer(schema)(bytearray(), {"eror_code": 0})


def test_a_field_that_only_other_versions_have_is_left_out() -> None:
    schema: Any = load_response_schema(int(ApiKey.HEARTBEAT), 0)
    out = bytearray()
    structure_writer(schema)(out, {"error_code": ErrorCode.none, "throttle_time": 5})
    assert bytes(out) == b"\0\0"
