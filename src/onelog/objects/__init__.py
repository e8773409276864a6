"""Objects in a store: how they are reached, what they are called, what is in them.

This floor knows bytes and names; it knows no engine, no stream and no loop. Backups, cold reads,
the engine `object`, tables and Spark stand on it.
"""
