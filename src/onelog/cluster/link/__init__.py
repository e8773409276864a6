"""Inner links: how two nodes of a cluster speak to each other."""
