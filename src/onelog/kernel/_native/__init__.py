"""The kernel compiled; importing it fails where it was not built."""

# mypy: ignore-errors

from onelog.kernel._native.amqp_channel import (
    AmqpConsumerEnd,
    AmqpCounters,
    AmqpPeer,
    ChannelEnd,
    ConsumingEnd,
    HeldEnd,
    UnsettledRun,
)
from onelog.kernel._native.amqp_confirms import (
    ByteCount,
    Confirms,
    PublishingEnd,
    PublishPass,
    PublishRun,
    StageRuns,
)
from onelog.kernel._native.amqp_delivery import (
    AmqpEnvelopes,
    encode_deliveries,
    topic_runs,
)
from onelog.kernel._native.amqp_input import AmqpInput, AmqpReader, AmqpRoute
from onelog.kernel._native.amqp_wire import (
    encode_delivery,
    split_amqp,
)
from onelog.kernel._native.build import (
    BatchBuilder,
)
from onelog.kernel._native.bus import bus_faults, forget_map, map_failed, watch_map
from onelog.kernel._native.columns import decode_columns
from onelog.kernel._native.crc import (
    crc32c,
    topic_hash,
)
from onelog.kernel._native.ends import PartitionEnd, VisibleEnd
from onelog.kernel._native.feed import FeedSource, Unconcerned
from onelog.kernel._native.file_end import FileEnd, LogEnd
from onelog.kernel._native.filters import (
    TopicFilter,
    pick_records,
    select_records,
)
from onelog.kernel._native.frame_input import FrameInput
from onelog.kernel._native.kafka_batch import (
    check_produce_batch,
    find_headers,
)
from onelog.kernel._native.kafka_request import (
    parse_fetch,
    parse_produce,
    parse_request_header,
    split_frames,
)
from onelog.kernel._native.kafka_response import (
    encode_fetch_response,
    encode_produce_response,
)
from onelog.kernel._native.kafka_shape import check_shape
from onelog.kernel._native.kafka_tag import tag_batch
from onelog.kernel._native.kafka_view import view_batches
from onelog.kernel._native.keep import (
    keep_records,
)
from onelog.kernel._native.loop_pass import LoopPass, pass_of
from onelog.kernel._native.mqtt_acks import (
    MqttPass,
    StageAcks,
)
from onelog.kernel._native.mqtt_fanout import (
    MqttFanout,
)
from onelog.kernel._native.mqtt_input import (
    MqttInput,
)
from onelog.kernel._native.mqtt_output import (
    MqttOutput,
    encode_acks,
    encode_publish,
)
from onelog.kernel._native.mqtt_places import deliver_places
from onelog.kernel._native.pages import here_to
from onelog.kernel._native.queue_end import (
    ConsumerEnd,
    FlightCursor,
    LineEnd,
    QueueEnd,
    QueueFeed,
    ReadyEnd,
)
from onelog.kernel._native.rebuild import rebuild_batches
from onelog.kernel._native.records import (
    Slices,
    batch_topics,
    decode_batch,
    validate_records,
)
from onelog.kernel._native.scan import (
    find_batch,
    fit_batches,
    mark_batches,
    place_batches,
    scan_batches,
    scan_valid,
)
from onelog.kernel._native.sends import probe_ring
from onelog.kernel._native.sockets import SocketSet, SocketTransport
from onelog.kernel._native.stage import (
    MqttRoute,
    Stage,
)
from onelog.kernel._native.sync_threads import SyncThreads, SyncTicket
from onelog.kernel._native.tick import Ticker
from onelog.kernel._native.topics import (
    check_topic_chunks,
    lookup_topic_chunks,
    make_topic_chunk,
    meets_topics,
    move_topic_entries,
    pack_topic_entries,
    sort_topic_entries,
)
from onelog.kernel._native.trie import (
    TopicTrie,
)
from onelog.kernel._native.wire import (
    check_topic,
    check_utf8,
    decode_remaining_length,
    decode_uvarint,
    decode_varint,
    encode_remaining_length,
    encode_utf8_field,
    encode_uvarint,
    encode_varint,
)

__all__ = [
    "AmqpConsumerEnd",
    "AmqpCounters",
    "AmqpPeer",
    "AmqpReader",
    "ByteCount",
    "ChannelEnd",
    "Confirms",
    "ConsumerEnd",
    "ConsumingEnd",
    "FlightCursor",
    "HeldEnd",
    "LineEnd",
    "PublishPass",
    "PublishRun",
    "PublishingEnd",
    "QueueEnd",
    "QueueFeed",
    "ReadyEnd",
    "StageRuns",
    "UnsettledRun",
    "AmqpEnvelopes",
    "AmqpInput",
    "AmqpRoute",
    "BatchBuilder",
    "FileEnd",
    "FrameInput",
    "VisibleEnd",
    "Unconcerned",
    "Ticker",
    "PartitionEnd",
    "LogEnd",
    "LoopPass",
    "FeedSource",
    "MqttFanout",
    "MqttInput",
    "MqttOutput",
    "MqttPass",
    "MqttRoute",
    "Slices",
    "SocketSet",
    "SocketTransport",
    "Stage",
    "StageAcks",
    "SyncThreads",
    "SyncTicket",
    "TopicFilter",
    "TopicTrie",
    "batch_topics",
    "bus_faults",
    "check_produce_batch",
    "check_shape",
    "check_topic",
    "check_topic_chunks",
    "check_utf8",
    "crc32c",
    "decode_batch",
    "decode_columns",
    "deliver_places",
    "decode_remaining_length",
    "decode_uvarint",
    "decode_varint",
    "encode_acks",
    "encode_deliveries",
    "encode_delivery",
    "encode_fetch_response",
    "encode_produce_response",
    "encode_publish",
    "encode_remaining_length",
    "encode_utf8_field",
    "encode_uvarint",
    "encode_varint",
    "find_batch",
    "find_headers",
    "fit_batches",
    "forget_map",
    "here_to",
    "keep_records",
    "lookup_topic_chunks",
    "make_topic_chunk",
    "map_failed",
    "mark_batches",
    "meets_topics",
    "move_topic_entries",
    "pack_topic_entries",
    "parse_fetch",
    "parse_produce",
    "parse_request_header",
    "pass_of",
    "pick_records",
    "place_batches",
    "probe_ring",
    "rebuild_batches",
    "scan_batches",
    "scan_valid",
    "select_records",
    "sort_topic_entries",
    "split_amqp",
    "split_frames",
    "tag_batch",
    "topic_hash",
    "topic_runs",
    "validate_records",
    "view_batches",
    "watch_map",
]
