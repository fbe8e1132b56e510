"""Prepares the photographs of `photo-flux`: unpacks them, composes captions, fits the autoencoder.

    python -m training.photographs produce-320.tar --work DIR

The archive holds 3,676 photographs of fruit and vegetables of 320 x 320 px with `captions.csv`, from the Grocery Store
Dataset (MIT; github.com/marcusklasson/GroceryStoreDataset). Writes to DIR/photographs: the photographs at 80, 160 and
320 px as `<px>.npy`, `rows.json`, and the autoencoder.
"""

from __future__ import annotations

import csv
import json
import random
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate, mse_loss
from transformers import CLIPTokenizer

from tokenmerge.zoo.patch_autoencoder import PatchAutoencoder
from training.alignment import cut_features
from training.clearest import clearest, clearness
from training.data import work_parser
from training.images import NO_CAPTION, PLAIN_CAPTION, tokenize
from training.latents import fit_decoder, fit_encoder

STORED = (80, 160, 320)
FRAME = 0.5  # of a photograph, at the native size: fruit is large enough to be told by its shape
WIDE_FRAME = 0.95  # of a photograph, at twice the native size: fruit of about the same number of pixels, but more
MOST_NOISE = 0.4  # on latents of variance about 1, for a classifier of generated images
HELD_BACK = 200  # photographs of the test split, never trained on
MORE_OFTEN = 2.5  # times as many samples of varieties that a run is to learn better
FITTED = 200  # photographs for the closed-form autoencoder
CHANNELS = 5  # brightness, two slopes of it, two colours; 8 gain 4 dB that nobody sees and are harder to learn
PATCH_LEVELS = (1, 1, 1)  # three levels: patches of 4 x 4
TOKEN = 8  # pixels a side of one packed token
NATIVE_TOKENS = 32  # tokens a side at 256 px

# Plurals that are not the singular with an s.
IRREGULAR = {
    "mango": "mangoes", "potato": "potatoes", "tomato": "tomatoes", "peach": "peaches", "zucchini": "zucchini",
    "garlic": "garlic", "ginger": "ginger", "asparagus": "asparagus",
}  # fmt: skip
# What varieties are called in full, if their name in the data set leaves out what they are.
FULL_NAMES = {"cantaloupe": "cantaloupe melon", "watermelon": "watermelon", "satsumas": "satsuma", "carrots": "carrot"}
HANDS = Path(__file__).with_name("hands.txt")
VARIETIES = Path(__file__).with_name("varieties.txt")
SAME_GROUP = {"Brown-Cap-Mushroom": "Mushroom"}


def plain_name(row: dict[str, str]) -> str:
    """What a photograph shows, in the singular: 'granny smith apple', 'red bell pepper', 'lemon'.

    >>> plain_name({"group": "Apple", "variety": "Granny-Smith"})
    'granny smith apple'
    >>> plain_name({"group": "Pepper", "variety": "Red-Bell-Pepper"})
    'red bell pepper'
    """
    group, variety = (row[key].lower().replace("-", " ") for key in ("group", "variety"))
    group, variety = FULL_NAMES.get(group, group), FULL_NAMES.get(variety, variety)
    if not variety:
        return group
    return variety if group in variety else f"{variety} {group}"


def group_of(row: dict[str, str]) -> str:
    """The group, with one name for what `captions.csv` lists under two."""
    return SAME_GROUP.get(row["group"], row["group"])


def plural(name: str) -> str:
    """The plural of the last word.

    >>> plural("sweet potato"), plural("garlic"), plural("lemon")
    ('sweet potatoes', 'garlic', 'lemons')
    """
    *before, last = name.split()
    return " ".join([*before, IRREGULAR.get(last, last + "s")])


def with_article(name: str) -> str:
    """'an orange', 'a lemon'; mass nouns stay as they are."""
    if plural(name) == name:
        return name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def phrasings(row: dict[str, str]) -> list[str]:
    """Ways to caption a photograph, the plainest first: variety, group and kind in varied order and wording.

    With `scene` "hand" or "pile" in the row, the wordings that fit what is seen are added.
    """
    one, group, kind = plain_name(row), row["group"].lower().replace("-", " "), row["kind"].lower()
    group = FULL_NAMES.get(group, group)
    many = plural(one)
    ways = [many, one, f"a photo of {many}", f"fresh {many}", f"{many} in a shop", f"{many}, {kind}", f"{kind}: {many}"]
    if group != one:
        ways += [plural(group), f"{plural(group)}: {many}", f"{plural(group)}, {kind}"]
    if row.get("scene") == "hand":
        ways += [f"a hand holding {with_article(one)}", f"{with_article(one)} in a hand"] * 3
    if row.get("scene") == "pile":
        ways += [f"a pile of {many}", f"a crate of {many}", f"many {many}"] * 2
    return ways


def all_texts(rows: list[dict[str, str]]) -> list[str]:
    """Every wording of every photograph in either scene, for the vocabulary."""
    scenes = ("hand", "pile")
    return sorted({text for row in rows for scene in scenes for text in phrasings({**row, "scene": scene})})


def read_rows(work: Path) -> list[dict[str, str]]:
    """File, split, kind, group, variety and scene of every photograph, and `held_back` for some."""
    rows: list[dict[str, str]] = json.loads((work / "photographs" / "rows.json").read_text())
    return rows


def is_learnt(row: dict[str, str]) -> bool:
    """Whether the photograph shows one of the varieties that the model is trained on."""
    return phrasings(row)[0] in VARIETIES.read_text().splitlines()


def learnt_rows(work: Path) -> list[dict[str, str]]:
    """The rows of the varieties that the model is trained on."""
    return [row for row in read_rows(work) if is_learnt(row)]


def plain_captions(work: Path) -> list[str]:
    """The plainest caption of every variety that the model is trained on, in alphabetical order."""
    return sorted({phrasings(row)[0] for row in learnt_rows(work)})


def unpack_archive(archive: Path, folder: Path) -> list[dict[str, str]]:
    """Unpack once and return the rows of `captions.csv`, with `scene`, and `held_back` for those never trained on."""
    if not (folder / "captions.csv").exists():
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    with (folder / "captions.csv").open() as file:
        rows = list(csv.DictReader(file))
    test = [row for row in rows if row["split"] == "test"]
    for row in random.Random(0).sample(test, HELD_BACK):
        row["held_back"] = "yes"
    hands = {number for line in HANDS.read_text().splitlines() if line[0] != "#" for number in line.split()}
    for row in rows:
        row["scene"] = "hand" if row["file"].removesuffix(".webp") in hands else "pile"
    return rows


def read_photographs(folder: Path, rows: list[dict[str, str]], size: int) -> np.ndarray:  # (N, size, size, 3) uint8
    """All photographs at one size."""
    images = np.empty((len(rows), size, size, 3), np.uint8)
    for index, row in enumerate(rows):
        image = Image.open(folder / row["file"]).convert("RGB")
        images[index] = np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))
    return images


def to_unit(images: np.ndarray) -> Tensor:  # (N, 3, H, W) in [-1, 1]
    """Images (N, H, W, 3) uint8 as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


def psnr(model: PatchAutoencoder, images: Tensor) -> float:
    """Mean decibels over images (N, 3, H, W) of what the autoencoder returns, clamped as on display."""
    with torch.no_grad():
        errors = [mse_loss(model(image[None]).sample.clamp(-1, 1), image[None]) for image in images]
    return float(torch.stack([10 * torch.log10(4 / error) for error in errors]).mean())


def centre(images: np.ndarray, size: int) -> np.ndarray:
    """The middle `size` pixels of images (N, H, W, 3)."""
    start = (images.shape[1] - size) // 2
    return images[:, start : start + size, start : start + size]


def native_frames(work: Path, size: int) -> list[Image.Image]:
    """What a model of the native size is to generate of each photograph: the frame in its middle."""
    images = np.load(work / "photographs" / f"{STORED[-1]}.npy", mmap_mode="r")
    frames = centre(images, round(FRAME * STORED[-1]))
    return [Image.fromarray(frame).resize((size, size), Image.Resampling.BICUBIC) for frame in frames]


@torch.no_grad()
def noisy_frames(work: Path, size: int, numbers: Sequence[int], seed: int) -> list[Image.Image]:
    """A frame near the middle of each of these photographs, flipped or not, decoded from latents with some noise.

    Generated images are softer and grainier than photographs. A classifier of both has to know both.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    images = np.load(work / "photographs" / f"{STORED[-1]}.npy", mmap_mode="r")
    autoencoder = PatchAutoencoder.from_pretrained(work / "photographs" / "autoencoder")
    frames = []
    for number in numbers:
        frame = np.ascontiguousarray(_Cut.random(STORED[-1], round(FRAME * STORED[-1])).of(images[number]))
        scaled = Image.fromarray(frame).resize((size, size), Image.Resampling.BICUBIC)
        latents = autoencoder.encoder(to_unit(np.asarray(scaled)[None]))
        noisy = latents + random.uniform(0, MOST_NOISE) * torch.randn_like(latents)
        pixels = autoencoder.decode(noisy).sample[0].clamp(-1, 1).add(1).mul(127.5)  # type: ignore[union-attr]
        frames.append(Image.fromarray(pixels.round().byte().permute(1, 2, 0).numpy()))
    return frames


@dataclass(frozen=True)
class _Cut:
    """A square of a photograph, flipped or not."""

    top: int
    left: int
    side: int
    flipped: bool

    @classmethod
    def random(cls, stored: int, side: int) -> _Cut:
        """From the middle half of the places there are, flipped half of the time."""
        top, left = (round((stored - side) * (1 + random.random() + random.random()) / 4) for _ in range(2))
        return cls(top, left, side, random.random() < 0.5)

    def of(self, image: np.ndarray) -> np.ndarray:  # (side, side, 3)
        """This square of an image (H, W, 3)."""
        square = image[self.top : self.top + self.side, self.left : self.left + self.side]
        return square[:, ::-1] if self.flipped else square


class Photographs:
    """Batches of latents cut from the photographs at one frame size, flipped and shifted at random.

    A frame of 64 px has 8 x 8 tokens, one of 256 px 32 x 32. `window` limits the tokens a side: of a larger frame a
    random window is taken, at its own positions. Smaller frames are spread over the positions of the native size, so
    that layouts carry over from cheap frames to expensive ones; `wide` is the share of batches spread over twice that.
    With `aligned`, batches carry the features that `training.alignment` has computed. `clear` limits the photographs of
    each variety to that many, the clearest by these features. Varieties named in `often`, by their plainest caption,
    are sampled `MORE_OFTEN` times as often.
    """

    def __init__(
        self,
        work: Path,
        tokenizer: CLIPTokenizer,
        size: int,
        window: int | None,
        wide: float = 0.0,
        aligned: bool = False,
        clear: int | None = None,
        often: Sequence[str] = (),
    ) -> None:
        folder = work / "photographs"
        rows = read_rows(work)
        self.maps = torch.load(folder / "alignment.pt", mmap=True) if aligned else None  # (N, D, 17, 17)
        self.chosen = [index for index, row in enumerate(rows) if "held_back" not in row and is_learnt(row)]
        if clear is not None:
            self.chosen = choose_clear(folder, [rows[index] for index in self.chosen], self.chosen, clear)
        self.weights = sampling_weights([phrasings(rows[index])[0] for index in self.chosen], often)
        self.size, self.wide = size, wide
        self.window = min(window or size // TOKEN, size // TOKEN)
        self.images = {stored: np.load(folder / f"{stored}.npy", mmap_mode="r") for stored in STORED}
        self.autoencoder = PatchAutoencoder.from_pretrained(folder / "autoencoder").requires_grad_(False)
        self.tokens = {index: tokenize(tokenizer, phrasings(rows[index])) for index in self.chosen}
        self.nothing = tokenize(tokenizer, [""])[0]

    def batch(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Latents (B, C, h, w), token ids (B, L), positions (tokens a side, 2) of rows and columns, and features."""
        tokens_in_frame = self.size // TOKEN
        wide = tokens_in_frame > NATIVE_TOKENS or random.random() < self.wide
        corner = [random.randrange(tokens_in_frame - self.window + 1) for _ in range(2)]
        indices = random.choices(self.chosen, self.weights, k=count)
        part = WIDE_FRAME if wide else FRAME
        stored = next((size for size in STORED if size * part >= self.size), STORED[-1])
        cuts = [_Cut.random(stored, round(stored * part)) for _ in indices]
        latents = self.autoencoder.encoder(self._window(self._frames(indices, stored, cuts), corner, TOKEN))
        captions = torch.stack([self._caption(index) for index in indices])
        stride = NATIVE_TOKENS * (2 if wide else 1) / tokens_in_frame
        steps = torch.arange(self.window)
        positions = torch.stack([(steps + start + 0.5) * stride - 0.5 for start in corner], dim=1)
        return latents, captions, positions, self._features(indices, stored, cuts, corner)

    def _window(self, frames: Tensor, corner: list[int], unit: int) -> Tensor:
        """The window of frames (B, C, H, W) whose tokens are `unit` long."""
        top, left = (place * unit for place in corner)
        return frames[:, :, top : top + self.window * unit, left : left + self.window * unit]

    def _frames(self, indices: list[int], stored: int, cuts: list[_Cut]) -> Tensor:  # (B, 3, size, size)
        """A part of each photograph."""
        frames = np.stack([cut.of(self.images[stored][index]) for index, cut in zip(indices, cuts, strict=True)])
        pixels = to_unit(frames)
        if cuts[0].side == self.size:
            return pixels
        return interpolate(pixels, size=(self.size,) * 2, mode="bicubic", antialias=True).clamp(-1, 1)

    def _features(self, indices: list[int], stored: int, cuts: list[_Cut], corner: list[int]) -> Tensor | None:
        """Features (B, window * window, D) of the tokens."""
        if self.maps is None:
            return None
        side = self.size // TOKEN
        corners = torch.tensor([[cut.top / stored, cut.left / stored] for cut in cuts])
        flipped = torch.tensor([cut.flipped for cut in cuts])
        found = cut_features(self.maps[indices].float(), corners, cuts[0].side / stored, flipped, side)
        return self._window(found.transpose(1, 2).unflatten(2, (side, side)), corner, 1).flatten(2).transpose(1, 2)

    def _caption(self, index: int) -> Tensor:  # (L,)
        if random.random() < NO_CAPTION:
            return self.nothing
        ways = self.tokens[index]
        return ways[0] if random.random() < PLAIN_CAPTION else ways[random.randrange(len(ways))]


def choose_clear(folder: Path, rows: list[dict[str, str]], numbers: list[int], count: int) -> list[int]:
    """Of the photographs with these numbers and rows, the `count` of each variety that show best what they are."""
    groups = sorted({group_of(row) for row in rows})
    maps = torch.load(folder / "alignment.pt", mmap=True)[numbers]
    scores = clearness(maps, torch.tensor([groups.index(group_of(row)) for row in rows]))
    return [numbers[index] for index in clearest(scores, [plain_name(row) for row in rows], count)]


def sampling_weights(names: list[str], often: Sequence[str]) -> list[float]:
    """How often to sample each photograph: one of a variety with a quarter of the photographs twice as often.

    Varieties in `often` get `MORE_OFTEN` times that.
    """
    counts = Counter(names)
    if unknown := set(often) - set(counts):
        raise SystemExit(f"Nothing to train on is called {', '.join(sorted(unknown))}; captions are in varieties.txt.")
    return [counts[name] ** -0.5 * (MORE_OFTEN if name in often else 1.0) for name in names]


def main() -> None:
    parser = work_parser("Prepares the photographs.")
    parser.add_argument("archive", type=Path, help="produce-320.tar")
    args = parser.parse_args()
    folder = args.work / "photographs"
    rows = unpack_archive(args.archive, folder)
    (folder / "rows.json").write_text(json.dumps(rows, indent=0))
    for size in STORED:
        np.save(folder / f"{size}.npy", read_photographs(folder, rows, size))
    images = np.load(folder / f"{STORED[-1]}.npy", mmap_mode="r")
    trained = [index for index, row in enumerate(rows) if "held_back" not in row]
    fitted = to_unit(centre(images[sorted(random.Random(0).sample(trained, FITTED))], 256))
    model = PatchAutoencoder(latent_channels=CHANNELS, block_out_channels=PATCH_LEVELS)
    with torch.no_grad():
        fit_encoder(model, fitted)
        fit_decoder(model, fitted)
        latents = model.encoder(fitted)
    model.save_pretrained(folder / "autoencoder")
    held_back = [index for index, row in enumerate(rows) if "held_back" in row]
    print(f"latents: standard deviation by channel {[round(s, 2) for s in latents.std((0, 2, 3)).tolist()]}")
    quality = psnr(model, to_unit(centre(images[held_back], 256)))
    print(f"reconstruction of {HELD_BACK} held-back photographs: {quality:.2f} dB")


if __name__ == "__main__":
    main()
