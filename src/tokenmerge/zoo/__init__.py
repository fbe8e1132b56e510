"""The embedded models: small, trained on 3D emoji, and loaded without a download.

`emoji-sd` is a Stable Diffusion pipeline (UNet, 1,024 tokens at 256 px and 4,096 at 512 px), `emoji-flux` a Flux
pipeline (transformer, 256 and 1,024 image tokens). Both run in float32 on a CPU.
"""

from tokenmerge.zoo.folders import folder_of, known_captions, list_models
from tokenmerge.zoo.loading import load
from tokenmerge.zoo.prompts import UnknownWordWarning

__all__ = ["UnknownWordWarning", "folder_of", "known_captions", "list_models", "load"]
