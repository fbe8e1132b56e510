"""Settings found by measuring: `tune` and `worthwhile`."""
