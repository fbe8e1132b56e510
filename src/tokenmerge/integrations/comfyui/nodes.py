"""The nodes. ComfyUI's modules are needed to import this; `comfy_entrypoint` does."""

from __future__ import annotations

from typing import Any

import torch
from comfy_api.latest import ComfyExtension, io, ui

from tokenmerge.config.base import MergeConfig
from tokenmerge.config.correction import FullSteps
from tokenmerge.config.keep import read_mask
from tokenmerge.integrations.comfyui.sampling import Merging, merging_of
from tokenmerge.presets import NAMES, preset
from tokenmerge.report.explain import explain

CATEGORY = "model/token merging"
METHODS = ("TileMean", "SampledKeys", "SkipSteps", "ToMA", "ToMeSD", "ToFu", "ToDo")
# Values of the advanced node that leave an option as it suits the method.
UNTOUCHED = {
    "ratio": 0.0,
    "tile": 0,
    "scope": "auto",
    "full_steps": 0,
    "step_speedup": 0.0,
    "outliers": 0,
    "skip_blocks": -1,
}


class MergingNode(io.ComfyNode):
    """What nodes that merge have in common: all their inputs but those from which `config` makes a config."""

    @classmethod
    def config(cls, model: Any, keeps: bool, **options: Any) -> MergeConfig:
        """What the node's own inputs ask for. keeps: a mask says which tokens are not merged."""
        raise NotImplementedError

    @classmethod
    def schema(cls, node_id: str, display_name: str, description: str, own_inputs: list[Any]) -> io.Schema:
        return io.Schema(
            node_id=node_id,
            display_name=display_name,
            category=CATEGORY,
            description=description,
            search_aliases=["ToMe", "ToMA", "tomesd", "speed up", "skip steps", "tokenmerge"],
            inputs=[
                io.Model.Input(
                    "model", tooltip="The model to make faster. It stays as it is; the output is a clone of it."
                ),
                *own_inputs,
                _share("start_percent", 0.0, "Where in the sampling the node begins. Steps before it run as usual."),
                _share("end_percent", 1.0, "Where in the sampling the node ends. Steps after it run as usual."),
                io.Mask.Input(
                    "keep",
                    optional=True,
                    tooltip="What must stay sharp: tokens that hold a white pixel are not merged. Presets then merge "
                    "tokens instead of skipping steps.",
                ),
            ],
            outputs=[io.Model.Output(tooltip="The faster model.")],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        start_percent: float,
        end_percent: float,
        keep: torch.Tensor | None = None,
        **options: Any,
    ) -> io.NodeOutput:
        config = cls.config(model, keep is not None, **options)
        return io.NodeOutput(Merging(config, _mask(keep), start_percent, end_percent).on(model))


def _share(name: str, default: float, tooltip: str) -> Any:
    return io.Float.Input(name, default=default, min=0.0, max=1.0, step=0.01, tooltip=tooltip, advanced=True)


class TokenMerge(MergingNode):
    """Merges tokens and skips steps by a preset."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        own_inputs = [
            io.Combo.Input(
                "preset",
                options=list(NAMES),
                default="balanced",
                tooltip="quality stays closest to the image without the node, fast saves most, balanced lies between.",
            )
        ]
        description = (
            "Makes sampling faster by merging redundant tokens and skipping steps. Connect it between the model and "
            "the sampler. Of several in a row the last one counts."
        )
        return cls.schema("TokenMerge", "Token Merge", description, own_inputs)

    @classmethod
    def config(cls, model: Any, keeps: bool, **options: Any) -> MergeConfig:
        return preset(options["preset"], model.model.diffusion_model, merge_tokens=keeps)


class TokenMergeAdvanced(MergingNode):
    """Merges tokens and skips steps by a method and its options."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        own_inputs = [
            io.Combo.Input(
                "method",
                options=list(METHODS),
                default=METHODS[0],
                tooltip="What merges the tokens. SkipSteps merges none and skips steps alone.",
            ),
            io.Float.Input("ratio", default=0.0, min=0.0, max=0.99, step=0.01, tooltip="Share merged away. 0: auto."),
            io.Int.Input("tile", default=0, min=0, max=32, tooltip="Side of a tile in tokens. 0: auto. Try 2 and 4."),
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
                tooltip="Run every this many steps on all tokens, to correct the others. 0: auto. -1: never. Try 3 to "
                "8.",
            ),
            io.Float.Input(
                "step_speedup",
                default=0.0,
                min=0.0,
                max=10.0,
                step=0.1,
                tooltip="Compute one in this many steps and forecast the others. 0: auto. 1: all. Try 1.5 to 2.5.",
            ),
            io.Int.Input(
                "outliers",
                default=0,
                min=0,
                max=1024,
                tooltip="Keep this many tokens that are least like their tile. Try 8.",
            ),
            io.Int.Input(
                "skip_blocks",
                default=-1,
                min=-1,
                max=200,
                tooltip="How many of the first blocks stay unmerged. -1: as many as suit the model.",
            ),
        ]
        description = (
            "Token Merge with a method and its options instead of a preset. 0 and auto leave an option as it suits the "
            "method. An option that the method does not have is refused."
        )
        return cls.schema("TokenMergeAdvanced", "Token Merge (advanced)", description, own_inputs)

    @classmethod
    def config(cls, model: Any, keeps: bool, **options: Any) -> MergeConfig:
        method = options.pop("method")
        chosen = {name: value for name, value in options.items() if value != UNTOUCHED[name]}
        full_steps = chosen.pop("full_steps", None)
        if full_steps is not None:
            chosen["correction"] = FullSteps(every=full_steps) if full_steps > 0 else None
        return MergeConfig.from_dict({"method": method, **chosen})


class TokenMergeExplain(io.ComfyNode):
    """Shows what was merged in the last run."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TokenMergeExplain",
            display_name="Token Merge Explain",
            category=CATEGORY,
            description="What Token Merge merged and skipped in the last run of a model, and what it saved.",
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
    """What the newest run of a ModelPatcher merged and skipped."""
    merging = merging_of(model)
    if merging is None:
        return "Nothing is merged in this model: connect the output of a Token Merge node."
    if merging.last is None or merging.last.last_call is None:
        return (
            "Nothing has been sampled with this model yet. Connect the sampler's output to `after`, so that this node "
            "runs behind it."
        )
    if not merging.steps:
        return (
            f"Nothing was merged: none of the {merging.steps_outside} steps of the last run lies between start_percent "
            f"and end_percent."
        )
    explanation = explain([merging.last], steps=merging.steps)
    if not merging.steps_outside:
        return str(explanation)
    total = merging.steps + merging.steps_outside
    saved = explanation.models[0].multiply_adds.saving * merging.steps / total
    return (
        f"{explanation}\n{merging.steps_outside} of {total} steps lie outside start_percent and end_percent and ran as "
        f"usual: {saved:.1%} saved over all of them"
    )


def _mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """ComfyUI's (B, H, W) as tokenmerge takes it: white where any of them is."""
    if mask is None:
        return None
    # Painted masks have soft edges, and a batch of images one mask each.
    return read_mask(mask.flatten(0, -3).amax(dim=0) > 0.5)


class TokenMergeExtension(ComfyExtension):
    """What ComfyUI asks for the nodes."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [TokenMerge, TokenMergeAdvanced, TokenMergeExplain]
