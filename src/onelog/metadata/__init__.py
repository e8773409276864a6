"""The metadata store: slow state that the whole node (later: the cluster) agrees on."""
