"""The queue floor: exchanges, bindings and queues, and how messages get from the log to consumers.

Rules: it knows no protocol. A protocol opens a `QueueHub` (`hub.py`) or a `FilterQueue`, implements
`Consumer` (`consumers.py`) and maps `errors.py` to its own errors.
"""
