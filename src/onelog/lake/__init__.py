"""Tables of a lakehouse without jars: Iceberg, Delta and plain Parquet. No Spark in it.

Rules: Spark's jobs and the lake process of a broker write tables by these modules. The broker's own
process imports none of those that need Arrow or a library of a table format.
"""
