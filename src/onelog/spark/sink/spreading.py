"""Which partition a row goes to: the one that it names, that of its key, or the task's next one.

Rules: keys are spread as Kafka's own clients do it (MurmurHash2), so that a key is in the same
partition, whichever client wrote it. Rows without a key go to one partition per batch of rows, in
turn. All of it is done for a whole column at once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from onelog.base.errors import InvalidRequest

_SEED: Final = np.uint32(0x9747B28C)
_MIX: Final = np.uint32(0x5BD1E995)
_POSITIVE: Final = np.uint32(0x7FFF_FFFF)
_WORD_BYTES: Final = 4
_TAILS: Final = np.array([0, 0xFF, 0xFFFF, 0xFF_FFFF], np.uint32)
"""What of a word belongs to a key that has so many bytes left."""
_NO_ENDS: Final = bytes(8)
"""The ends of a column without rows, which may have no buffer."""


def spread(keys: Any, wanted: Any, partitions: int, turn: int, topic: str) -> Any:
    """The partition of each row, or one number for all of them.

    `keys` and `wanted` are columns, or None where the rows have none.
    """
    if wanted is None or wanted.null_count == len(wanted):
        return _by_key(keys, partitions, turn)
    told = _checked(wanted.fill_null(0).to_numpy(), partitions, topic)
    if not wanted.null_count:
        return told
    named = wanted.is_valid().to_numpy(zero_copy_only=False)
    return np.where(named, told, _by_key(keys, partitions, turn))


def _by_key(keys: Any, partitions: int, turn: int) -> Any:
    if partitions == 1 or keys is None or keys.null_count == len(keys):
        return turn % partitions
    chosen = (murmur2(keys) & _POSITIVE).astype(np.int64) % partitions
    if keys.null_count:
        chosen[keys.is_null().to_numpy(zero_copy_only=False)] = turn % partitions
    return chosen


def _checked(wanted: Any, partitions: int, topic: str) -> Any:
    wrong = (wanted < 0) | (wanted >= partitions)
    if wrong.any():
        raise InvalidRequest(
            f"a row names partition {wanted[wrong][0]} of {topic}, which has {partitions}"
            f" (0 to {partitions - 1})"
        )
    return wanted.astype(np.int64)


def murmur2(keys: Any) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Kafka's hash of each key of a column, word by word for all of them; nulls as empty keys."""
    keys = keys.fill_null(b"") if keys.null_count else keys
    keys = keys.cast(pa.large_binary())
    _validity, bounds, data = keys.buffers()
    ends = np.frombuffer(bounds or _NO_ENDS, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    starts, sizes = ends[:-1] - ends[0], np.diff(ends)
    word_at = _words(data, int(ends[0]), int(ends[-1]))
    state = _SEED ^ sizes.astype(np.uint32)
    words = sizes // _WORD_BYTES
    shared = int(words.min()) if len(words) else 0  # so many words every key has
    for at in range(int(words.max(initial=0))):
        row: Any = slice(None) if at < shared else np.flatnonzero(words > at)
        word = word_at[starts[row] + at * _WORD_BYTES] * _MIX
        word ^= word >> np.uint32(24)
        state[row] = (state[row] * _MIX) ^ (word * _MIX)
    left = sizes % _WORD_BYTES
    row = np.flatnonzero(left)
    tail = word_at[starts[row] + words[row] * _WORD_BYTES] & _TAILS[left[row]]
    state[row] = (state[row] ^ tail) * _MIX
    state ^= state >> np.uint32(13)
    state *= _MIX
    state ^= state >> np.uint32(15)
    return state


def _words(data: Any, first: int, end: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The word that begins at each byte, its least byte first; zeros follow the last byte."""
    text = np.zeros(end - first + _WORD_BYTES, np.uint8)
    if data is not None:
        text[: end - first] = np.frombuffer(data, np.uint8)[first:end]
    return np.ndarray(len(text) - _WORD_BYTES + 1, "<u4", text, strides=(1,))
