"""Takes out of a model what a package left behind in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Give every module back the instance attributes it had, whatever happens inside.

    Packages that replace a module's `forward` put the old one back as an attribute of the instance, which code that
    looks for replaced modules takes for a replacement.
    """
    before = [(module, dict(vars(module)), dict(module._modules)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, children in before:
            now = vars(module)
            for name in now.keys() - attributes.keys():
                del now[name]
            now.update({name: value for name, value in attributes.items() if now.get(name) is not value})
            if list(module._modules.items()) != list(children.items()):
                # A child that was swapped for a call comes back as the last one: names of modules would change order.
                module._modules.clear()
                module._modules.update(children)
