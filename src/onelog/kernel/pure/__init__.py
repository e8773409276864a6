"""The kernel interpreted: the reference that the compiled one is held to, and its stand-in."""

from onelog.kernel.pure.amqp_delivery import (
    AmqpEnvelopes,
    encode_deliveries,
    topic_runs,
)
from onelog.kernel.pure.amqp_input import (
    AmqpInput,
    AmqpRoute,
)
from onelog.kernel.pure.amqp_wire import (
    encode_delivery,
    split_amqp,
)
from onelog.kernel.pure.build import (
    BatchBuilder,
    keep_records,
)
from onelog.kernel.pure.columns import (
    decode_columns,
)
from onelog.kernel.pure.crc import (
    crc32c,
    topic_hash,
)
from onelog.kernel.pure.filters import (
    TopicFilter,
    pick_records,
    select_records,
)
from onelog.kernel.pure.kafka_batch import (
    check_produce_batch,
)
from onelog.kernel.pure.kafka_request import (
    parse_fetch,
    parse_produce,
    parse_request_header,
    split_frames,
)
from onelog.kernel.pure.kafka_response import (
    encode_fetch_response,
    encode_produce_response,
)
from onelog.kernel.pure.kafka_shape import check_shape
from onelog.kernel.pure.kafka_view import (
    tag_batch,
    view_batches,
)
from onelog.kernel.pure.mqtt_acks import MqttPass, StageAcks, encode_acks
from onelog.kernel.pure.mqtt_fanout import MqttFanout
from onelog.kernel.pure.mqtt_input import MqttInput
from onelog.kernel.pure.mqtt_output import MqttOutput, encode_publish
from onelog.kernel.pure.records import (
    Slices,
    batch_topics,
    decode_batch,
    validate_records,
)
from onelog.kernel.pure.scan import (
    find_batch,
    fit_batches,
    place_batches,
    scan_batches,
    scan_valid,
)
from onelog.kernel.pure.stage import MqttRoute, Stage
from onelog.kernel.pure.topics import (
    check_topic_chunks,
    lookup_topic_chunks,
    make_topic_chunk,
    meets_topics,
    move_topic_entries,
    sort_topic_entries,
)
from onelog.kernel.pure.trie import (
    TopicTrie,
)
from onelog.kernel.pure.varint import (
    decode_uvarint,
    decode_varint,
    encode_uvarint,
    encode_varint,
)
from onelog.kernel.pure.wire import (
    check_topic,
    check_utf8,
    decode_remaining_length,
    encode_remaining_length,
    encode_utf8_field,
)

__all__ = [
    "StageAcks",
    "MqttFanout",
    "MqttInput",
    "MqttOutput",
    "MqttPass",
    "MqttRoute",
    "Stage",
    "encode_acks",
    "encode_publish",
    "AmqpEnvelopes",
    "AmqpInput",
    "AmqpRoute",
    "encode_deliveries",
    "encode_delivery",
    "topic_runs",
    "split_amqp",
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
    "meets_topics",
    "move_topic_entries",
    "sort_topic_entries",
    "TopicTrie",
]
