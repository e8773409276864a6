"""Password hashes: argon2id, and the threads that compute them.

Rules: a hash takes tens of milliseconds, so it never runs on the loop. It runs with the
interpreter's lock released, in few threads, so that logins never take the machine from messages.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

T = TypeVar("T")

PASSWORD_BYTES_MAX: Final = 1_024
"""UTF-8 bytes of a password."""

# OWASP's setting with the least memory: 19 MiB for each hash under way.
_MEMORY_KIB: Final = 19_456
_PASSES: Final = 2
_LANES: Final = 1
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32

_HASHER: Final = PasswordHasher(
    time_cost=_PASSES,
    memory_cost=_MEMORY_KIB,
    parallelism=_LANES,
    hash_len=_HASH_BYTES,
    salt_len=_SALT_BYTES,
)


def _zeros(size: int) -> str:
    return base64.b64encode(bytes(size)).decode().rstrip("=")


NOBODY: Final = (
    f"$argon2id$v=19$m={_MEMORY_KIB},t={_PASSES},p={_LANES}"
    f"${_zeros(_SALT_BYTES)}${_zeros(_HASH_BYTES)}"
)
"""A hash of no known password: what an unknown user's password is checked against."""


def hash_password(password: bytes) -> str:
    """The encoded argon2id hash of a password."""
    return _HASHER.hash(password)


def matches(encoded: str, password: bytes) -> bool:
    """Whether the password is the one that was hashed."""
    try:
        return _HASHER.verify(encoded, password)
    except (VerificationError, InvalidHashError):
        return False


class HashThreads:
    """The few threads that compute hashes."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="onelog-hash")

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in a thread; cancelling the future drops it if it did not start yet."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def close(self) -> None:
        """Drop what waits and wait for what runs."""
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
