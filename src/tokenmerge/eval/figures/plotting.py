"""How every plot looks: one style, one colour for a variant wherever it appears, the same bytes for the same data."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from tokenmerge.eval.errors import MetricUnavailable

# Distinguished by people who see few colours (after Okabe and Ito), and by their markers: one more of those than of
# colours, so that no pair of both comes again soon.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A6FBF", "#6B6B6B", "#B22222", "#3B7A57")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "*")
STYLE = {
    "font.size": 10,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "axes.edgecolor": "#888888",
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "tokenmerge",
    "text.parse_math": False,  # names are anybody's words: two dollar signs in one are no formula
}


def look_of(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Colour and marker of a variant among all of its run."""
    index = list(names).index(name)
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def new_figure(width: float, height: float) -> Any:
    """A matplotlib figure in inches, without the global state of pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MetricUnavailable("figures need matplotlib: pip install 'tokenmerge[eval]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def styled() -> Any:
    from matplotlib import rc_context

    return rc_context(STYLE)


def to_svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "tokenmerge"})
    return buffer.getvalue()
