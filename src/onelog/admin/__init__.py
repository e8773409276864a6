"""The admin listener: health, metrics and a read-only JSON view of streams and cursors."""
