"""Sets of offsets: roaring bitmaps, small where offsets lie close together."""

from pyroaring import BitMap64 as OffsetSet

__all__ = ["OffsetSet"]
