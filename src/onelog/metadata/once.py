"""Keys that are written once: the first writer chooses the value, and it never changes.

Rule: after an unknown outcome the key itself shows the result; without an answer no caller goes on
with a value of its own (I9).
"""

from __future__ import annotations

import contextlib

from onelog.base.errors import OutcomeUnknown, Unavailable
from onelog.metadata.store import Compare, MetadataStore, Put


async def written_once(store: MetadataStore, key: str, value: bytes) -> bytes:
    """The permanent value of a key: the existing one, or `value`, which is written then."""
    absent = Compare(key, "mod_revision", "==", 0)
    with contextlib.suppress(OutcomeUnknown):
        if (await store.txn((absent,), (Put(key, value),))).succeeded:
            return value
    entry = await store.get(key)
    if entry is None:
        raise Unavailable(f"it is not known whether the metadata store took {key!r}; start again")
    return entry.value
