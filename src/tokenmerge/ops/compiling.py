"""Code that torch.compile must not look into."""

from torch._compile import _disable_dynamo

# `torch.compiler.disable`, but it loads the compiler when first called and not at import, which takes a second.
outside_compile = _disable_dynamo
