"""The address of the autoencoder's class in saved pipelines.

Diffusers takes a component's class only from a module that the process has imported already. This one comes with
`import tokenmerge` and is light; the class, which needs diffusers, is fetched when it is asked for.
"""

from __future__ import annotations

from typing import Any

# The second is where diffusers looks up how the class is loaded.
_NAMES = ("PatchAutoencoder", "ModelMixin")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tokenmerge.zoo import patch_autoencoder

    return getattr(patch_autoencoder, name)
