"""The log: streams and their partitions, who a topic belongs to, appends, retention, wake-ups."""
