"""Goes on from packaged weights where no checkpoint is left.

python -m training.train photo-flux --from-package ...
"""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn

from tokenmerge.zoo.loading import load_folder


def take_over_files(folder: Path, tokenizer: Path, autoencoder: Path) -> None:
    """Copy the tokenizer and the autoencoder of a model folder, without which its weights are of no use."""
    for part, target in (("tokenizer", tokenizer), ("vae", autoencoder)):
        shutil.copytree(folder / part, target, dirs_exist_ok=True)


def take_over_weights(folder: Path, model: nn.Module) -> None:
    """Load every part of the model that the pipeline in a model folder has; others keep their random start."""
    pipe = load_folder(folder)
    for name, part in model.named_children():
        if hasattr(pipe, name):
            part.load_state_dict(getattr(pipe, name).state_dict())
