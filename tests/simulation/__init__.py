"""The simulation: the real broker, log and cursors under a virtual clock on a disk that forgets."""
