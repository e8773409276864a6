"""Begins a helper process: a module of ours that speaks over its standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import IO, Any, Final

_LINE_BYTES_MAX: Final = 4 * 1024 * 1024


async def begin_helper(module: str, errors: int | IO[Any]) -> asyncio.subprocess.Process:
    """Begin it; what it writes to standard error goes to `errors`."""
    paths = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return await asyncio.create_subprocess_exec(
        # -P: Python never imports from the current folder.
        sys.executable, "-P", "-m", module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        env={**os.environ, "PYTHONPATH": paths},
        limit=_LINE_BYTES_MAX,
        start_new_session=True,  # Ctrl-C is for the broker, which then ends the helper
    )  # fmt: skip
