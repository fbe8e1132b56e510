"""Untrained models of full structure, exported by the code that exports the trained ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # `training` is a folder of the repository, not of the package

CAPTIONS = ["red heart", "blue heart", "cat face", "smiling face with heart-eyes"]


def _export(name: str, folder: Path) -> Path:
    import torch

    from tokenmerge.zoo.patch_autoencoder import PatchAutoencoder
    from training.export import CARDS, as_pipeline, write_folder
    from training.recipes import RECIPES
    from training.vocabulary import build_tokenizer, phrasings

    torch.manual_seed(0)
    texts = [text for caption in CAPTIONS for text in phrasings(caption)]
    tokenizer = build_tokenizer(texts)
    autoencoder = PatchAutoencoder(5, block_out_channels=(1, 1, 1)) if name == "photo-flux" else PatchAutoencoder()
    network = RECIPES[name].network(tokenizer)
    for weight in network.parameters():  # blocks that start as the identity would show nothing
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.1)
    pipe = as_pipeline(network, tokenizer, autoencoder)
    write_folder(pipe, CAPTIONS, texts, CARDS / f"{name}.md", folder / name)
    return folder / name


@pytest.fixture(scope="session")
def fresh_sd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained `emoji-sd`; copy it before changing a file."""
    return _export("emoji-sd", tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="session")
def fresh_photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained `photo-flux`; copy it before changing a file."""
    return _export("photo-flux", tmp_path_factory.mktemp("zoo"))
