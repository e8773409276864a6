"""MQTT's subscribers that are behind, interpreted: the records of a batch at some places go to all.

Rules: as `MqttFanout.deliver` for the records at these places, but nothing is written: the caller
writes when it has gone over more batches. All records at the places are checked before the first
one goes out. Of a batch that has every offset, the others are passed over by their lengths, and are
not checked; of one that lost records, all are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.kernel.pure.records import batch_of_places

if TYPE_CHECKING:
    from onelog.kernel.pure.mqtt_fanout import MqttFanout
    from onelog.kernel.pure.mqtt_output import MqttOutput
    from onelog.kernel.types import Buffer


def deliver_places(
    fanout: MqttFanout, data: Buffer, offsets: list[int], partition: int, now_ms: int
) -> tuple[int | None, list[MqttOutput], list[tuple[MqttOutput, int]]]:
    """Give the records of one plain batch at ascending offsets to the fan-out's subscribers.

    Offsets without a record are left out. Returns the offset of the record that could not be
    delivered, or None; the subscribers that have bytes to write; and those that fell behind, with
    the offset of the first record that they did not get. Damage that is met raises CorruptBatch
    before anything goes out.
    """
    touched: list[MqttOutput] = []
    fallen: list[tuple[MqttOutput, int]] = []
    batch = batch_of_places(data, offsets)
    for span in batch.spans:
        topic = batch.topic(span)
        if topic is None:
            continue
        offset = batch.info.base_offset + span.offset_delta
        value, headers = batch.value(span) or b"", batch.headers(span)
        try:
            fanout.deliver_record(
                topic, value, headers, (partition, offset), now_ms, touched, fallen
            )
        except Exception:  # noqa: BLE001 - the next read from there meets it again, alone
            return offset, touched, fallen
    return None, touched, fallen
