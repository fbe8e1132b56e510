"""The controls that describe a comparison, and how they follow the chosen method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from tokenmerge.methods.named import METHODS, takes_ratio
from tokenmerge.methods.toma import REGIONS
from tokenmerge.presets import NAMES as PRESETS
from tokenmerge.runtime.pipelines import TINY_RANDOM, default_model
from tokenmerge.web import bounds, words
from tokenmerge.zoo import list_models
from tokenmerge.zoo.folders import GUIDANCE, NAMES

PRESET, METHOD, RATIO, SIZE = "balanced", "tile-mean", 0.5, "512 x 512"
SCOPES = {"site": "each part", "block": "each block", "stack": "each run of blocks"}
LARGEST_TILE = 16
# The controls that change with the method, which is the first of them.
FOLLOWING = ("method", "ratio", "tile", "region", "scope", "parts", "select_every")
PARTS = {"self": "self-attention", "cross": "cross-attention", "mlp": "MLP"}


@dataclass(frozen=True)
class Controls:
    """The components, by the fields of `Inputs`."""

    by_field: dict[str, Any]

    @property
    def ordered(self) -> list[Any]:
        return [self.by_field[name] for name in bounds.FIELDS]

    def __getitem__(self, name: str) -> Any:
        return self.by_field[name]


def first_controls() -> dict[str, Any]:
    """Prompt and preset: all that most people need."""
    return {
        "prompt": gr.Textbox(
            label="Prompt",
            info=words.PROMPT,
            value=words.EXAMPLES[0][0],
            max_length=bounds.LONGEST_PROMPT,
            elem_id="prompt",
        ),
        "preset": gr.Radio(
            [*PRESETS, bounds.OWN], value=PRESET, label="Preset", info=words.PRESETS[PRESET], elem_id="preset"
        ),
    }


def preset_updates(chosen: str) -> Any:
    """What the preset does, under its control."""
    return gr.update(info=words.PRESETS.get(chosen, ""))


def own_preset() -> Any:
    """A setting was changed by hand: it counts from now on."""
    return gr.update(value=bounds.OWN, info=words.PRESETS[bounds.OWN])


def image_controls(model: str | None) -> dict[str, Any]:
    """Seed, steps, size, guidance and model."""
    model = default_model() if model is None else model
    models = list(dict.fromkeys([model, *list_models(), TINY_RANDOM]))
    return {
        "size": gr.Textbox(SIZE, label="Size", info=words.SIZE, max_lines=1, elem_id="size"),
        "steps": gr.Slider(
            1, bounds.MOST_STEPS, 20, step=1, label="Steps", info=words.STEPS, buttons=[], elem_id="steps"
        ),
        "seed": gr.Number(words.EXAMPLES[0][1], label="Seed", info=words.SEED, precision=0, elem_id="seed"),
        "guidance": gr.Textbox(
            guidance_for(model),
            label="Guidance",
            info=words.GUIDANCE,
            placeholder="the model's own",
            max_lines=1,
            elem_id="guidance",
        ),
        "model": gr.Dropdown(
            models, value=model, label="Model", info=words.MODEL, allow_custom_value=True, elem_id="model"
        ),
    }


def guidance_for(model: str) -> str:
    """What to begin with; empty for the model's own."""
    return f"{GUIDANCE:g}" if model in NAMES else ""


def merging_controls() -> dict[str, Any]:
    """Method, ratio, tile, region, scope, parts and schedule, as the first method has them."""
    made = method_updates(METHOD)[2:]
    first = {
        "method": gr.Dropdown(
            list(METHODS), value=METHOD, label="Method", info=METHODS[METHOD].summary, elem_id="method"
        ),
        "ratio": gr.Slider(
            bounds.LOWEST_RATIO,
            bounds.HIGHEST_RATIO,
            RATIO,
            step=0.05,
            label="Ratio",
            info=words.RATIO,
            buttons=[],
            visible=takes_ratio(METHOD),
            elem_id="ratio",
        ),
    }
    texts = (
        ("tile", gr.Slider, {"label": "Tile", "info": words.TILE}),
        ("region", gr.Radio, {"label": "Region", "info": words.REGION}),
        ("scope", gr.Radio, {"label": "Merged around", "info": words.SCOPE}),
        ("parts", gr.CheckboxGroup, {"label": "Parts", "info": words.PARTS}),
        ("select_every", gr.Slider, {"label": "Steps between selections", "info": words.SELECT}),
    )
    return first | {
        name: kind(**text, **_without_type(update), **_range(name), elem_id=name)
        for (name, kind, text), update in zip(texts, made, strict=True)
    }


def method_updates(method: str) -> list[dict[str, Any]]:
    """How the controls change when a method is chosen, in the order of `FOLLOWING`."""
    bounds.check_method(method)
    values = bounds.controls_of(method)
    preset = METHODS[method].make()
    region = gr.update(choices=list(REGIONS), value=values["region"], visible=values["region"] is not None)
    scopes = gr.update(choices=[(SCOPES[scope], scope) for scope in preset.scopes], value=values["scope"])
    parts = gr.update(choices=[(PARTS[part], part) for part in preset.allowed_parts], value=list(values["parts"]))
    ratio = gr.update(visible=takes_ratio(method))
    tile, select = (
        gr.update(value=values[name] or 1, visible=values[name] is not None) for name in ("tile", "select_every")
    )
    return [gr.update(info=METHODS[method].summary), ratio, tile, region, scopes, parts, select]


def restored(inputs: bounds.Inputs) -> list[Any]:
    """Updates that bring all controls back to what they were, in the order of `FIELDS`."""
    kinds = dict(zip(FOLLOWING, method_updates(inputs.method), strict=True))
    kinds["preset"] = preset_updates(inputs.preset)
    return [{**kinds.get(name, gr.update()), "value": getattr(inputs, name)} for name in bounds.FIELDS]


def _without_type(update: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in update.items() if not name.startswith("__")}


def _range(name: str) -> dict[str, Any]:
    largest = {"tile": LARGEST_TILE, "select_every": bounds.LONGEST_INTERVAL}
    return {"minimum": 1, "maximum": largest[name], "step": 1, "buttons": []} if name in largest else {}


def in_order(parts: Sequence[dict[str, Any]]) -> Controls:
    return Controls({name: part[name] for part in parts for name in part})
