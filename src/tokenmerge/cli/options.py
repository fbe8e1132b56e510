"""Options that several commands share, and how their values are read. Every wrong value is a sentence."""

from __future__ import annotations

import argparse
import ast
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmerge.cli.files import reason
from tokenmerge.config.base import MergeConfig
from tokenmerge.config.checks import LARGEST_SIDE
from tokenmerge.config.ratio import ratio_text
from tokenmerge.errors import ConfigError, UsageError, hint
from tokenmerge.methods.named import METHODS, named_config
from tokenmerge.presets import NAMES, Name
from tokenmerge.runtime.generation import LARGEST_SEED, LATENT, MOST_STEPS, ImageRequest, check_size

if TYPE_CHECKING:
    from PIL.Image import Image

NO_METHOD = "none"
DEFAULT_PRESET: Name = "balanced"
# A preset has all its options set: whoever gives a ratio means ToMA, whoever gives another option means TileMean.
DEFAULT_WITH_RATIO, DEFAULT_WITH_SETTINGS = "toma", "tile-mean"
LARGEST_CONFIG = 1_000_000  # bytes


class HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs and leaves tables, which are indented lines, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(line if line.startswith(" ") else textwrap.fill(line, width) for line in text.splitlines())


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """What to generate, and how."""
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to generate, in quotes")
    group = parser.add_argument_group("the image")
    group.add_argument("--negative", metavar="PROMPT", help="what not to generate, if the model takes one")
    group.add_argument(
        "--seed", default="0", metavar="N", help="start of the noise; the same seed gives the same image"
    )
    group.add_argument("--steps", default="20", metavar="N", help="denoising steps (default: 20)")
    group.add_argument("--size", metavar="WIDTHxHEIGHT", help="in pixels, 768x512 or 512 (default: the model's own)")
    group.add_argument("--guidance", metavar="X", help="how strictly to follow the prompt (default: the model's own)")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model, and where it runs."""
    group = parser.add_argument_group("the model")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="folder of a diffusers model, hub id, an embedded model (emoji-sd, emoji-sd-4, photo-flux) "
        "or tiny-random (default: emoji-sd if its weights are installed, else tiny-random)",
    )
    group.add_argument("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 or mps (default: the best there is)")
    group.add_argument(
        "--dtype",
        metavar="DTYPE",
        help="float32, float16 or bfloat16 (default: float32 on a CPU, half precision elsewhere)",
    )
    add_pickle_option(group)


def add_pickle_option(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--allow-pickle",
        action="store_true",
        help="also load weights that are pickles (.bin, .ckpt), which can run code as they are opened: only for "
        "models of people you trust",
    )


def add_method_options(parser: argparse.ArgumentParser, none_allowed: bool = False) -> None:
    """How tokens are merged."""
    names = [*NAMES, *METHODS, *([NO_METHOD] if none_allowed else [])]
    group = parser.add_argument_group("merging")
    group.add_argument(
        "--method",
        metavar="NAME",
        help=f"a preset or a method: {', '.join(names)} (default: {DEFAULT_PRESET}; {DEFAULT_WITH_RATIO} if --ratio is "
        f"given, {DEFAULT_WITH_SETTINGS} if only --set is)",
    )
    group.add_argument(
        "--ratio",
        metavar="R",
        help="fraction of tokens merged away: more is faster and blurs more (default: the method's own; tile-mean and "
        "sampled-keys have a tile instead: --set tile=2)",
    )
    group.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="any other option of the method, such as tile=2, region=stripe or 'correction={\"every\": 3}'; may be "
        "repeated",
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        help="a method with its options from a JSON file, as `tokenmerge tune` writes it; replaces the options above",
    )


def add_keep_option(parser: argparse.ArgumentParser) -> None:
    """What must stay sharp."""
    parser.add_argument(
        "--keep",
        metavar="FILE",
        help="a black and white image of any size, white where the result must stay sharp (for presets, tile-mean "
        "and toma)",
    )


def read_keep(file: str | None) -> Image | None:
    """The mask that --keep names."""
    if file is None:
        return None
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(Path(file).expanduser()) as mask:
            return mask.convert("L")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        why = f" ({reason(error)})" if getattr(error, "strerror", None) else ""
        raise UsageError(f"--keep {file} cannot be read as an image{why}: give the path of a PNG file.") from None


def read_config(file: str) -> MergeConfig:
    """The config of a JSON file, as `MergeConfig.to_dict` makes it."""
    path = Path(file).expanduser()
    try:
        if path.stat().st_size > LARGEST_CONFIG:
            raise UsageError(f"--config {file} is larger than any config: give a file that `tokenmerge tune` wrote.")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read ({reason(error)}): check the path.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"--config {file} cannot be read as JSON ({error}): give what `tokenmerge tune` wrote."
        ) from None
    if not isinstance(values, dict) or "method" not in values:
        raise UsageError(f'--config {file} holds no method: it must be a JSON object such as {{"method": "ToMA"}}.')
    try:
        return MergeConfig.from_dict(values)
    except ConfigError as error:
        raise UsageError(f"--config {file}: {error}") from None


def methods_listed() -> str:
    """The named methods with a line each, for the end of a help text."""
    width = max(map(len, METHODS))
    lines = [f"  {name.ljust(width)}  {method.summary}" for name, method in METHODS.items()]
    return f"presets: {', '.join(NAMES)}\n\nmethods:\n" + "\n".join(lines)


def title_of(method: str, config: MergeConfig | None) -> str:
    """What a result is called: a preset by its name, a method that merges tokens with its ratio."""
    if config is None:
        return "unmerged"
    return method if method in NAMES or not config.merges_tokens else f"{method}, ratio {ratio_text(config.ratio)}"


def read_image_request(args: argparse.Namespace, command: str) -> ImageRequest:
    """What the options of `add_prompt_options` ask for."""
    if args.prompt is None or not args.prompt.strip():
        raise UsageError(f'no prompt was given: say what to generate, as in `tokenmerge {command} "red apple"`.')
    return ImageRequest(
        prompt=args.prompt,
        negative=args.negative,
        seed=read_seed(args.seed),
        steps=read_whole("--steps", args.steps, 1, MOST_STEPS),
        size=read_size(args.size),
        guidance=read_guidance(args.guidance),
    )


def read_method(args: argparse.Namespace, none_allowed: bool = False) -> MergeConfig | Name | None:
    """The config that --method, --ratio and --set describe, or the name of a preset; None for `--method none`."""
    settings = read_settings(args.settings)
    if args.config is not None:
        if settings or args.ratio is not None or args.method is not None:
            raise UsageError("--config holds a method and all its options: leave out --method, --ratio and --set.")
        config = read_config(args.config)
        args.method = Path(args.config).stem  # what the result is called
        return config
    if args.method is None:
        args.method = DEFAULT_WITH_SETTINGS if settings else DEFAULT_PRESET
        args.method = DEFAULT_WITH_RATIO if args.ratio is not None else args.method
    for name in NAMES:
        if args.method == name:
            if settings or args.ratio is not None:
                raise UsageError(
                    f"{name} is a preset, which has all its options: leave out --ratio and --set, or name a method."
                )
            return name
    if args.method == NO_METHOD:
        if not none_allowed:
            raise UsageError(
                f"--method is {NO_METHOD!r}, and this command is about merging: use one of "
                f"{', '.join([*NAMES, *METHODS])}."
            )
        if args.ratio is not None or settings:
            raise UsageError(f"--method {NO_METHOD} merges nothing: leave out --ratio and --set, or name a method.")
        return None
    check_method(args.method)
    if "ratio" in settings and args.ratio is not None:
        raise UsageError("the ratio was given twice: use either --ratio or --set ratio=...")
    ratio = None if args.ratio is None else read_value(args.ratio)
    return named_config(args.method, ratio, settings)


def check_method(name: str, more: Iterable[str] = ()) -> None:
    """Refuse a name that is neither a preset nor a method, nor one of `more`."""
    known = [*NAMES, *METHODS, *more]
    if name not in known:
        raise UsageError(f"method {name!r} is not known: {hint(name, known)}")


def read_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """OPTION=VALUE pairs.

    >>> read_settings(["region=stripe", "tile=8,8", "proportional=false", "parts=self,mlp"])
    {'region': 'stripe', 'tile': (8, 8), 'proportional': False, 'parts': ('self', 'mlp')}
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise UsageError(f"--set is {pair!r}: write OPTION=VALUE, such as --set region=stripe.")
        if name in settings:
            raise UsageError(f"--set {name} was given twice: give it once.")
        settings[name] = read_value(value.strip())
    return settings


def read_value(text: str) -> Any:
    """A JSON or Python literal, a list of those between commas, or else the words themselves."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    if "," in text:
        return tuple(read_value(item.strip()) for item in text.split(",") if item.strip())
    return text


def read_size(text: str | None, step: int = LATENT) -> tuple[int, int] | None:
    """(width, height) from "768x512" or "512"; None stays None. Both must be multiples of `step` pixels.

    >>> read_size("768x512")
    (768, 512)
    """
    if text is None:
        return None
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) not in (1, 2) or not all(side.strip().isdecimal() for side in sides):
        raise UsageError(
            f"--size is {text!r}: write WIDTHxHEIGHT in pixels, such as 768x512, or one number for a square."
        )
    size = int(sides[0]), int(sides[-1])
    for side in size:
        if not 0 < side <= LARGEST_SIDE:
            raise UsageError(f"--size is {text!r}: each side takes 1 to {LARGEST_SIDE} pixels.")
    check_size(size, step)
    return size


def read_guidance(text: str | None) -> float | None:
    """A guidance scale, None for the model's own."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise UsageError(f"--guidance is {text!r}: it takes a number from 0 to 100, such as 7.5.")
    return value


def read_seed(text: str) -> int:
    """A seed; larger ones would repeat the images of smaller ones."""
    if text.isdecimal() and len(text) < 100 and int(text) > LARGEST_SEED:
        raise UsageError(
            f"--seed is {text!r}: it takes a whole number from 0 to {LARGEST_SEED}, for no more than 32 bits of a seed "
            f"reach the noise. {int(text) % (LARGEST_SEED + 1)} gives the image that this one would."
        )
    return read_whole("--seed", text, 0, LARGEST_SEED)


def read_whole(name: str, text: str, least: int, most: int) -> int:
    """A whole number within bounds."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise UsageError(f"{name} is {text!r}: it takes a whole number from {least} to {most}.")
    return value
