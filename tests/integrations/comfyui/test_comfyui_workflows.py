"""Whole workflows through ComfyUI's own executor: the nodes as its users connect them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import small_models
import torch
from workflows import ComfyUI, Executed, Workflow, inputs_of, node, sampling, saved

import tokenmerge as tm
from tokenmerge.config.keep import read_mask
from tokenmerge.integrations.comfyui.nodes import METHODS, UNTOUCHED, TokenMergeAdvanced
from tokenmerge.presets import NAMES, preset

UPSCALED = {"upscale_method": "bilinear", "scale_by": 1.5}
OWN = ("tile", "outliers", "step_speedup", "skip_blocks")  # options that a preset sets


@pytest.fixture(scope="module")
def comfyui() -> ComfyUI:
    return ComfyUI()


def token_merge(model: str = "model", preset: str = "balanced", **others: Any) -> dict[str, Any]:
    return node("TokenMerge", model=[model, 0], preset=preset, start_percent=0.0, end_percent=1.0, **others)


def run(comfyui: ComfyUI, workflow: Workflow) -> Executed:
    done = comfyui.run(workflow)
    assert done.success, done.messages
    return done


def test_the_nodes_are_found_with_their_names(comfyui: ComfyUI) -> None:
    import nodes

    names = {"TokenMerge": "Token Merge", "TokenMergeExplain": "Token Merge Explain"}
    names["TokenMergeAdvanced"] = "Token Merge (advanced)"
    assert {key: nodes.NODE_DISPLAY_NAME_MAPPINGS.get(key) for key in names} == names
    assert "custom_nodes.tokenmerge" in nodes.NODE_CLASS_MAPPINGS["TokenMerge"].RELATIVE_PYTHON_MODULE


def test_branches_of_one_model_never_share_settings(comfyui: ComfyUI, base: Path) -> None:
    """Two samplers with settings of their own and one without, in one graph: each as if it were alone."""
    alone = {}
    merges: dict[str, dict[str, Any]] = {"quality": token_merge(preset="quality"), "fast": token_merge(preset="fast")}
    for name in merges:
        run(comfyui, {**inputs_of(), f"merge {name}": merges[name], **sampling([f"merge {name}", 0], name, steps=8)})
        alone[name] = saved(base, name)
    run(comfyui, {**inputs_of(), **sampling(["model", 0], "plain", steps=8)})
    alone["plain"] = saved(base, "plain")
    together = {**inputs_of(), **{f"merge {name}": merge for name, merge in merges.items()}}
    for name in alone:
        model = ["model", 0] if name == "plain" else [f"merge {name}", 0]
        together |= sampling(model, name, seed=4, steps=8)
    run(comfyui, together)  # another seed, so that nothing is cached
    for name in alone:
        together[name]["inputs"]["seed"] = 3
    run(comfyui, together)
    for name, latents in alone.items():
        assert torch.equal(saved(base, name), latents), name
    assert len({float(latents.sum()) for latents in alone.values()}) == 3


def test_of_several_nodes_in_a_row_the_last_counts(comfyui: ComfyUI, base: Path) -> None:
    row = {"first": token_merge(preset="fast"), "second": token_merge("first", preset="quality")}
    run(comfyui, {**inputs_of(), **row, **sampling(["second", 0], "row")})
    run(comfyui, {**inputs_of(), "merge": token_merge(preset="quality"), **sampling(["merge", 0], "only")})
    assert torch.equal(saved(base, "row"), saved(base, "only"))


def test_a_second_sampler_at_another_size_with_its_own_settings(comfyui: ComfyUI, base: Path) -> None:
    """Hi-res fix: the first sampler's latents enlarged, sampled again by another preset."""
    larger = node("LatentUpscaleBy", samples=["low", 0], **UPSCALED)
    workflow = {
        **inputs_of(256, 256),
        "merge low": token_merge(preset="quality"),
        "merge high": token_merge(preset="fast"),
        **sampling(["merge low", 0], "low"),
        "larger": larger,
        **sampling(["merge high", 0], "high", latent_image=["larger", 0], denoise=0.6),
        "explain": node("TokenMergeExplain", model=["merge high", 0], after=["high", 0]),
    }
    done = run(comfyui, workflow)
    assert saved(base, "high").shape[-2:] == (48, 48)
    assert "24 x 24" in done.outputs["explain"]["text"][0]


def test_two_samplers_in_a_graph_with_their_own_ratios(comfyui: ComfyUI) -> None:
    ratios = {"low": 0.5, "high": 0.75}
    workflow = {**inputs_of(), "larger": node("LatentUpscaleBy", samples=["low", 0], **UPSCALED)}
    for name, latents in (("low", "latent"), ("high", "larger")):
        workflow[f"merge {name}"] = advanced(method="ToMA", ratio=ratios[name])
        workflow |= sampling([f"merge {name}", 0], name, latent_image=[latents, 0])
        workflow[f"explain {name}"] = node("TokenMergeExplain", model=[f"merge {name}", 0], after=["high", 0])
    texts = run(comfyui, workflow).outputs
    assert "ratio 0.5," in texts["explain low"]["text"][0]
    assert "384 -> 192" in texts["explain low"]["text"][0]
    assert "ratio 0.75," in texts["explain high"]["text"][0]
    assert "864 -> 216" in texts["explain high"]["text"][0]


def test_explain_shows_the_run_it_stands_behind(comfyui: ComfyUI) -> None:
    explain = node("TokenMergeExplain", model=["merge", 0], after=["sampled", 0])
    workflow = {**inputs_of(), "merge": token_merge(), **sampling(["merge", 0], "sampled", steps=7), "explain": explain}
    text = run(comfyui, workflow).outputs["explain"]["text"][0]
    assert "UNetModel" in text
    assert "16 x 24" in text
    assert "over 7 steps" in text
    assert "7 calls" in text


def test_explain_without_a_run_says_what_to_connect(comfyui: ComfyUI) -> None:
    early = node("TokenMergeExplain", model=["merge", 0])
    text = run(comfyui, {**inputs_of(), "merge": token_merge(preset="fast", keep=None), "early": early}).outputs
    assert "Connect the sampler's output" in text["early"]["text"][0]
    bare = node("TokenMergeExplain", model=["model", 0])
    text = run(comfyui, {**inputs_of(), "bare": bare}).outputs
    assert "Nothing is merged in this model" in text["bare"]["text"][0]


def test_wrong_settings_are_refused_on_the_node(comfyui: ComfyUI) -> None:
    merge = node("TokenMerge", model=["model", 0], preset="balanced", start_percent=0.7, end_percent=0.3)
    done = comfyui.run({**inputs_of(), "merge": merge, **sampling(["merge", 0], "refused")})
    assert not done.success
    assert done.failed_node == "TokenMerge"
    assert "start_percent is 0.7 and end_percent is 0.3" in done.error


def test_a_mask_reaches_the_method_with_its_sentences(comfyui: ComfyUI) -> None:
    """A preset that cannot keep a part of the image says so on the node, as `apply` does in Python."""
    black = node("SolidMask", value=0.0, width=64, height=64)
    merge = token_merge(keep=["black", 0])
    done = comfyui.run({**inputs_of(), "black": black, "merge": merge, **sampling(["merge", 0], "masked")})
    assert not done.success
    with pytest.raises(tm.TokenMergeError) as refused:
        read_mask(torch.zeros(64, 64))
    assert str(refused.value) in done.error


def advanced(**options: Any) -> dict[str, Any]:
    when = {"start_percent": 0.0, "end_percent": 1.0}
    return node("TokenMergeAdvanced", model=["model", 0], **{"method": "TileMean", **UNTOUCHED, **when, **options})


def test_advanced_options_reach_the_method(comfyui: ComfyUI) -> None:
    explain = node("TokenMergeExplain", model=["merge", 0], after=["chosen", 0])
    merge = advanced(method="ToMA", ratio=0.5, tile=4, scope="block", skip_blocks=1)
    done = run(comfyui, {**inputs_of(), "merge": merge, **sampling(["merge", 0], "chosen"), "explain": explain})
    text = done.outputs["explain"]["text"][0]
    assert "ToMA on UNetModel: ratio 0.5, merged per block" in text
    assert "384 -> 192" in text
    assert "left alone: input_blocks.3.1: all blocks skipped" in text


def test_steps_are_skipped_from_the_advanced_node(comfyui: ComfyUI) -> None:
    for method, others in (("SkipSteps", {}), ("SampledKeys", {"outliers": 8}), ("TileMean", {"full_steps": 4})):
        explain = node("TokenMergeExplain", model=["merge", 0], after=["skipping", 0])
        merge = advanced(method=method, step_speedup=2.0, **others)
        sampled = sampling(["merge", 0], "skipping", steps=10, sampler_name="dpmpp_2m")
        text = run(comfyui, {**inputs_of(), "merge": merge, **sampled, "explain": explain}).outputs
        assert "10 calls" in text["explain"]["text"][0]
        assert "5 of them skipped" in text["explain"]["text"][0]


def test_every_preset_can_be_set_up_on_the_advanced_node() -> None:
    """But for what becomes of images that are too short to skip steps, and for `within` of full steps."""
    for make in (small_models.sdxl, small_models.flux):
        model = make()
        for name, keeps in product(NAMES, (True, False)):
            wanted = preset(name, model.model.diffusion_model, keeps)
            options = {option: getattr(wanted, option) for option in UNTOUCHED if wanted.has_option(option)}
            options |= {"scope": "auto", "skip_blocks": -1, "tile": getattr(wanted, "tile", (0, 0))[0]}
            if wanted.correction is not None:
                options["full_steps"] = wanted.correction.every
            method = type(wanted).__name__
            made = TokenMergeAdvanced.config(model, keeps, method=method, **{**UNTOUCHED, **options})
            assert type(made) is type(wanted)
            assert all(getattr(made, option, None) == value for option, value in vars(wanted).items() if option in OWN)


def test_the_advanced_node_as_it_comes_is_its_method(comfyui: ComfyUI) -> None:
    for method in METHODS:
        assert TokenMergeAdvanced.config(None, False, method=method, **UNTOUCHED) == getattr(tm, method)()


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({"ratio": 0.5}, {"method": "TileMean", "ratio": 0.5}),
        ({"tile": 1}, {"method": "TileMean", "tile": 1}),
        ({"method": "SampledKeys", "scope": "stack"}, {"method": "SampledKeys", "scope": "stack"}),
        ({"method": "SkipSteps", "step_speedup": 1.0}, {"method": "SkipSteps", "step_speedup": 1.0}),
        ({"method": "ToMeSD", "step_speedup": 2.0}, {"method": "ToMeSD", "step_speedup": 2.0}),
    ],
)
def test_wrong_options_are_refused_with_the_sentences_of_python(
    comfyui: ComfyUI, options: dict[str, Any], config: dict[str, Any]
) -> None:
    with pytest.raises(tm.TokenMergeError) as refused:
        tm.MergeConfig.from_dict(config)
    done = comfyui.run({**inputs_of(), "merge": advanced(**options), **sampling(["merge", 0], "refused")})
    assert done.failed_node == "TokenMergeAdvanced"
    assert str(refused.value) in done.error


def test_a_mask_keeps_what_it_covers(comfyui: ComfyUI, base: Path) -> None:
    white = node("SolidMask", value=1.0, width=64, height=64)
    part = node("MaskComposite", destination=["black", 0], source=["white", 0], x=0, y=0, operation="add")
    masks = {"white": white, "black": node("SolidMask", value=0.0, width=256, height=128), "part": part}
    explain = node("TokenMergeExplain", model=["merge", 0], after=["kept", 0])
    merge = token_merge(keep=["part", 0])
    workflow = {**inputs_of(), **masks, "merge": merge, **sampling(["merge", 0], "kept"), "explain": explain}
    text = run(comfyui, workflow).outputs["explain"]["text"][0]
    assert "TileMean" in text
    assert "384 -> " in text
    assert "384 -> 24 " not in text
