"""CLIP score of an image and its prompt, and DINO distance of a pair, with networks from transformers."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from tokenmerge.eval.errors import MetricUnavailable

# An experiment, which may be anybody's, names these networks: no code of theirs is run, and no pickle opened.
SAFELY: dict[str, Any] = {"trust_remote_code": False, "use_safetensors": True}


class ClipScore:
    """100 times the cosine between an image and its prompt, never below 0 (Hessel et al., 2021)."""

    def __init__(self, model: Any, tokenizer: Any, processor: Any, device: torch.device) -> None:
        self.model, self.tokenizer, self.processor, self.device = model.to(device).eval(), tokenizer, processor, device

    @torch.inference_mode()
    def of_image(self, image: Tensor, prompt: str) -> float:
        """(3, H, W) uint8 and its prompt."""
        longest = self.model.config.text_config.max_position_embeddings
        words = self.tokenizer(prompt, return_tensors="pt", truncation=True, max_length=longest).to(self.device)
        pixels = _pixels(self.processor, image).to(self.device)
        text = _embedding(self.model.get_text_features(**words))
        seen = _embedding(self.model.get_image_features(pixel_values=pixels))
        return max(100 * float(functional.cosine_similarity(text, seen)), 0.0)


class DinoDistance:
    """1 - cosine between the class tokens of two images: 0 for equal ones."""

    def __init__(self, model: Any, processor: Any, device: torch.device) -> None:
        self.model, self.processor, self.device = model.to(device).eval(), processor, device

    @torch.inference_mode()
    def of_pair(self, baseline: Tensor, image: Tensor) -> float:
        """(3, H, W) uint8 each."""
        first, second = (self._class_token(each) for each in (baseline, image))
        return max(1 - float(functional.cosine_similarity(first, second)), 0.0)

    def _class_token(self, image: Tensor) -> Tensor:
        output = self.model(pixel_values=_pixels(self.processor, image).to(self.device))
        token: Tensor = output.last_hidden_state[:, 0].float()
        return token


def load_clip(name: str | None, device: torch.device) -> ClipScore:
    if name is None:
        raise MetricUnavailable("CLIP score needs a network: give a folder or a hub id with clip = ... in [metrics]")
    from transformers import AutoTokenizer, CLIPModel

    with _told(name, "CLIP"):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        return ClipScore(CLIPModel.from_pretrained(name, **SAFELY), tokenizer, _processor(name), device)


def load_dino(name: str | None, device: torch.device) -> DinoDistance:
    if name is None:
        raise MetricUnavailable("DINO distance needs a network: give a folder or a hub id with dino = ... in [metrics]")
    from transformers import AutoModel

    with _told(name, "DINO"):
        return DinoDistance(AutoModel.from_pretrained(name, **SAFELY), _processor(name), device)


def _processor(name: str) -> Any:
    from transformers import AutoImageProcessor

    # The other backend would need torchvision.
    return AutoImageProcessor.from_pretrained(name, backend="pil", trust_remote_code=False)


def _pixels(processor: Any, image: Tensor) -> Tensor:
    pixel_image = Image.fromarray(image.permute(1, 2, 0).numpy())
    pixels: Tensor = processor(pixel_image, return_tensors="pt")["pixel_values"]
    return pixels


def _embedding(output: Any) -> Tensor:
    """Older versions of transformers give the embedding itself, newer ones an output that holds it."""
    return output.float() if isinstance(output, Tensor) else output.pooler_output.float()


class _told:
    """Whatever a hub or a folder raises becomes the reason in the table."""

    def __init__(self, name: str, what: str) -> None:
        self.name, self.what = name, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
            raise MetricUnavailable(f"the {self.what} network {self.name} could not be loaded ({reason})") from None
