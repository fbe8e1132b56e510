"""Writes a trained model as a diffusers folder in half precision, with captions, model card and checksums.

python -m training.export emoji-sd --work DIR
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from diffusers import DiffusionPipeline, FluxPipeline, StableDiffusionPipeline
from transformers import CLIPTokenizer

from tokenmerge.zoo.folders import CAPTIONS, WEIGHTS, write_checksums
from tokenmerge.zoo.patch_autoencoder import PatchAutoencoder
from training import distil, emoji_sd, photo_flux
from training.data import work_parser
from training.recipes import RECIPES
from training.sampling import load_averaged

CARDS = Path(__file__).with_name("cards")


def words_of(tokenizer: CLIPTokenizer, texts: list[str]) -> list[str]:
    """Every word in the texts, as the tokenizer cuts them."""
    backend = tokenizer.backend_tokenizer
    texts = [backend.normalizer.normalize_str(text) for text in texts]
    return sorted({word for text in texts for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)})


def as_pipeline(
    model: emoji_sd.EmojiSD | photo_flux.PhotoFlux,
    tokenizer: CLIPTokenizer,
    autoencoder: PatchAutoencoder,
) -> DiffusionPipeline:
    """The trained parts as a stock pipeline."""
    if isinstance(model, emoji_sd.EmojiSD):
        return StableDiffusionPipeline(
            vae=autoencoder,
            text_encoder=model.text_encoder,
            tokenizer=tokenizer,
            unet=model.unet,
            scheduler=emoji_sd.build_scheduler(),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    return FluxPipeline(
        vae=autoencoder,
        text_encoder=model.text_encoder,
        tokenizer=tokenizer,
        text_encoder_2=model.text_encoder_2,
        tokenizer_2=tokenizer,
        transformer=model.transformer,
        scheduler=photo_flux.build_scheduler(),
    )


def write_folder(pipe: DiffusionPipeline, captions: list[str], texts: list[str], card: Path, folder: Path) -> None:
    """Everything a model folder holds; a folder of that name is replaced.

    `texts` are all wordings of the captions that the model was trained on.
    """
    shutil.rmtree(folder, ignore_errors=True)
    # Rounded as bfloat16 rounds: a quarter less in a wheel, which is a zip file, and no visible change.
    pipe.to(torch.bfloat16).to(torch.float16, silence_dtype_warnings=True)
    pipe.save_pretrained(folder, safe_serialization=True)
    forget_origins(folder)
    knowledge = {"captions": captions, "words": words_of(pipe.tokenizer, texts)}
    (folder / CAPTIONS).write_text(json.dumps(knowledge, indent=0) + "\n")
    shutil.copy(card, folder / "README.md")
    write_checksums(folder)


def forget_origins(folder: Path) -> None:
    """Take out of each config where its model was loaded from, which says nothing elsewhere."""
    for file in folder.rglob("config.json"):
        config = json.loads(file.read_text())
        if config.pop("_name_or_path", None) is not None:
            file.write_text(json.dumps(config, indent=2) + "\n")


def write_lora(model: distil.FourSteps, folder: Path) -> None:
    """Put the LoRA into the folder of the model that it belongs to, with the model's card as it is now."""
    target = folder / f"{distil.STEPS}-steps"
    distil.export(model, target)
    shutil.copy(CARDS / f"{folder.name}.md", folder / "README.md")
    write_checksums(folder)
    print(f"{target}: {sum(file.stat().st_size for file in target.iterdir()) / 1e6:.1f} MB")


def main() -> None:
    parser = work_parser("Exports a trained model as a diffusers folder.")
    parser.add_argument("model", choices=list(RECIPES))
    parser.add_argument("--to", type=Path, default=WEIGHTS, help="folder that gets a folder named like the model")
    args = parser.parse_args()
    model, tokenizer, done = load_averaged(args.work, args.model)
    recipe = RECIPES[args.model]
    if isinstance(model, distil.FourSteps):
        write_lora(model, args.to / "emoji-sd")
        return
    captions = recipe.captions(args.work)[: done["images"]]
    pipe = as_pipeline(model, tokenizer, PatchAutoencoder.from_pretrained(args.work / recipe.autoencoder))
    texts = recipe.texts(args.work)
    write_folder(pipe, captions, texts, CARDS / f"{args.model}.md", args.to / args.model)
    size = sum(file.stat().st_size for file in (args.to / args.model).rglob("*") if file.is_file())
    print(f"{args.to / args.model}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
