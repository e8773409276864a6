"""The source: topics as Spark tables and streams."""
