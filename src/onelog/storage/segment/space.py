"""Space that is reserved ahead of appends, so that a full disk is known before bytes are written.

Rules: a reservation doubles, up to a bound and never beyond the segment, so that appends seldom ask
for one. Where there is no room for that much, exactly what an append needs is reserved. Where the
file system cannot reserve, nobody asks it again.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from onelog.base import faults

if TYPE_CHECKING:
    from onelog.storage.segment.segment import EngineShared

RESERVE_BYTES_MIN: Final = 64 * 1024
RESERVE_BYTES_MAX: Final = 16 * 1024 * 1024
_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def reserve(fd: int, have: int, needed: int, most: int, shared: EngineShared) -> int:
    """Reserve at least `needed` bytes of a file that has `have`. Returns its room."""
    step = min(max(have, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX)
    wish = max(needed, min(have + step, most))
    for target in (wish, needed) if shared.allocate else ():
        try:
            faults.hit("segment.allocate")
            os.posix_fallocate(fd, have, target - have)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                shared.allocate = False
                break
            if target == needed:
                raise
        else:
            return target
    # Nothing is reserved from here on, so nobody needs to ask for the rest of the segment.
    return max(needed, most)
