"""The papers' figures, drawn from a run."""
