"""Do readers get whole, right batches while segments are rewritten, dropped and let go of?"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from onelog.base.errors import OffsetOutOfRange
from onelog.kernel import scan_batches, topic_hash
from onelog.storage.engine import LogSettings, PartitionKey, in_place
from onelog.storage.segment import SegmentEngine
from tests.batches import append, fill, make_batch, values

SETTINGS = LogSettings(segment_bytes=2_000, index_interval_bytes=200)


def test_readers_see_old_or_new_batches_during_rewrites_trims_and_evictions(tmp_path: Path):
    engine = SegmentEngine(tmp_path, open_files_max=16)
    log = engine.open(PartitionKey("s", 0), SETTINGS)
    others = [engine.open(PartitionKey("o", at), SETTINGS) for at in range(9)]
    done = threading.Event()
    failures: list[BaseException] = []
    reads = [0]

    def reader(number: int) -> None:
        try:
            while not done.is_set():
                offset = log.start_offset
                while offset < log.end_offset:
                    try:
                        view = in_place(log, partial(log.read, offset, 3_000, log.end_offset))
                    except OffsetOutOfRange:
                        break
                    if not len(view):
                        break
                    infos = scan_batches(view)
                    for info, value in zip(infos, values(view), strict=True):
                        assert value is not None
                        assert value.startswith(b"%d." % info.base_offset)
                        assert info.last_offset >= offset
                    offset = infos[-1].last_offset + 1
                    reads[number] += 1
                found = in_place(
                    log, lambda: log.offsets_of_topic(topic_hash(b"t"), 0, log.end_offset, 1000)
                )
                assert found == sorted(set(found or []))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=reader, args=(number,)) for number in (0,)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(6):
            for _ in range(20):
                append(log, make_batch(log.end_offset, topic=b"t", size=60))
            log.roll()
            rows = [row for row in log.segments() if row.sealed]
            rewrite = log.rewrite(rows[0].base_offset, rows[-1].end_offset)
            for offset in range(rows[0].base_offset, rows[-1].end_offset, turn % 3 + 1):
                batch = make_batch(offset, topic=b"t", size=60)
                rewrite.append(batch, scan_batches(batch))
            rewrite.commit()
            for other in others:  # they take the open files away
                fill(other, 1)
                other.sync()
            if turn % 3 == 2:
                log.trim(log.end_offset - 30)
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
    assert not failures
    assert min(reads) > 0
    engine.close()
