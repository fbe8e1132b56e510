"""Forward hooks of ours on the modules of a model: placed, followed where a module is replaced, hidden and removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import nn
from torch.utils.hooks import RemovableHandle

When = Literal["before", "after"]


class PlacedHook:
    """One hook on the module that an owner holds under a name, whichever module that is at the moment."""

    def __init__(self, owner: nn.Module, path: str, when: When, function: Callable[..., Any], **options: Any) -> None:
        parent, _, name = path.rpartition(".")
        # The module that holds it: LoRA and quantisation replace a layer there.
        self._holder = owner.get_submodule(parent) if path else None
        self._name = name
        self._module = owner if self._holder is None else self._holder._modules[name]
        self._when = when
        self._function = function
        self._options = options
        self._handle = self._register()
        self.hidden = False

    def _register(self) -> RemovableHandle:
        assert self._module is not None
        if self._when == "before":
            return self._module.register_forward_pre_hook(self._function, with_kwargs=True, **self._options)
        return self._module.register_forward_hook(self._function, **self._options)

    def follow(self) -> None:
        """Move to the module that has taken the place of the one it was put on."""
        if self._holder is None or self._holder._modules[self._name] is self._module:
            return
        hidden = self.hidden
        self.remove()
        self._module = self._holder._modules[self._name]
        self._handle, self.hidden = self._register(), False
        if hidden:
            self.hide()

    def hide(self) -> None:
        """Take the hook out for a while. It keeps its number, by which compiled code knows it."""
        if not self.hidden and self._module is not None:
            self._table.pop(self._handle.id, None)
            self.hidden = True

    def show(self) -> None:
        """Put a hidden hook back, behind all others."""
        if self.hidden:
            self._table[self._handle.id] = self._function
            self.hidden = False

    def remove(self) -> None:
        self._handle.remove()
        current = self._module if self._holder is None else self._holder._modules[self._name]
        for module in {self._module, current} - {None}:
            self._drop_copies(module)

    def _drop_copies(self, module: nn.Module | None) -> None:
        """PyTorch's quantisation copies hooks onto a layer's replacement, where they were never registered."""
        assert module is not None
        for table in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in table.items() if hook == self._function]:
                del table[key]

    @property
    def _table(self) -> dict[int, Callable[..., Any]]:
        assert self._module is not None
        return self._module._forward_pre_hooks if self._when == "before" else self._module._forward_hooks
