"""The memory engine: a bounded ring of batches per partition; nothing is on disk."""

from onelog.storage.memory.engine import MemoryEngine
from onelog.storage.memory.ring import MemoryLog

__all__ = ["MemoryEngine", "MemoryLog"]
