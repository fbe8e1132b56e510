"""An image that is given up in the middle, and the next one after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from row import Row
from tiny_models import made, tiny
from tiny_pipelines import flux_pipeline, generate, stable_diffusion
from torch import Tensor, nn
from with_offload import denoiser


class GivenUp(Exception):
    """Raised by a callback."""


def stop_politely(pipe: Any) -> None:
    """Set `_interrupt`: the pipeline runs to its end and calls the model no more."""

    def stop(pipe: Any, step: int, *_: Any) -> dict[str, Any]:
        pipe._interrupt = step == 0
        return {}

    generate(pipe, prompt="another one", seed=5, steps=3, callback_on_step_end=stop)


def fail_in_callback(pipe: Any) -> None:
    def fail(*_: Any) -> dict[str, Any]:
        raise GivenUp

    try:
        generate(pipe, prompt="another one", seed=5, steps=3, callback_on_step_end=fail)
    except GivenUp:
        return
    raise AssertionError("the callback was not called")


def interrupt(model: nn.Module, run: Callable[[], Any], calls: int = 2) -> None:
    """Press Ctrl-C inside an attention, the second time it runs."""
    inside = ("attn1.to_out.0", "attn.to_out.0")
    attention = next(module for name, module in model.named_modules() if name.endswith(inside))
    seen = []

    def press(*_: Any) -> None:
        seen.append(1)
        if len(seen) == calls:
            raise KeyboardInterrupt

    hook = attention.register_forward_pre_hook(press)
    try:
        run()
    except KeyboardInterrupt:
        return
    finally:
        hook.remove()
    raise AssertionError("it was not interrupted")


def press_keys(pipe: Any) -> None:
    interrupt(denoiser(pipe), partial(generate, pipe, prompt="another one", seed=5, steps=3))


def again(give_up: Callable[[Any], None], pipe: Any) -> Tensor:
    """The next image owes nothing to the one that was given up."""
    before = generate(pipe, steps=3)
    give_up(pipe)
    after = generate(pipe, steps=3)
    assert torch.equal(before, after), "the next image is another"
    return after


SD3 = tiny("sd3")


def bare_again(model: nn.Module) -> Tensor:
    """The same for a model whose keys are weighed by a mode that is entered while its attention runs."""
    grid = (8, 8)

    def run(seed: int) -> Tensor:
        return torch.cat([SD3.call(model, [seed], grid, timestep) for timestep in (3.0, 2.0)])

    before = run(1)
    interrupt(model, partial(run, 2))
    assert torch.equal(run(1), before), "the next image is another"
    return before


MODELS = (("SD 1.5", stable_diffusion), ("Flux", flux_pipeline))
ROWS = [
    *(
        Row("interrupted", name, *on, generate=partial(again, give_up))
        for name, give_up in (
            ("`pipe._interrupt`", stop_politely),
            ("an exception in a callback", fail_in_callback),
            ("KeyboardInterrupt inside attention", press_keys),
        )
        for on in MODELS
    ),
    Row(
        "interrupted",
        "KeyboardInterrupt inside attention",
        "SD 3",
        partial(made, SD3.build),
        generate=bare_again,
        warm_up=bare_again,
        changes=False,
    ),
]
