"""How much guidance changes the prediction, and where: the parts of an image that the prompt is about.

With classifier-free guidance a model predicts twice, with the prompt and without. Where the two differ most, merging
would show most. Both predictions of the step before are seen by the hook on the model: as the halves of one batch, or
as two calls at one timestep.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tokenmerge.errors import MergeRuntimeError

# Weights are relative to the mean of the image; beyond these bounds a token counts no less and no more.
LEAST_WEIGHT, MOST_WEIGHT = 1 / 8, 8.0


class GuidanceWatch:
    """Follows the predictions of a generation."""

    def __init__(self) -> None:
        self.magnitude: Tensor | None = None  # (B, ...) of the step before; None at the first
        self._step = 0
        self._branch = 0
        self._halves = False  # one call holds both predictions
        self._predictions: dict[int, Tensor] = {}  # of this step, by guidance branch

    def begin_call(self, step: int, branch: int, inputs: Tensor) -> None:
        """Learn of a call, before it: `inputs` is the noisy image."""
        if step == 0 and branch == 0:
            self.magnitude, self._step, self._predictions = None, 0, {}
            self._halves = _both_halves_alike(inputs)  # waits for the device, once a generation
        if step != self._step:
            self.magnitude = self._difference()
            self._step, self._predictions = step, {}
        self._branch = branch

    def end_call(self, output: Any) -> None:
        """Learn what a call gave."""
        output = output if isinstance(output, Tensor) else output[0]
        self._predictions[self._branch] = output.detach()

    def _difference(self) -> Tensor:
        first, *others = self._predictions.values()
        if self._halves:
            with_prompt, without = first.float().chunk(2)
            return _size_of(with_prompt - without).repeat(2, *[1] * (first.dim() - 2))
        if not others or others[0].shape != first.shape:
            raise MergeRuntimeError(
                "importance is 'guidance', and this pipeline makes no classifier-free guidance, so there is no "
                "prediction without the prompt to compare with: raise guidance_scale above 1 (true_cfg_scale for Flux, "
                "with a negative prompt), or leave importance out."
            )
        return _size_of(first.float() - others[0].float())

    def weights(self, grid: tuple[int, ...], trailing: int = 0) -> Tensor | None:
        """(B, N): how many tokens each token of a grid counts as; None at the first step.

        trailing: tokens behind those of the grid, where there is a prediction for each token; others stand in front.
        """
        if self.magnitude is None:
            return None
        if self.magnitude.dim() == 2:
            end = self.magnitude.shape[1] - trailing
            sizes = self.magnitude[:, end - math.prod(grid) : end]
        else:
            pool = functional.adaptive_avg_pool2d if len(grid) == 2 else functional.adaptive_avg_pool3d
            sizes = pool(self.magnitude.unsqueeze(1), grid).flatten(1)  # type: ignore[arg-type]
        return (sizes / sizes.mean(dim=1, keepdim=True).clamp_min(1e-20)).clamp(LEAST_WEIGHT, MOST_WEIGHT)


def _both_halves_alike(inputs: Tensor) -> bool:
    """Is this a batch that holds every noisy image twice, as pipelines make it for guidance?"""
    if inputs.shape[0] % 2:
        return False
    first, second = inputs.chunk(2)
    return torch.equal(first, second)


def _size_of(difference: Tensor) -> Tensor:
    """(B, C, ...) or (B, N, C) -> (B, ...) or (B, N): the mean over channels of absolute values."""
    return difference.abs().mean(dim=-1 if difference.dim() == 3 else 1)
