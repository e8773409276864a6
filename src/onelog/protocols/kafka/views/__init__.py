"""Views: Kafka topics that show a topic or a filter of streams that hold many (`Views`)."""
