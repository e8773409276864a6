"""Lakehouse tables without jars: Iceberg, Delta and plain Parquet, written exactly once."""
