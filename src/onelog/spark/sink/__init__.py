"""The sink: rows of Spark into topics, each once, seen all together when their batch is done."""

from onelog.spark.sink.options import SinkOptions, sink_options
from onelog.spark.sink.writers import batch_writer, stream_writer

__all__ = ["SinkOptions", "batch_writer", "sink_options", "stream_writer"]
