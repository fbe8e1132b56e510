"""The controls that describe a comparison, and how they follow the chosen method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from tokenmerge.methods.named import METHODS
from tokenmerge.runtime.pipelines import TINY_RANDOM, default_model
from tokenmerge.web import bounds, words
from tokenmerge.zoo import list_models
from tokenmerge.zoo.folders import GUIDANCE, NAMES

METHOD, RATIO, SIZE = "toma-detail", 0.75, "512 x 512"
SCOPES = {"site": "each part", "block": "each block", "stack": "each run of blocks"}
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
    """Prompt, ratio and method: what is changed most."""
    return {
        "prompt": gr.Textbox(
            label="Prompt",
            info=words.PROMPT,
            value=words.EXAMPLES[0][0],
            max_length=bounds.LONGEST_PROMPT,
            elem_id="prompt",
        ),
        "ratio": gr.Slider(
            bounds.LOWEST_RATIO,
            bounds.HIGHEST_RATIO,
            RATIO,
            step=0.05,
            label="Ratio",
            info=words.RATIO,
            buttons=[],
            elem_id="ratio",
        ),
        "method": gr.Dropdown(
            list(METHODS), value=METHOD, label="Method", info=METHODS[METHOD].summary, elem_id="method"
        ),
    }


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
    """Region, scope, parts and schedule, as the first method has them."""
    made = method_updates(METHOD)[1:]
    texts = (
        ("region", gr.Radio, {"label": "Region", "info": words.REGION}),
        ("scope", gr.Radio, {"label": "Merged around", "info": words.SCOPE}),
        ("parts", gr.CheckboxGroup, {"label": "Parts", "info": words.PARTS}),
        ("select_every", gr.Slider, {"label": "New destinations every so many steps", "info": words.SELECT}),
        ("weights_every", gr.Slider, {"label": "New weights every so many steps", "info": words.WEIGHTS}),
    )
    return {
        name: kind(**text, **_without_type(update), **_range(kind), elem_id=name)
        for (name, kind, text), update in zip(texts, made, strict=True)
    }


def method_updates(method: str) -> list[dict[str, Any]]:
    """How the controls change when a method is chosen: method, region, scope, parts and the two of the schedule."""
    values = bounds.controls_of(method)
    preset = METHODS[method].make()
    region = gr.update(
        choices=["tile", "stripe", "global"], value=values["region"], visible=values["region"] is not None
    )
    scopes = gr.update(choices=[(SCOPES[scope], scope) for scope in preset.scopes], value=values["scope"])
    parts = gr.update(choices=[(PARTS[part], part) for part in preset.allowed_parts], value=list(values["parts"]))
    schedule = [
        gr.update(value=values[name] or 1, visible=values[name] is not None)
        for name in ("select_every", "weights_every")
    ]
    return [gr.update(info=METHODS[method].summary), region, scopes, parts, *schedule]


def restored(inputs: bounds.Inputs) -> list[Any]:
    """Updates that bring all controls back to what they were, in the order of `FIELDS`."""
    about, region, scope, parts, select, weights = method_updates(inputs.method)
    kinds = {"method": about, "region": region, "scope": scope, "parts": parts}
    kinds |= {"select_every": select, "weights_every": weights}
    return [{**kinds.get(name, gr.update()), "value": getattr(inputs, name)} for name in bounds.FIELDS]


def _without_type(update: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in update.items() if not name.startswith("__")}


def _range(kind: type) -> dict[str, Any]:
    return {"minimum": 1, "maximum": bounds.LONGEST_INTERVAL, "step": 1, "buttons": []} if kind is gr.Slider else {}


def in_order(parts: Sequence[dict[str, Any]]) -> Controls:
    return Controls({name: part[name] for part in parts for name in part})
