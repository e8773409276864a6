"""Kafka's transactions: producer ids, the coordinator and its log, markers, timeouts."""
