"""Generates the sample sheet: 24 fixed captions (30 for four steps), fixed seed, six in a row.

python -m training.sheet emoji-sd --work DIR --size 256 sheet.png
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from training.data import work_parser
from training.recipes import RECIPES
from training.sampling import Sampler

SHEET_CAPTIONS = (
    "red heart", "rocket", "pizza", "cat face", "smiling face with sunglasses", "watermelon",
    "grinning face", "sunflower", "red apple", "octopus", "guitar", "soccer ball",
    "panda", "cactus", "hamburger", "airplane", "crown", "christmas tree",
    "fox", "banana", "alarm clock", "ghost", "strawberry", "sailboat",
)  # fmt: skip
SIX_MORE_CAPTIONS = ("cherries", "pear", "dog face", "star", "light bulb", "snowman")
PHOTO_SHEET_CAPTIONS = (
    "granny smith apples", "red delicious apples", "royal gala apples", "conference pears", "lemons", "limes",
    "oranges", "peaches", "plums", "mangoes", "pomegranates", "kiwis",
    "bananas", "watermelons", "cantaloupe melons", "honeydew melons", "avocados", "vine tomatoes",
    "carrots", "asparagus", "brown cap mushrooms", "yellow onions", "solid potatoes", "sweet potatoes",
)  # fmt: skip
SHEETS = {"photo-flux": PHOTO_SHEET_CAPTIONS, "emoji-sd-4": SHEET_CAPTIONS + SIX_MORE_CAPTIONS}
COLUMNS, LABEL = 6, 18


def draw_sheet(images: list[Image.Image], captions: list[str] | tuple[str, ...], columns: int = COLUMNS) -> Image.Image:
    """Images in rows, each with its caption below."""
    side = images[0].width
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * side, rows * (side + LABEL)), "white")
    draw = ImageDraw.Draw(sheet)
    for index, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = index % columns * side, index // columns * (side + LABEL)
        sheet.paste(image, (left, top))
        draw.text((left + 4, top + side + 2), caption, fill="black")
    return sheet


def main() -> None:
    parser = work_parser("Generates the sample sheet from a checkpoint.")
    parser.add_argument("model", choices=list(RECIPES))
    parser.add_argument("--size", type=int, default=256, help="pixels a side")
    parser.add_argument("--steps", type=int, default=20, help="denoising steps")
    parser.add_argument("--guidance", type=float, default=3.0, help="classifier-free guidance")
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise")
    parser.add_argument("--varied", action="store_true", help="other noise for every caption")
    parser.add_argument("--half", action="store_true", help="compute in bfloat16, for CPUs that have it")
    parser.add_argument("output", type=Path, help="PNG to write")
    args = parser.parse_args()
    captions = list(SHEETS.get(args.model, SHEET_CAPTIONS))
    sampler = Sampler(args.work, args.model, args.half)
    images = sampler.generate(captions, args.size, args.steps, args.guidance, args.seed, same_noise=not args.varied)
    draw_sheet(images, captions).save(args.output)
    done = sampler.done
    print(f"{args.output} after {done['samples']} samples, {done['core_seconds'] / 3600:.2f} core hours")


if __name__ == "__main__":
    main()
