"""The object engine: partitions whose primary place is an object store; one chain for all of them.

Rules: an append is answered when its object, and all before it in the node's chain, are in the
store. Nothing of it needs a local disk. `objects/chain*.py` write and open the chain; here is what
its objects mean.
"""

from onelog.storage.object.engine import ObjectEngine
from onelog.storage.object.settings import ObjectSettings
from onelog.storage.object.watching import ChainWatch, chain_samples, engine_samples

__all__ = ["ChainWatch", "ObjectEngine", "ObjectSettings", "chain_samples", "engine_samples"]
