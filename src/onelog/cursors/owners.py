"""Which name owns a cursor: its state lies in the shard of that name.

Rules: the form of a cursor's name decides. `kind/name` is owned by `name`: so the cursor of a
session lies with the session of its client, and one node owns both. `kind:…` is one of many that
belong together: all of them lie in shard 0, the shard of the empty name. Any other cursor owns
itself.
"""

from __future__ import annotations

import re
from typing import Final

TOGETHER: Final = b""
"""The owner of all cursors that belong together. Each hash of names gives it shard 0."""
_KIND: Final = re.compile(r"([^/:]*)([/:])(.*)", re.DOTALL)


def owner_of(cursor: str) -> bytes:
    """The name that owns a cursor."""
    found = _KIND.fullmatch(cursor)
    if found is None:
        return cursor.encode()
    return TOGETHER if found[2] == ":" else found[3].encode()
