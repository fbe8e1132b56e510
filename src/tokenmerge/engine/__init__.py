"""Merging as it runs: hooks on a model, and what they decide."""
