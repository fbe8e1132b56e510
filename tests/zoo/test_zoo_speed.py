"""What makes training quick must not change what is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers import transformer_flux
from torch.nn.functional import gelu, scaled_dot_product_attention
from transformers import CLIPTokenizer

from tokenmerge.zoo.loading import load_folder
from tokenmerge.zoo.patch_autoencoder import PatchAutoencoder
from training.alignment import DIMENSIONS
from training.package import take_over_files, take_over_weights
from training.photo_flux import PhotoFlux, grid_ids, pack, run_for_training, spread_positions
from training.quick import plain_attention, quick_operations, spread_attention, turned
from training.run import build_optimizers
from training.vocabulary import build_tokenizer


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added"])
def test_plain_attention_is_attention(mask: str) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 6, 8)
    keep = torch.rand(2, 1, 6, 6) < 0.7
    keep[..., 0] = True
    masks = {"none": {}, "causal": {"is_causal": True}, "bool": {"attn_mask": keep}}
    options = masks.get(mask, {"attn_mask": torch.randn(2, 1, 6, 6)})
    theirs = scaled_dot_product_attention(query, key, value, **options)
    torch.testing.assert_close(plain_attention(query, key, value, **options), theirs)


def test_attention_of_compiled_blocks_takes_the_layout_of_diffusers() -> None:
    torch.manual_seed(0)
    parts = torch.randn(3, 2, 6, 4, 8)
    theirs = scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts)).transpose(1, 2)
    torch.testing.assert_close(spread_attention(*parts, is_causal=False), theirs)


def random_photo_flux() -> PhotoFlux:
    """An untrained model whose blocks are not the identity."""
    torch.manual_seed(0)
    model = PhotoFlux(build_tokenizer(["lemons"]))
    for parameter in model.transformer.parameters():
        torch.nn.init.normal_(parameter, std=0.04)
    return model


def test_routing_no_tokens_past_the_middle_is_the_stock_transformer() -> None:
    model, sigma, positions = random_photo_flux(), torch.tensor([0.9, 0.4]), spread_positions(10, 32)
    latents = torch.randn(2, 5, 20, 20)
    text = model.encode(torch.zeros(2, 16, dtype=torch.long))
    stock = pack(model.predict(latents, sigma, *text, positions))
    none, aligned, chosen = run_for_training(
        model.transformer, pack(latents), *text, sigma, grid_ids(positions), share=0.0
    )
    torch.testing.assert_close(none, stock)
    assert aligned.shape == (2, 100, model.transformer.inner_dim)
    assert chosen.tolist() == list(range(100))


def test_tokens_are_routed_in_training_alone() -> None:
    model, positions = random_photo_flux(), spread_positions(10, 32)
    model.route = 0.5
    latents, tokens = torch.randn(2, 5, 20, 20), torch.zeros(2, 16, dtype=torch.long)
    lengths: list[int] = []
    for block in model.transformer.single_transformer_blocks:
        block.register_forward_hook(lambda *call: lengths.append(call[-1][1].shape[1]))
    model.loss(latents, tokens, positions, None, 1.0)
    assert lengths == [50, 50, 50, 50, 100]
    lengths.clear()
    model.predict(latents, torch.tensor([0.9, 0.4]), *model.encode(tokens), positions)
    assert lengths == [100] * 5


def test_alignment_pulls_hidden_states_towards_the_features() -> None:
    """Only with a weight and with features; the loss is that of velocity plus weight times one minus the cosine."""
    model, positions = random_photo_flux(), spread_positions(10, 32)
    latents, tokens = torch.randn(2, 5, 20, 20), torch.zeros(2, 16, dtype=torch.long)
    features = torch.randn(2, 100, DIMENSIONS)

    def loss(weight: float, targets: torch.Tensor | None) -> torch.Tensor:
        torch.manual_seed(1)
        model.align = weight
        return model.loss(latents, tokens, positions, targets, 1.0)

    plain = loss(0.0, features)
    assert torch.equal(loss(0.5, None), plain)
    model.projection[-1].bias.data.zero_()
    model.projection[-1].weight.data.zero_()  # no direction at all: the cosine is 0
    torch.testing.assert_close(loss(0.5, features), plain + 0.5)
    model.projection[-1].bias.data.copy_(features[0, 0])
    torch.testing.assert_close(loss(0.5, features[0, 0].expand_as(features)), plain)


def test_complex_rotary_positions_are_those_of_diffusers() -> None:
    x, angles = torch.randn(2, 5, 3, 8), torch.randn(5, 4).repeat_interleave(2, dim=1)
    rotary = (angles.cos(), angles.sin())
    torch.testing.assert_close(turned(x, rotary), apply_rotary_emb(x, rotary, sequence_dim=1))


def test_quick_operations_are_used_near_the_stock_ones_and_put_back() -> None:
    model = random_photo_flux()
    tokens = torch.zeros(2, 16, dtype=torch.long)
    latents, sigma, positions = torch.randn(2, 5, 8, 8), torch.tensor([0.9, 0.4]), spread_positions(4, 32)
    stock = transformer_flux.apply_rotary_emb

    def predict() -> torch.Tensor:
        with torch.no_grad():
            return model.predict(latents, sigma, *model.encode(tokens), positions).float()

    before = predict()
    with quick_operations(True):
        assert transformer_flux.apply_rotary_emb is turned
        quick = predict()
    assert transformer_flux.apply_rotary_emb is stock
    assert not torch.equal(quick, before)
    assert (quick - before).norm() < 0.03 * before.norm()
    assert torch.equal(predict(), before)


def test_gelu_is_the_erf_form_only_while_training() -> None:
    x = torch.linspace(-3, 3, 7)
    with quick_operations(True):
        assert torch.equal(gelu(x, approximate="tanh"), gelu(x))
    assert not torch.equal(gelu(x, approximate="tanh"), gelu(x))


def test_muon_trains_the_matrices_of_the_blocks_and_adamw_every_other_weight() -> None:
    model = PhotoFlux(build_tokenizer(["lemons"]))
    adam, muon = build_optimizers(model)
    names = {id(p): name for name, p in model.named_parameters()}
    by_muon = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    by_adam = {names[id(p)] for group in adam.param_groups for p in group["params"]}
    assert by_muon | by_adam == set(names.values())
    assert not by_muon & by_adam
    assert {"transformer.transformer_blocks.0.attn.to_q.weight"} <= by_muon
    assert {"transformer.x_embedder.weight", "transformer.transformer_blocks.0.norm1.linear.weight"} <= by_adam
    assert len(build_optimizers(torch.nn.Linear(2, 2))) == 1


def test_training_goes_on_from_packaged_weights(fresh_photo: Path, tmp_path: Path) -> None:
    take_over_files(fresh_photo, tmp_path / "tokenizer", tmp_path / "autoencoder")
    tokenizer = CLIPTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert PatchAutoencoder.from_pretrained(tmp_path / "autoencoder").config.latent_channels == 5
    model = PhotoFlux(tokenizer)
    take_over_weights(fresh_photo, model)
    packaged = load_folder(fresh_photo)
    for name in ("text_encoder", "text_encoder_2", "transformer"):
        expected = getattr(packaged, name).state_dict()
        torch.testing.assert_close(getattr(model, name).state_dict(), expected, msg=name)
