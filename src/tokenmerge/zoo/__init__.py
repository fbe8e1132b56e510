"""The embedded models: small, and loaded without a download.

`emoji-sd` is a Stable Diffusion pipeline trained on 3D emoji (UNet, 1,024 tokens at 256 px and 4,096 at 512 px).
`photo-flux` is a Flux pipeline trained on photographs of fruit and vegetables (transformer, as many image tokens). Both
run in float32 on a CPU.
"""

from tokenmerge.zoo.folders import folder_of, known_captions, list_models
from tokenmerge.zoo.loading import load
from tokenmerge.zoo.prompts import UnknownWordWarning

__all__ = ["UnknownWordWarning", "folder_of", "known_captions", "list_models", "load"]
