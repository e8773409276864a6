"""Takes rows that do not fit a table, so that one bad row never stops a pipeline for ever.

Rules: a bad row is kept with its reason and everything it held. It is committed once, under the
same (query, batch) as the good rows of its batch, and before them. Without a dead-letter table or
topic the batch fails at the first bad row, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from onelog.base.errors import InvalidRequest
from onelog.lake.columns import UTC_MICROS, BadRow
from onelog.lake.options import Mode, TableOptions

SCHEMA = pa.schema(
    [
        pa.field("_table", pa.string(), False),
        pa.field("_query", pa.string(), False),
        pa.field("_time", UTC_MICROS, False),
        pa.field("_reason", pa.string(), False),
        pa.field("_row", pa.string(), False),
    ]
)
ROW_CHARS_MAX = 1 << 20


def letters_options(options: TableOptions) -> TableOptions:
    """The options of the table that takes the bad rows of another."""
    assert options.dead_letter_table is not None
    return replace(
        options,
        table=options.dead_letter_table,
        mode=Mode.APPEND,
        keys=(),
        order_by=(),
        delete_column=None,
        partitions=(),
        required=(),
        dead_letter_table=None,
        dead_letter_topic=None,
        dead_letter_options=(),
    )


def letters(table: str, query: str, bad: Sequence[BadRow]) -> pa.Table:
    """Bad rows as rows of the table that takes them."""
    now = datetime.now(UTC)
    rows = [
        {
            "_table": table,
            "_query": query,
            "_time": now,
            "_reason": one.reason,
            "_row": one.row[:ROW_CHARS_MAX],
        }
        for one in bad
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def refuse(table: str, bad: Sequence[BadRow]) -> None:
    """Fail a batch that has bad rows and no place for them."""
    raise InvalidRequest(
        f"a row does not fit the table {table}: {bad[0].reason}; the row is {bad[0].row[:500]}. "
        "Correct the row before the sink, or set deadLetterTable or deadLetterTopic for such rows"
    )
