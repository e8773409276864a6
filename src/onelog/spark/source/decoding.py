"""Decodes values: bytes as they are, text, JSON or Avro, as one Arrow array per batch.

Rules: a value that is not what it should be costs itself only. By `mode` it is null, with its bytes
in the column `corrupt`; or its row is left out; or reading fails and says where it lies. A value
that is null stays null: it is a tombstone, not damage.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from onelog.base.errors import ConfigError, InvalidRequest
from onelog.spark.source.avro import parse_schema
from onelog.spark.source.columns import CORRUPT, VALUE
from onelog.spark.source.options import Decode

_BREAKS: Final = re.compile(rb"[\r\n]")
_WRAPPED: Final = "v"

Values = list[bytes | None]
Convert = Callable[[Values], pa.Array]
"""All values as an array of the same length. Raises `Bad` when one of them cannot be."""


class Bad(Exception):
    """Some value of several cannot be decoded."""


class RowOrigin(NamedTuple):
    """The topic and partition that rows come from, for errors."""

    topic: str
    partition: int


def decoder_of(decode: Decode, kind: pa.DataType) -> Convert | None:
    """How values become arrays of `kind`; None for bytes and text. Raises ConfigError."""
    if decode.kind == "json":
        return _json_decoder(kind)
    if decode.kind == "avro":
        return _avro_decoder(decode.schema, kind)
    return None


def _json_decoder(kind: pa.DataType) -> Convert:
    """Arrow's own parser. Each value is wrapped, so that a line is a row and never half of one."""
    options = pj.ParseOptions(
        explicit_schema=pa.schema([(_WRAPPED, kind)]), unexpected_field_behavior="ignore"
    )

    def convert(values: Values) -> pa.Array:
        # A break inside of a value is white space: in a string of JSON it must be escaped.
        rows = [b"null" if value is None else _BREAKS.sub(b" ", value) for value in values]
        data = b'{"v":' + b'}\n{"v":'.join(rows) + b"}\n"
        reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        try:
            table = pj.read_json(io.BytesIO(data), reading, options)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            raise Bad from None
        if table.num_rows != len(values):
            raise Bad
        return table.column(0).combine_chunks()

    try:
        convert([None])
    except pa.ArrowNotImplementedError as error:
        raise ConfigError(f"option valueSchema: {error}; decode=string and from_json do") from None
    return convert


def _avro_decoder(schema: str, kind: pa.DataType) -> Convert:
    try:
        import fastavro  # noqa: PLC0415 - of the extra; only Avro needs it
    except ImportError as error:
        raise ConfigError("fastavro is missing: install 'onelog[spark]'") from error
    try:
        parsed = fastavro.parse_schema(parse_schema(schema))
    except fastavro.schema.SchemaParseException as error:
        raise ConfigError(f"option valueSchema: {error}") from None

    def one(value: bytes | None) -> Any:
        if value is None:
            return None
        stream = io.BytesIO(value)
        row = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(value):
            raise Bad
        return row

    def convert(values: Values) -> pa.Array:
        try:
            return pa.array([one(value) for value in values], kind)
        # Bytes that are not Avro can raise any error at all.
        except Exception as error:
            raise Bad from error

    return convert


def as_text(raw: pa.Array) -> pa.Array:
    """Bytes as text, as CAST(value AS STRING) does it: nothing is checked, nothing is changed."""
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), raw.null_count, raw.offset)


# -- arrays with bad values in them


def decode_values(convert: Convert, values: Values) -> tuple[pa.Array, list[int]]:
    """The array, null where a value is bad, and which are."""
    try:
        return convert(values), []
    except Bad:
        if len(values) == 1:
            return convert([None]), [0]
    middle = len(values) // 2
    left, bad = decode_values(convert, values[:middle])
    right, more = decode_values(convert, values[middle:])
    return pa.concat_arrays([left, right]), bad + [middle + at for at in more]


def decode_arrays(
    arrays: dict[str, pa.Array], convert: Convert, decode: Decode, origin: RowOrigin
) -> dict[str, pa.Array]:
    """The arrays with the value decoded and, in mode PERMISSIVE, with the column `corrupt`."""
    raw = arrays[VALUE]
    decoded, bad = decode_values(convert, raw.to_pylist())
    if bad and decode.mode == "FAILFAST":
        raise InvalidRequest(_told(arrays, bad, decode, origin))
    found = arrays | {VALUE: decoded}
    mask = np.zeros(len(raw), bool)
    mask[bad] = True
    if decode.mode == "DROPMALFORMED" and bad:
        kept = pa.array(~mask)
        return {name: array.filter(kept) for name, array in found.items()}
    if decode.mode == "PERMISSIVE":
        nothing = pa.scalar(None, pa.binary())
        found[CORRUPT] = (
            pc.if_else(pa.array(mask), raw, nothing) if bad else pa.nulls(len(raw), pa.binary())
        )
    return found


def _told(
    arrays: dict[str, pa.Array], bad: Sequence[int], decode: Decode, origin: RowOrigin
) -> str:
    at = f" at offset {arrays['offset'][bad[0]].as_py()}" if "offset" in arrays else ""
    value = arrays[VALUE][bad[0]].as_py()
    return (
        f"{origin.topic}-{origin.partition}{at}: a value is not {decode.kind} of the schema:"
        f" {value[:60]!r}; mode PERMISSIVE or DROPMALFORMED goes on behind it"
    )
