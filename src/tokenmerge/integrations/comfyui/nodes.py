"""The nodes. ComfyUI's modules are needed to import this; `comfy_entrypoint` does."""

from __future__ import annotations

from typing import Any

import torch
from comfy_api.latest import ComfyExtension, io, ui

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.correction import FullSteps
from tokenmerge.integrations.comfyui.sampling import Merging, merging_of
from tokenmerge.presets import NAMES, preset

CATEGORY = "model/token merging"
METHODS = ("TileMean", "SampledKeys", "ToMA", "ToMeSD", "ToFu", "ToDo")


def _model_input() -> Any:
    return io.Model.Input("model", tooltip="The model to merge tokens in. It stays as it is; the output is a clone.")


def _when_inputs() -> list[Any]:
    return [
        io.Float.Input(
            "start_percent",
            default=0.0,
            min=0.0,
            max=1.0,
            step=0.01,
            tooltip="Where in the sampling merging begins. Steps before it run on all tokens.",
            advanced=True,
        ),
        io.Float.Input(
            "end_percent",
            default=1.0,
            min=0.0,
            max=1.0,
            step=0.01,
            tooltip="Where in the sampling merging ends. Steps after it run on all tokens.",
            advanced=True,
        ),
    ]


def _keep_input() -> Any:
    tooltip = "What must stay sharp: tokens that hold a white pixel are not merged."
    return io.Mask.Input("keep", optional=True, tooltip=tooltip)


class TokenMerge(io.ComfyNode):
    """Merges tokens by a preset."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TokenMerge",
            display_name="Token Merge",
            category=CATEGORY,
            description="Makes sampling faster by merging redundant tokens. Connect it between the model and the "
            "sampler. Of several in a row the last one counts.",
            search_aliases=["ToMe", "ToMA", "tomesd", "speed up", "tokenmerge"],
            inputs=[
                _model_input(),
                io.Combo.Input(
                    "preset",
                    options=list(NAMES),
                    default="balanced",
                    tooltip="quality stays closest to the unmerged image, fast saves most, balanced lies between.",
                ),
                *_when_inputs(),
                _keep_input(),
            ],
            outputs=[io.Model.Output(tooltip="The model with merged tokens.")],
        )

    @classmethod
    def execute(
        cls, model: Any, preset: str, start_percent: float, end_percent: float, keep: torch.Tensor | None = None
    ) -> io.NodeOutput:
        config = _preset(preset, model)
        return io.NodeOutput(Merging(config, _mask(keep), start_percent, end_percent).on(model))


class TokenMergeAdvanced(io.ComfyNode):
    """Merges tokens by a method and its options."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TokenMergeAdvanced",
            display_name="Token Merge (advanced)",
            category=CATEGORY,
            description="Token Merge with a method and its options instead of a preset. 0 and auto leave an option as "
            "it suits the method. An option that the method does not have is refused.",
            inputs=[
                _model_input(),
                io.Combo.Input("method", options=list(METHODS), default=METHODS[0], tooltip="What merges the tokens."),
                io.Float.Input("ratio", default=0.0, min=0.0, max=0.99, step=0.01, tooltip="Share merged away."),
                io.Int.Input("tile", default=0, min=0, max=32, tooltip="Side of a tile in tokens. Try 2 and 4."),
                io.Combo.Input(
                    "scope",
                    options=["auto", "site", "block", "stack"],
                    default="auto",
                    tooltip="Merge around each attention and MLP, once per block, or once per run of blocks.",
                ),
                io.Int.Input(
                    "full_steps",
                    default=0,
                    min=-1,
                    max=100,
                    tooltip="Run every this many steps on all tokens, to correct the others. -1: never. Try 3 to 8.",
                ),
                io.Int.Input(
                    "skip_blocks",
                    default=-1,
                    min=-1,
                    max=200,
                    tooltip="How many of the first blocks stay unmerged. -1: as many as suit the model.",
                ),
                *_when_inputs(),
                _keep_input(),
            ],
            outputs=[io.Model.Output(tooltip="The model with merged tokens.")],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        method: str,
        ratio: float,
        tile: int,
        scope: str,
        full_steps: int,
        skip_blocks: int,
        start_percent: float,
        end_percent: float,
        keep: torch.Tensor | None = None,
    ) -> io.NodeOutput:
        chosen: dict[str, Any] = {
            "ratio": ratio or None,
            "tile": tile or None,
            "scope": None if scope == "auto" else scope,
            "correction": FullSteps(every=full_steps) if full_steps > 0 else None,
            "skip_blocks": None if skip_blocks < 0 else skip_blocks,
        }
        options = {name: value for name, value in chosen.items() if value is not None}
        options |= {"correction": None} if full_steps < 0 else {}
        config = MergeConfig.from_dict({"method": method, **options})
        return io.NodeOutput(Merging(config, _mask(keep), start_percent, end_percent).on(model))


class TokenMergeExplain(io.ComfyNode):
    """Shows what was merged in the last run."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TokenMergeExplain",
            display_name="Token Merge Explain",
            category=CATEGORY,
            description="What Token Merge merged where in the last run of a model, and what it saved.",
            inputs=[
                io.Model.Input("model", tooltip="The output of Token Merge, or a model made from it."),
                io.AnyType.Input(
                    "after",
                    optional=True,
                    tooltip="The sampler's output, so that this node runs after it and shows this run. Without it the "
                    "run before this one is shown.",
                ),
            ],
            outputs=[io.String.Output(display_name="explanation")],
            is_output_node=True,
            not_idempotent=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> float:
        return float("nan")  # a run changes what there is to show, not the inputs: never the same as before

    @classmethod
    def execute(cls, model: Any, after: Any = None) -> io.NodeOutput:
        text = explained(model)
        return io.NodeOutput(text, ui=ui.PreviewText(text))


def explained(model: Any) -> str:
    """What the newest run of a ModelPatcher merged."""
    from tokenmerge.report.explain import explain

    merging = merging_of(model)
    if merging is None:
        return "Nothing is merged in this model: connect the output of a Token Merge node."
    if merging.last is None or merging.last.last_call is None:
        return (
            "Nothing has been sampled with this model yet. Connect the sampler's output to `after`, so that this node "
            "runs behind it."
        )
    return str(explain([merging.last], steps=merging.steps))


def _preset(name: str, model: Any) -> Any:
    return preset(name, model.model.diffusion_model)  # type: ignore[arg-type]


def _mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """ComfyUI's (B, H, W) as tokenmerge takes it: white where any of them is."""
    from tokenmerge.config.keep import read_mask

    if mask is None:
        return None
    # Painted masks have soft edges, and a batch of images one mask each.
    return read_mask(mask.flatten(0, -3).amax(dim=0) > 0.5)


class TokenMergeExtension(ComfyExtension):
    """What ComfyUI asks for the nodes."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [TokenMerge, TokenMergeAdvanced, TokenMergeExplain]
