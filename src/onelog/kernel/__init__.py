"""The hot loops: record batches, topics and wire pieces as whole-buffer operations.

Rules: nothing here knows sockets, files or time. Buffers are borrowed for the call. Bad bytes raise
CorruptBatch, whatever they are. The compiled module is used when it is there; `ONELOG_PURE=1` asks
for the interpreted twin, from which the types are read too.
"""

import os
from typing import TYPE_CHECKING

from onelog.kernel.types import (
    ATTR_CODEC_MASK,
    ATTR_CONTROL,
    ATTR_DELETE_HORIZON,
    ATTR_LOG_APPEND_TIME,
    ATTR_TRANSACTIONAL,
    HEADER_BYTES,
    TIMESTAMP_MS_MAX,
    TOPIC_HEADER,
    BatchInfo,
    Columns,
    FetchRequest,
    ProduceRequest,
)

COMPILED: bool
"""Whether the compiled kernel is in use."""

if TYPE_CHECKING:
    from onelog.kernel.pure import (
        BatchBuilder,
        MqttFanout,
        MqttInput,
        MqttOutput,
        MqttPass,
        MqttRoute,
        Slices,
        Stage,
        TopicFilter,
        TopicTrie,
        batch_topics,
        check_produce_batch,
        check_shape,
        check_topic,
        check_topic_chunks,
        check_utf8,
        crc32c,
        decode_batch,
        decode_columns,
        decode_remaining_length,
        decode_uvarint,
        decode_varint,
        encode_acks,
        encode_fetch_response,
        encode_produce_response,
        encode_publish,
        encode_remaining_length,
        encode_utf8_field,
        encode_uvarint,
        encode_varint,
        find_batch,
        fit_batches,
        keep_records,
        lookup_topic_chunks,
        make_topic_chunk,
        parse_fetch,
        parse_produce,
        parse_request_header,
        pick_records,
        place_batches,
        scan_batches,
        scan_valid,
        select_records,
        send_acks,
        sort_topic_entries,
        split_frames,
        tag_batch,
        topic_hash,
        validate_records,
        view_batches,
    )
elif os.environ.get("ONELOG_PURE") == "1":
    from onelog.kernel.pure import *  # noqa: F403
else:
    try:
        from onelog.kernel._native import *  # noqa: F403
    except ImportError:
        from onelog.kernel.pure import *  # noqa: F403

COMPILED = not BatchBuilder.__module__.startswith("onelog.kernel.pure")

__all__ = [
    "MqttFanout",
    "MqttInput",
    "MqttOutput",
    "MqttPass",
    "MqttRoute",
    "Stage",
    "encode_acks",
    "send_acks",
    "encode_publish",
    "check_shape",
    "check_produce_batch",
    "encode_fetch_response",
    "encode_produce_response",
    "parse_fetch",
    "parse_produce",
    "parse_request_header",
    "split_frames",
    "tag_batch",
    "view_batches",
    "COMPILED",
    "ATTR_CODEC_MASK",
    "ATTR_CONTROL",
    "ATTR_DELETE_HORIZON",
    "ATTR_LOG_APPEND_TIME",
    "ATTR_TRANSACTIONAL",
    "HEADER_BYTES",
    "TIMESTAMP_MS_MAX",
    "TOPIC_HEADER",
    "BatchInfo",
    "Columns",
    "FetchRequest",
    "ProduceRequest",
    "crc32c",
    "topic_hash",
    "decode_uvarint",
    "decode_varint",
    "encode_uvarint",
    "encode_varint",
    "check_topic",
    "check_utf8",
    "decode_remaining_length",
    "encode_remaining_length",
    "encode_utf8_field",
    "find_batch",
    "fit_batches",
    "place_batches",
    "scan_batches",
    "scan_valid",
    "Slices",
    "batch_topics",
    "decode_batch",
    "validate_records",
    "BatchBuilder",
    "keep_records",
    "decode_columns",
    "TopicFilter",
    "pick_records",
    "select_records",
    "check_topic_chunks",
    "lookup_topic_chunks",
    "make_topic_chunk",
    "sort_topic_entries",
    "TopicTrie",
]
