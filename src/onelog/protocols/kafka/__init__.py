"""The Kafka protocol: topics are streams or views, a group is a cursor, batches stay as sent."""
