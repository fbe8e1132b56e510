"""What can be seen of a model from outside while it is sampled."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Attentions:
    """The tokens of every self-attention, by ComfyUI's own way to stand between a model and its attention."""

    def __init__(self) -> None:
        self.queries: list[int] = []
        self.keys: list[int] = []
        self.batches: set[int] = set()
        self.steps: list[int] = [0]  # keys seen in each step, if `next_step` is the sampler's callback

    def next_step(self, *_: Any) -> None:
        self.steps.append(0)

    def on(self, model: Any) -> Any:
        """A clone of the model whose attention is seen."""
        clone = model.clone()
        clone.model_options["transformer_options"]["optimized_attention_override"] = self._seen
        return clone

    def _seen(self, function: Any, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.batches.add(query.shape[0])
        if key.shape[-2] > 20:  # not the text's
            self.queries.append(query.shape[-2])
            self.keys.append(key.shape[-2])
            self.steps[-1] += key.shape[-2]
        return function(query, key, *args, **kwargs)


def hooks_on(model: Any) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + ("forward" in vars(module))
        for module in model.model.modules()
    )


def weights_of(model: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.model.state_dict().items()}


def largest_difference(one: Tensor, other: Tensor) -> float:
    """As a share of the largest value."""
    return float((one - other).abs().max() / other.abs().max())
