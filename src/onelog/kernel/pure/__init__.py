"""The kernel interpreted: the reference that the compiled one is held to, and its stand-in."""

from onelog.kernel.pure.amqp_channel import (
    AmqpConsumerEnd,
    AmqpCounters,
    AmqpPeer,
    ChannelEnd,
    ConsumingEnd,
    HeldEnd,
    UnsettledRun,
)
from onelog.kernel.pure.amqp_confirms import (
    ByteCount,
    Confirms,
    PublishingEnd,
    PublishPass,
    PublishRun,
    StageRuns,
)
from onelog.kernel.pure.amqp_delivery import (
    AmqpEnvelopes,
    encode_deliveries,
    topic_runs,
)
from onelog.kernel.pure.amqp_input import (
    AmqpInput,
    AmqpReader,
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
from onelog.kernel.pure.bus import bus_faults, forget_map, map_failed, watch_map
from onelog.kernel.pure.columns import (
    decode_columns,
)
from onelog.kernel.pure.crc import (
    crc32c,
    topic_hash,
)
from onelog.kernel.pure.ends import PartitionEnd, VisibleEnd
from onelog.kernel.pure.feed import FeedSource, Unconcerned
from onelog.kernel.pure.file_end import FileEnd, LogEnd
from onelog.kernel.pure.filters import (
    TopicFilter,
    pick_records,
    select_records,
)
from onelog.kernel.pure.frame_input import FrameInput
from onelog.kernel.pure.kafka_batch import (
    check_produce_batch,
    find_headers,
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
from onelog.kernel.pure.loop_pass import LoopPass, pass_of
from onelog.kernel.pure.mqtt_acks import MqttPass, StageAcks, encode_acks
from onelog.kernel.pure.mqtt_fanout import MqttFanout
from onelog.kernel.pure.mqtt_input import MqttInput
from onelog.kernel.pure.mqtt_output import MqttOutput, encode_publish
from onelog.kernel.pure.mqtt_places import deliver_places
from onelog.kernel.pure.pages import here_to
from onelog.kernel.pure.queue_end import (
    ConsumerEnd,
    FlightCursor,
    LineEnd,
    QueueEnd,
    QueueFeed,
    ReadyEnd,
)
from onelog.kernel.pure.rebuild import rebuild_batches
from onelog.kernel.pure.records import (
    Slices,
    batch_topics,
    decode_batch,
    validate_records,
)
from onelog.kernel.pure.scan import (
    find_batch,
    fit_batches,
    mark_batches,
    place_batches,
    scan_batches,
    scan_valid,
)
from onelog.kernel.pure.sockets import SocketSet, SocketTransport, probe_ring
from onelog.kernel.pure.stage import MqttRoute, Stage
from onelog.kernel.pure.sync_threads import SyncThreads, SyncTicket
from onelog.kernel.pure.tick import Ticker
from onelog.kernel.pure.topics import (
    check_topic_chunks,
    lookup_topic_chunks,
    make_topic_chunk,
    meets_topics,
    move_topic_entries,
    pack_topic_entries,
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
