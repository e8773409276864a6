"""Several nodes: who they are, the rules by which replicas copy a partition, and who leads it."""
