"""k-means of hidden states, recoloured by the image (paper Fig. 3): tokens of one colour in the image stay together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from tokenmerge.api import denoisers_of
from tokenmerge.engine.clock import Clock
from tokenmerge.eval.figures.plotting import new_figure, styled, to_svg
from tokenmerge.models import family_of
from tokenmerge.models.arguments import named_arguments
from tokenmerge.models.base import Family

CLUSTERS = 12
MOST_BLOCKS = 6
MOST_STEPS = 6


@dataclass(frozen=True)
class HiddenState:
    block: str
    step: int
    grid: tuple[int, int]
    tokens: Tensor  # (N, C)


@contextmanager
def recorded_hidden_states(pipeline: Any, steps: int) -> Iterator[list[HiddenState]]:
    """Collects the tokens that enter some blocks at some steps, of the last sample: with guidance, the prompt's own."""
    model = denoisers_of(pipeline)[0]
    family = family_of(model)
    recorder = _Recorder(family, chosen(steps, MOST_STEPS))
    handles = [model.register_forward_pre_hook(recorder.begin_call, with_kwargs=True)]
    for stack in family.stacks(model):
        handles.append(stack.owner.register_forward_pre_hook(recorder.entering(stack), with_kwargs=True))
        for block in stack.blocks:
            handles.append(block.module.register_forward_pre_hook(recorder.seeing(block.name), with_kwargs=True))
    try:
        yield recorder.found
    finally:
        for handle in handles:
            handle.remove()


class _Recorder:
    def __init__(self, family: Family, steps: Sequence[int]) -> None:
        self.family = family
        self.steps = set(steps)
        self.step = -1
        self.timestep: float | None = None
        self.grid: tuple[int, ...] = ()
        self.trailing = 0
        self.starts: tuple[int, ...] = ()
        self.found: list[HiddenState] = []

    def begin_call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        timestep = Clock().read(self.family.read_call((), named_arguments(module, args, kwargs)).timestep).value
        # Guidance may call the model twice at one step.
        self.step += self.step < 0 or timestep is None or timestep != self.timestep
        self.timestep = timestep

    def entering(self, stack: Any) -> Any:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            named = named_arguments(module, args, kwargs)
            self.grid = tuple(stack.grid((), named))
            self.trailing = stack.trailing((), named)
            self.starts = stack.starts((), named)

        return enter

    def seeing(self, name: str) -> Any:
        def see(module: nn.Module, args: Any, kwargs: Any) -> None:
            tokens = args[0] if args else kwargs["hidden_states"]
            # Flux's single blocks carry the text in front of the image, and a reference image behind it.
            begin = tokens.shape[1] - self.trailing - math.prod(self.grid)
            if self.starts and begin > 0:
                begin = self.starts[-1]
            end = begin + math.prod(self.grid)
            if self.step in self.steps and len(self.grid) == 2 and begin >= 0:
                image = tokens[-1, begin:end].detach().float().cpu()
                self.found.append(HiddenState(name, self.step, (self.grid[0], self.grid[1]), image))

        return see


def chosen(count: int, most: int) -> list[int]:
    """This many numbers below `count`, evenly spread, with the first and the last."""
    return sorted({round(index * (count - 1) / max(1, min(most, count) - 1)) for index in range(min(most, count))})


def kmeans(points: Tensor, clusters: int, rounds: int = 20) -> Tensor:
    """(N, C) -> (N,) cluster of each point: Lloyd's rounds from a greedy, deterministic start."""
    first = (points - points.mean(dim=0)).square().sum(dim=1).argmax()
    centres = points[first].unsqueeze(0)
    for _ in range(1, min(clusters, len(points))):
        distances = torch.cdist(points, centres).amin(dim=1)
        centres = torch.cat([centres, points[distances.argmax()].unsqueeze(0)])
    labels = torch.zeros(len(points), dtype=torch.long)
    for _ in range(rounds):
        updated = torch.cdist(points, centres).argmin(dim=1)
        if torch.equal(updated, labels):
            break
        labels = updated
        for index in set(labels.tolist()):
            centres[index] = points[labels == index].mean(dim=0)
    return labels


def recoloured(state: HiddenState, image: Image.Image) -> NDArray[np.uint8]:
    """(H, W, 3): each cluster in the mean colour that the finished image has where its tokens are."""
    return in_colours_of(image, kmeans(state.tokens, CLUSTERS).numpy(), state.grid)


def in_colours_of(image: Image.Image, groups: NDArray[np.int64], grid: tuple[int, int]) -> NDArray[np.uint8]:
    """(H, W, 3): each group of tokens, given by (H * W,) numbers, in its mean colour in the image."""
    height, width = grid
    colours = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BOX), dtype=np.float64)
    flat = colours.reshape(-1, 3)
    _, places, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), 3))
    np.add.at(sums, places, flat)
    painted = (sums / sizes[:, None])[places]
    return painted.reshape(height, width, 3).round().astype(np.uint8)


def plot_clusters(states: Sequence[HiddenState], image: Image.Image) -> str | None:
    """Blocks down, steps across, the finished image at the end."""
    names = list(dict.fromkeys(state.block for state in states))
    if not names:
        return None
    names = [names[index] for index in chosen(len(names), MOST_BLOCKS)]
    steps = sorted({state.step for state in states})
    cells = {(state.block, state.step): state for state in states}
    with styled():
        figure = new_figure(1.5 * (len(steps) + 1) + 0.8, 1.55 * len(names) + 0.4)
        panels = figure.subplots(len(names), len(steps) + 1, squeeze=False)
        for row, name in enumerate(names):
            for column, step in enumerate(steps):
                panel = panels[row][column]
                if (name, step) in cells:
                    panel.imshow(recoloured(cells[name, step], image), interpolation="nearest")
                if row == 0:
                    panel.set_title(f"step {step + 1}", fontsize=9)
            panels[row][0].set_ylabel(short_name(name), fontsize=7)
            panels[row][-1].imshow(image)
        panels[0][-1].set_title("image", fontsize=9)
        for panel in panels.ravel():
            panel.set(xticks=[], yticks=[])
            panel.grid(False)
        return to_svg(figure)


def short_name(block: str) -> str:
    """A block's name for an axis.

    >>> short_name("down_blocks.0.attentions.1.transformer_blocks.0")
    'down 0.1.0'
    """
    for part in ("_blocks", "_block", ".attentions", ".transformer"):
        block = block.replace(part, "")
    return block.replace(".", " ", 1)
