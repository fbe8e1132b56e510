"""`tokenmerge compare`: the same prompt and seed, unmerged and merged, timed side by side."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmerge.cli import options
from tokenmerge.config.base import MergeConfig
from tokenmerge.runtime.plain_text import shown_plainly

if TYPE_CHECKING:
    from PIL.Image import Image

    from tokenmerge.report.explanation import Explanation
    from tokenmerge.runtime.generation import ImageRequest
    from tokenmerge.runtime.pipelines import LoadedPipeline

MOST_REPEATS = 100
WARM_UP_STEPS = 2


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare",
        help="generate the same image unmerged and merged, and time both",
        description="Generate the same prompt and seed unmerged and merged. Writes both images, the two side by side, "
        "and a JSON with timings, PSNR and SSIM into one folder. Without --model it works offline, with a small model.",
        epilog=options.methods_listed(),
        formatter_class=options.HelpFormatter,
    )
    options.add_prompt_options(parser)
    options.add_method_options(parser)
    options.add_keep_option(parser)
    options.add_model_options(parser)
    group = parser.add_argument_group("the result")
    group.add_argument(
        "--repeats", default="1", metavar="N", help="timed runs of each, in turn, after a warm-up (default: 1)"
    )
    group.add_argument("--out", default="compare", metavar="FOLDER", help="where to write (default: compare)")
    group.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
    return parser


def run(args: argparse.Namespace) -> int:
    wanted = options.read_image_request(args, "compare")
    config = options.read_method(args)
    assert config is not None
    keep = options.read_keep(args.keep)
    repeats = options.read_whole("--repeats", args.repeats, 1, MOST_REPEATS)

    from tokenmerge.cli.files import writable_folder
    from tokenmerge.cli.report import about_image, print_cut, print_notice

    folder = writable_folder(args.out)

    from tokenmerge.runtime.fidelity import fidelity
    from tokenmerge.runtime.generation import check_request
    from tokenmerge.runtime.pipelines import load_pipeline

    loaded = load_pipeline(args.model, args.device, args.dtype, args.allow_pickle)
    print_notice(loaded)
    check_request(loaded, wanted)
    print_cut(loaded, wanted)
    pair = _generate_pair(loaded, wanted, config, keep, repeats)
    result = {
        **about_image(loaded, wanted, pair.unmerged.size, args.method, pair.config),
        **pair.timings(),
        **asdict(fidelity(pair.unmerged, pair.merged)),
        "explain": pair.explanation.to_dict(),
    }
    _save(folder, pair, result)
    if args.json:
        print(json.dumps(result, indent=2, allow_nan=False))
    else:
        _print_table(result, pair, folder)
    return 0


@dataclass
class Pair:
    """Two images of one prompt and seed, and how long each run of each took."""

    unmerged: Image
    merged: Image
    seconds: dict[str, list[float]]
    explanation: Explanation
    config: MergeConfig

    def timings(self) -> dict[str, Any]:
        best = {name: min(values) for name, values in self.seconds.items()}
        median = {name: statistics.median(values) for name, values in self.seconds.items()}
        return {
            "seconds": self.seconds,
            "best": best,
            "median": median,
            "speedup": {
                "best": best["unmerged"] / best["merged"],
                "median": median["unmerged"] / median["merged"],
            },
        }


def _generate_pair(
    loaded: LoadedPipeline, wanted: ImageRequest, config: MergeConfig | str, keep: Image | None, repeats: int
) -> Pair:
    """Warm up, then generate unmerged and merged in turn, so that a noisy machine hits both alike."""
    from tokenmerge.api import merged
    from tokenmerge.errors import NothingMergedWarning

    short = replace(wanted, steps=min(WARM_UP_STEPS, wanted.steps))
    with warnings.catch_warnings():  # what its few steps cannot do says nothing about the images asked for
        warnings.simplefilter("ignore", NothingMergedWarning)
        with merged(loaded.pipe, config, keep):  # first, so that a config that does not suit the model fails soon
            loaded.generate(short, progress="warm-up, merged")
    loaded.generate(short, progress="warm-up, unmerged")
    seconds: dict[str, list[float]] = {"unmerged": [], "merged": []}
    for number in range(1, repeats + 1):
        of = f" {number}/{repeats}" if repeats > 1 else ""
        unmerged_image, taken = loaded.generate(wanted, progress=f"unmerged{of}")
        seconds["unmerged"].append(taken)
        with merged(loaded.pipe, config, keep) as handle:
            merged_image, taken = loaded.generate(wanted, progress=f"merged{of}")
            explanation = handle.explain() if number == repeats else None
        seconds["merged"].append(taken)
    assert explanation is not None
    return Pair(unmerged_image, merged_image, seconds, explanation, handle.config)


def _save(folder: Path, pair: Pair, result: dict[str, Any]) -> None:
    from tokenmerge.cli.side_by_side import side_by_side
    from tokenmerge.runtime.files import write_image, write_json

    about = {
        key: result[key] for key in ("prompt", "negative", "seed", "steps", "size", "guidance", "model", "versions")
    }
    write_image(folder / "unmerged.png", pair.unmerged, {**about, "method": options.NO_METHOD, "config": None})
    merged_about = {**about, "method": result["method"], "config": result["config"]}
    write_image(folder / "merged.png", pair.merged, merged_about)
    model = (
        "tiny random model, its images mean nothing" if result["model"]["random_weights"] else result["model"]["name"]
    )
    sheet = side_by_side(
        [
            (pair.unmerged, "unmerged", f"{result['best']['unmerged']:.2f} s"),
            (pair.merged, _title(result), f"{result['best']['merged']:.2f} s, {_speedup(result)}, {_psnr(result)}"),
        ],
        f"“{result['prompt']}”, seed {result['seed']}, {result['steps']} steps, {model}",
    )
    write_image(folder / "side_by_side.png", sheet)
    write_json(folder / "compare.json", result)


def _print_table(result: dict[str, Any], pair: Pair, folder: Path) -> None:
    from tabulate import tabulate

    from tokenmerge.report.terminal import filled

    best, median = result["best"], result["median"]
    rows = [
        ["unmerged", f"{best['unmerged']:.2f}", f"{median['unmerged']:.2f}", "1.00x", "", ""],
        [
            _title(result),
            f"{best['merged']:.2f}",
            f"{median['merged']:.2f}",
            _speedup(result),
            _psnr(result),
            f"{result['ssim']:.3f}",
        ],
    ]
    headers = ["", "best s", "median s", "speed-up", "PSNR", "SSIM"]
    width, height = result["size"]
    prompt = shown_plainly(result["prompt"])
    asked = (
        f"{result['model']['name']}, “{prompt}”, {width} x {height} px, {result['steps']} steps, "
        f"seed {result['seed']}, {result['model']['device']}, {result['model']['dtype']}"
    )
    print(filled(asked))
    print(tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=("left", *["right"] * 5)))
    print(filled(_what_was_timed(result, pair)))
    print(f"Written to {folder}: unmerged.png, merged.png, side_by_side.png, compare.json")
    sys.stdout.flush()


def _what_was_timed(result: dict[str, Any], pair: Pair) -> str:
    runs = len(result["seconds"]["merged"])
    counted = "; ".join(f"{model.model} had {model.measured}" for model in pair.explanation.models if model.measured)
    return (
        f"From prompt to pixels: {runs} run{'s' if runs > 1 else ''} of each after a warm-up, with all that "
        f"merging takes. {counted}."
    )


def _title(result: dict[str, Any]) -> str:
    return options.title_of(result["method"], MergeConfig.from_dict(result["config"]))


def _speedup(result: dict[str, Any]) -> str:
    return f"{result['speedup']['best']:.2f}x"


def _psnr(result: dict[str, Any]) -> str:
    return "identical" if result["psnr"] is None else f"{result['psnr']:.1f} dB"
