"""From prompts to paired images, metrics, tables, figures and one page: `tokenmerge eval` and what it is made of.

`evaluate_model` does the same in Python, for a model that has no pipeline.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from tokenmerge.errors import UsageError

PACKAGES = ("filelock", "matplotlib", "pyarrow", "tomli_w")


def require_packages(what: str) -> None:
    """Raise if a package of the extra `eval` is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{what} needs {' and '.join(missing)}: pip install 'tokenmerge[eval]'.")


def __getattr__(name: str) -> Any:
    # Looked up when it is asked for: what it imports may not be installed.
    if name != "evaluate_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_packages(name)
    from tokenmerge.eval.own_model import evaluate_model

    return evaluate_model
