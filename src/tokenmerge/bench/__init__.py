"""Latency, multiply-adds and memory of merging methods, side by side on one model and interleaved over repeats."""
