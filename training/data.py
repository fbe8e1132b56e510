"""Makes the image set: 3D emoji on white, 256 x 256, with captions from their Unicode names.

    python -m training.data --work DIR

Writes DIR/images.npz with `images` (N, 256, 256, 3) uint8 and DIR/captions.json with N captions.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import tarfile
from pathlib import Path

import emoji
import numpy as np
from PIL import Image

PACKAGE = "@lobehub/fluent-emoji-3d@1.1.0"
ARCHIVE = "lobehub-fluent-emoji-3d-1.1.0.tgz"
SIZE = 256
CAPTIONS = Path(__file__).with_name("captions.txt")


def default_work_dir() -> Path:
    """Where images, latents and checkpoints live: $TOKENMERGE_TRAINING, else a folder in the user's cache."""
    return Path(os.environ.get("TOKENMERGE_TRAINING", "~/.cache/tokenmerge-training")).expanduser()


def work_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the option every training command shares."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=default_work_dir(), help="folder for everything made here")
    return parser


def wanted_captions(path: Path = CAPTIONS) -> list[str]:
    """The captions of `captions.txt`, in its order."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [caption.strip() for line in lines for caption in line.split(";") if caption.strip()]


def caption_of(file_name: str) -> str | None:
    """The English Unicode name of a image named by its code points ('1f680.webp' -> 'rocket')."""
    match = re.fullmatch(r"([0-9a-f]{2,6}(?:-[0-9a-f]{2,6})*)\.webp", file_name)
    if match is None:
        return None
    symbol = "".join(chr(int(code, 16)) for code in match[1].split("-"))
    bare = symbol.replace("\ufe0f", "")
    for candidate in (symbol, bare + "\ufe0f", bare):
        if candidate in emoji.EMOJI_DATA:
            name: str = emoji.EMOJI_DATA[candidate]["en"]
            return name.strip(":").replace("_", " ").lower()
    return None


def fetch_archive(work: Path) -> Path:
    """The npm package as a tar file, fetched once."""
    archive = work / ARCHIVE
    if not archive.exists():
        subprocess.run(["npm", "pack", PACKAGE], cwd=work, check=True)
    return archive


def on_white(data: bytes) -> np.ndarray:  # (256, 256, 3) uint8
    """A image with alpha, laid on white."""
    image = Image.open(io.BytesIO(data)).convert("RGBA").resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    white = Image.new("RGBA", image.size, "white")
    return np.asarray(Image.alpha_composite(white, image).convert("RGB"))


def read_images(archive: Path, wanted: list[str]) -> dict[str, np.ndarray]:
    """Caption -> image, for every wanted caption; says which are missing."""
    found: dict[str, np.ndarray] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            caption = caption_of(Path(member.name).name)
            if caption in wanted and caption not in found:
                found[caption] = on_white(tar.extractfile(member).read())  # type: ignore[union-attr]
    missing = [caption for caption in wanted if caption not in found]
    if missing:
        raise SystemExit(f"captions.txt names images that {archive.name} lacks: {', '.join(missing)}.")
    return found


def main() -> None:
    args = work_parser(__doc__.splitlines()[0]).parse_args()  # type: ignore[union-attr]
    args.work.mkdir(parents=True, exist_ok=True)
    captions = wanted_captions()
    images = read_images(fetch_archive(args.work), captions)
    np.savez(args.work / "images.npz", images=np.stack([images[caption] for caption in captions]))
    (args.work / "captions.json").write_text(json.dumps(captions, indent=0))
    words = {word for caption in captions for word in caption.split()}
    print(f"{len(captions)} images, {len(words)} words -> {args.work}")


if __name__ == "__main__":
    main()
