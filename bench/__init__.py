"""Benchmarks: each prints a table with its bars and writes `build/bench/NAME.json`."""
