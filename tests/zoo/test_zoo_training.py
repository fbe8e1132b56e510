"""The training code where a slip would only show hours later."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from training.courtesy import cores_used_by_others
from training.data import caption_of, wanted_captions
from training.distil import ddim_step, level_times, velocity_to
from training.emoji_sd import EmojiSD, InnerUNet, build_unet
from training.images import Images
from training.inception import frechet_distance, rank_of_own_image
from training.photo_flux import PhotoFlux, grid_ids, noise_levels, pack, spread_positions, unpack
from training.photographs import FRAME, WIDE_FRAME, Photographs, all_texts, sampling_weights
from training.photographs import phrasings as photo_phrasings
from training.run import Average, Run
from training.sheet import SHEET_CAPTIONS, draw_sheet
from training.train import batch_size, learning_rate, train, wait_while_paused
from training.vocabulary import build_tokenizer, phrasings

CAPTIONS = ["red heart", "blue heart", "cat face"]


def test_captions_are_distinct_and_hold_the_sheet() -> None:
    captions = wanted_captions()
    assert len(captions) == len(set(captions)) >= 200
    assert set(SHEET_CAPTIONS) <= set(captions[:200])
    assert len(SHEET_CAPTIONS) == 24


@pytest.mark.parametrize(
    ("file", "caption"), [("1f680.webp", "rocket"), ("2764-fe0f.webp", "red heart"), ("readme.webp", None)]
)
def test_file_names_give_captions(file: str, caption: str | None) -> None:
    assert caption_of(file) == caption


def test_phrasings_keep_the_plain_caption_first() -> None:
    assert phrasings("red heart")[0] == "red heart"
    assert {"red", "heart", "a red heart"} <= set(phrasings("red heart"))
    assert "" not in phrasings("rocket")


def test_packing_is_that_of_the_pipeline() -> None:
    from diffusers import FluxPipeline

    latents = torch.rand(2, 16, 8, 8)
    theirs = FluxPipeline._pack_latents(latents, 2, 16, 8, 8)
    assert torch.equal(pack(latents), theirs)
    assert torch.equal(unpack(pack(latents), 4), latents)
    ids = FluxPipeline._prepare_latent_image_ids(1, 16, 16, "cpu", torch.float32)
    assert torch.equal(grid_ids(spread_positions(16, 16)), ids)


@pytest.mark.parametrize("dropped", [1, 2])
def test_the_inner_unet_trains_no_outer_weight_and_leaves_the_unet_whole(dropped: int) -> None:
    unet = build_unet(levels=(16, 16, 32, 32))
    last = 3 - dropped
    before = unet.up_blocks[last].upsamplers
    out = InnerUNet(unet, dropped)(unet, torch.randn(1, 16, 16, 16), torch.tensor([5]), torch.randn(1, 16, 128))
    out.sum().backward()
    assert out.shape == (1, 16, 16, 16)
    assert unet.up_blocks[last].upsamplers is before
    touched = {name for name, p in unet.named_parameters() if p.grad is not None}
    outer = [name for i in range(dropped) for name in (f"down_blocks.{i}.", f"up_blocks.{3 - i}.")]
    assert not any(n.startswith(("conv_in", "conv_out", *outer)) for n in touched)
    assert any(n.startswith(f"down_blocks.{dropped}.") for n in touched)
    assert any(n.startswith(f"up_blocks.{last}.") for n in touched)


def test_sampling_finds_the_image_when_the_prediction_is_perfect() -> None:
    """With the true velocity of one known image, DDIM must arrive at that image."""
    torch.manual_seed(0)
    model = EmojiSD(build_tokenizer(CAPTIONS))
    image = torch.randn(1, 16, 4, 4)

    def perfect(noisy: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        signal = model.signal[timestep].view(-1, 1, 1, 1)
        noise = (noisy - signal.sqrt() * image) / (1 - signal).sqrt()
        return signal.sqrt() * noise - (1 - signal).sqrt() * image

    model.predict = perfect  # type: ignore[method-assign]
    tokens = torch.zeros(1, 16, dtype=torch.long)
    found = model.sample(torch.randn(1, 16, 4, 4), tokens, tokens, steps=5, guidance=2.0)
    torch.testing.assert_close(found, image, atol=1e-3, rtol=1e-3)


def test_learning_rate_warms_up_stays_and_falls() -> None:
    assert learning_rate(1.0, 0, 0.0, 0.2) == pytest.approx(0.05)
    assert learning_rate(1.0, 500, 0.5, 0.2) == pytest.approx(1.0)
    assert learning_rate(1.0, 500, 0.9, 0.2) == pytest.approx(0.05 + 0.95 / 2)
    assert learning_rate(1.0, 500, 1.0, 0.2) == pytest.approx(0.05)
    assert learning_rate(1.0, 500, 1.0, 0.0) == pytest.approx(1.0)


def test_average_of_constant_weights_is_the_weights() -> None:
    model = torch.nn.Linear(2, 2)
    average = Average(model, decay=0.9)
    with torch.no_grad():
        model.weight.fill_(3.0)
    for step in range(400):
        average.update(step)
    torch.testing.assert_close(average.weights["weight"], model.weight.detach())


class Tiny(torch.nn.Module):
    """Learns to add two; stands for a model in the trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def loss(self, clean: torch.Tensor, tokens: torch.Tensor, bias: float) -> torch.Tensor:
        return (self.bias - 2).square().mean()


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    images = Images(torch.zeros(3, 16, 4, 4), build_tokenizer(CAPTIONS), CAPTIONS)
    settings = {
        "work": tmp_path,
        "model": "tiny",
        "size": [128],
        "batch": 4,
        "lr": 0.01,
        "decay": 0.0,
        "bias": 1.0,
        "merge": None,
        "window": None,
        "half": False,
        "compile": False,
        "minutes": math.inf,
        "pause_file": None,
    }

    def go(samples: int) -> Run:
        run = Run(Tiny(), tmp_path / "tiny.pt", 0.9)
        run.load()
        run.done["images"] = len(CAPTIONS)
        train(Namespace(**settings, samples=samples, save_every=1e9), run, {128: images})
        return run

    first = go(400)
    second = go(1200)
    assert first.done["step"] == 100
    assert second.done["step"] == 300
    assert second.done["at_size"] == {128: 1200}
    assert abs(second.model.bias.item() - 2) < abs(first.model.bias.item() - 2)
    logged = [json.loads(line) for line in (tmp_path / "tiny.jsonl").read_text().splitlines()]
    assert [line["samples"] for line in logged] == list(range(200, 1201, 200))
    assert logged[0]["loss"] > logged[1]["loss"] > logged[2]["loss"]


def test_a_paused_run_is_saved_and_waits_until_it_is_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, stopping, pause_file = Run(Tiny(), tmp_path / "tiny.pt", 0.9), list[int](), tmp_path / "pause"
    wait_while_paused(pause_file, run, stopping)
    assert not run.path.exists()
    pause_file.touch()
    monkeypatch.setattr("training.train.time.sleep", lambda _: stopping.append(15))
    wait_while_paused(pause_file, run, stopping)
    assert run.path.exists()
    assert stopping == [15]


def test_larger_frames_cut_to_one_window_come_in_equal_batches() -> None:
    args = Namespace(size=[64, 128, 256], batch=32, window=16)
    assert [batch_size(args, size) for size in args.size] == [32, 8, 8]


def test_larger_images_come_in_smaller_batches() -> None:
    args = Namespace(size=[256, 512], batch=16, window=None)
    assert [batch_size(args, size) for size in args.size] == [16, 4]
    assert batch_size(Namespace(size=[128, 512], batch=4, window=None), 512) == 1


def test_batches_hold_each_image_once_an_epoch_and_sometimes_no_caption() -> None:
    images = Images(torch.arange(3.0).view(3, 1, 1, 1), build_tokenizer(CAPTIONS), CAPTIONS)
    latents, tokens = images.batch(300)
    assert latents.flatten().long().bincount().tolist() == [100, 100, 100]
    without = (tokens == images.nothing).all(1).float().mean().item()
    assert 0.03 < without < 0.2


def test_rank_counts_nearer_images() -> None:
    images = torch.eye(3)
    generated = torch.tensor([[1.0, 0.1, 0.0], [1.0, 0.5, 0.0], [0.2, 0.3, 0.1]])
    assert rank_of_own_image(generated, images).tolist() == [0, 1, 2]


def test_frechet_distance_of_shifted_clouds_is_the_squared_shift() -> None:
    cloud = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    assert frechet_distance(cloud, cloud + 3) == pytest.approx(4 * 9, rel=1e-4)


def test_others_are_counted_in_cores() -> None:
    assert cores_used_by_others((10.0, 100.0), (15.0, 107.5)) == 1.5
    assert not math.isnan(cores_used_by_others((10.0, 100.0), (10.0, 100.0)))


def test_sheet_has_a_row_for_every_six() -> None:
    from PIL import Image

    red = Image.fromarray(np.full((32, 32, 3), (255, 0, 0), np.uint8))
    sheet = draw_sheet([red] * 7, ["red"] * 7)
    assert sheet.size == (6 * 32, 2 * (32 + 18))
    assert sheet.getpixel((5, 32 + 18 + 5)) == (255, 0, 0)
    assert sheet.getpixel((40, 32 + 18 + 5)) == (255, 255, 255)


def test_one_step_with_the_learned_velocity_ends_at_the_image() -> None:
    noisy, clean = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3)
    signal = torch.tensor([0.0, 0.4]).view(2, 1, 1, 1)
    reached = ddim_step(noisy, velocity_to(noisy, clean, signal), signal, torch.ones(1))
    torch.testing.assert_close(reached, clean)


def test_distilled_steps_are_those_of_the_scheduler() -> None:
    from training.emoji_sd import build_scheduler

    scheduler = build_scheduler()
    scheduler.set_timesteps(4)
    assert level_times(4, 1000)[:-1].tolist() == scheduler.timesteps.tolist()


APPLE = {"kind": "Fruit", "group": "Apple", "variety": "Royal-Gala", "split": "train"}
GARLIC = {"kind": "Vegetables", "group": "Garlic", "variety": "", "split": "test"}


def test_photographs_are_captioned_by_variety_group_and_kind() -> None:
    assert photo_phrasings(APPLE)[0] == "royal gala apples"
    assert {"apples", "royal gala apples, fruit"} <= set(photo_phrasings(APPLE))
    assert "a hand holding garlic" in photo_phrasings({**GARLIC, "scene": "hand"})
    assert "a hand holding garlic" not in photo_phrasings(GARLIC)


def test_photo_positions_at_native_size_are_those_of_the_pipeline() -> None:
    from diffusers import FluxPipeline

    theirs = FluxPipeline._prepare_latent_image_ids(1, 32, 32, "cpu", torch.float32)
    assert torch.equal(grid_ids(spread_positions(32, 32)), theirs)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A work folder with three photographs, the last one held back."""
    from tokenmerge.zoo.patch_autoencoder import PatchAutoencoder

    folder = tmp_path / "photographs"
    folder.mkdir()
    rows = [APPLE, GARLIC, {**GARLIC, "held_back": "yes"}]
    (folder / "rows.json").write_text(json.dumps(rows))
    for size in (80, 160, 320):
        ramp = np.linspace(0, 255, size).astype(np.uint8)
        grey = np.broadcast_to(ramp[None, :, None, None], (3, size, size, 3)).copy()
        grey[2] = 255
        np.save(folder / f"{size}.npy", grey)
    model = PatchAutoencoder(latent_channels=5, block_out_channels=(1, 1, 1))
    with torch.no_grad():
        model.encoder.weight.fill_(1 / 48)  # every channel is the mean of the patch
        model.encoder.bias.zero_()  # type: ignore[union-attr]
    model.save_pretrained(folder / "autoencoder")
    return tmp_path


@pytest.mark.parametrize("size", [64, 512])
def test_windows_of_photographs_are_at_their_positions(photographs: Path, size: int) -> None:
    """On a photograph that brightens from top to bottom, the mean of each latent row tells its position."""
    tokenizer = build_tokenizer(all_texts([APPLE, GARLIC]))
    data = Photographs(photographs, tokenizer, size, window=8)
    for _ in range(5):
        latents, tokens, positions, features = data.batch(4)
        assert features is None
        assert latents.shape == (4, 5, 16, 16)
        assert tokens.shape == (4, 16)
        assert positions[1, 0] - positions[0, 0] == (4 if size == 64 else 1)
        part = FRAME if size == 64 else WIDE_FRAME  # of the photograph is in the frame, which is cut at a random place
        row = latents[:, 0, :2].mean((1, 2)) / 2 + 0.5
        expected = part * (positions[0, 0] + 0.5) / max(32, size // 8)
        assert (row - expected > -0.02).all()
        assert (row - expected < 1.02 - part).all()


@pytest.mark.parametrize("size", [64, 512])
def test_features_are_cut_where_pixels_are_cut(photographs: Path, size: int) -> None:
    """Brightness itself as the feature, from top to bottom and, in a second channel, from left to right."""
    ramp = (torch.arange(17) + 0.5) / 17
    maps = torch.stack([ramp[:, None].expand(17, 17), ramp[None].expand(17, 17)]).expand(3, 2, 17, 17)
    torch.save(maps.half(), photographs / "photographs" / "alignment.pt")
    data = Photographs(photographs, build_tokenizer(all_texts([APPLE, GARLIC])), size, window=8, aligned=True)
    latents, _, _, features = data.batch(6)
    assert features is not None
    rows = features[..., 0].view(6, 8, 8)
    pixels = latents[:, 0].unflatten(1, (8, 2)).mean((2, 3)) / 2 + 0.5
    torch.testing.assert_close(rows.mean(2), pixels, atol=0.02, rtol=0)
    steps = features[..., 1].view(6, 8, 8).diff(dim=2)
    assert ((steps > 0).all((1, 2)) | (steps < 0).all((1, 2))).all()  # flipped or not


def test_held_back_photographs_are_never_trained_on(photographs: Path) -> None:
    """The photograph held back is white, and no frame of the others reaches white in its upper half."""
    data = Photographs(photographs, build_tokenizer(all_texts([APPLE])), 64, window=None)
    latents, *_ = data.batch(40)
    assert latents[:, :, 0].max() < 0.9


def test_photographs_of_rare_varieties_are_drawn_more_often() -> None:
    assert sampling_weights(["lemon"] * 4 + ["plum"], ()) == [0.5, 0.5, 0.5, 0.5, 1.0]
    assert sampling_weights(["lemon"] * 4 + ["plum"], ["lemon"]) == [1.25, 1.25, 1.25, 1.25, 1.0]


def test_more_tokens_are_trained_at_more_noise() -> None:
    torch.manual_seed(0)
    few, many = noise_levels(4000, 64, 1.0), noise_levels(4000, 1024, 1.0)
    assert 0 <= few.min() < few.max() <= 1
    assert few.median() == pytest.approx(0.5, abs=0.03)
    assert many.median() > few.median() + 0.15


def test_flow_sampling_finds_the_image_when_the_prediction_is_perfect() -> None:
    torch.manual_seed(0)
    model = PhotoFlux(build_tokenizer(all_texts([APPLE])))
    image = torch.randn(1, 5, 4, 4)

    def perfect(noisy: torch.Tensor, sigma: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return (noisy - image) / sigma.view(-1, 1, 1, 1)

    model.predict = perfect  # type: ignore[method-assign, assignment]
    tokens = torch.zeros(1, 16, dtype=torch.long)
    found = model.sample(torch.randn(1, 5, 4, 4), tokens, tokens, steps=5, guidance=2.0)
    torch.testing.assert_close(found, image, atol=1e-4, rtol=1e-4)
