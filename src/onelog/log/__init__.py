"""The log: streams and their partitions, the home of each topic, appends, retention, wake-ups."""
