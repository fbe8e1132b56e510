"""The papers' figures, plotted from a run."""
