"""Fuzz targets: one for each decoder and one for each connection, over a corpus of real traffic."""
