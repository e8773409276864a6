"""Records and record batches: what the log holds, and how it is compressed."""
