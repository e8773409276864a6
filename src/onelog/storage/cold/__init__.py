"""Cold bytes: pieces of partitions in an object store, read through a bounded cache here.

Rules: no read waits for the store. A read raises `Cold`, a courier brings the bytes, and the same
read succeeds. `storage/tiered` and `storage/object` stand on this package, which knows neither.
"""

from onelog.storage.cold.bringing import Bringing, Brought
from onelog.storage.cold.cache import RunCache
from onelog.storage.cold.holding import DoomedHold
from onelog.storage.cold.plans import PlanHold
from onelog.storage.cold.reading import ColdRows
from onelog.storage.cold.table import RowTable

__all__ = ["Bringing", "Brought", "ColdRows", "DoomedHold", "PlanHold", "RowTable", "RunCache"]
