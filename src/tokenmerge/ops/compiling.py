"""Code that torch.compile must not look into."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch._compile import _disable_dynamo

Function = TypeVar("Function", bound=Callable[..., Any])

# `torch.compiler.disable`, but it loads the compiler when first called and not at import, which takes a second.
outside_compile: Callable[[Function], Function] = _disable_dynamo  # type: ignore[assignment]
