"""Queues: what waits, who consumes, how it leaves."""
