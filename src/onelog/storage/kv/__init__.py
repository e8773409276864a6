"""The kv engine: every partition in one RocksDB database; cheap when there are very many."""

from onelog.storage.kv.engine import KvEngine
from onelog.storage.kv.partition import KvLog

__all__ = ["KvEngine", "KvLog"]
