"""Several nodes in one thread: replication and elections under every fault, from a seed."""
