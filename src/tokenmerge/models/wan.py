"""Wan 2.1 and 2.2, and models made from it: VACE, Animate, SkyReels V2, ChronoEdit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from tokenmerge.models.base import Part, Rotary, cos_sin_at
from tokenmerge.models.builders import LatentFamily, Run

PARTS = (Part(("self",), "attn1", mask="4d"), Part(("cross",), "attn2"), Part(("mlp",), "ffn"))
ROTARY = Rotary("rotary_emb", cos_sin_at, per_sample=True)


class WanFamily(LatentFamily):
    """One stack of blocks over frames, rows and columns. Wan 2.2 has two such models; both are merged."""

    name = "Wan 2.1, 2.2 (video)"
    class_name = "WanTransformer3DModel"
    video = True
    runs = (Run("blocks", PARTS, rotary=ROTARY),)
    frames = 21  # of 81
    text = 512, "text_dim"
    embeddings = (("encoder_hidden_states_image", 257, "image_dim"),)

    def has_time_per_token(self, kwargs: Mapping[str, Any]) -> bool:
        return bool(kwargs["timestep"].dim() == 2)


class SkyReelsFamily(WanFamily):
    """Diffusion forcing, with a timestep for each frame, keeps tokens in grid order."""

    name = "SkyReels V2 (video)"
    class_name = "SkyReelsV2Transformer3DModel"


class ChronoEditFamily(WanFamily):
    name = "ChronoEdit"
    class_name = "ChronoEditTransformer3DModel"


class WanVACEFamily(WanFamily):
    """Blocks of the control branch, one in five, keep every token; what they return is added between blocks."""

    name = "Wan VACE (video)"
    class_name = "WanVACETransformer3DModel"
    always_interleaved = True

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        channels: Any = model.config.vace_in_channels  # type: ignore[union-attr]
        inputs = super().example_inputs(model, size, batch)
        control = self.noise(model, batch, channels, self.frames, size[0] // 8, size[1] // 8)
        return {**inputs, "control_hidden_states": control}


class WanAnimateFamily(WanFamily):
    """A face adapter reads the frames between blocks, so each block returns every token."""

    name = "Wan Animate (video)"
    class_name = "WanAnimateTransformer3DModel"
    always_interleaved = True

    def example_inputs(self, model: nn.Module, size: tuple[int, int], batch: int) -> dict[str, Any]:
        config: Any = model.config
        inputs = super().example_inputs(model, size, batch)
        rows, columns, face = size[0] // 8, size[1] // 8, config.motion_encoder_size
        # The first of 21 latent frames is the reference's: the rest are 77 of a video, with a pose and a face each.
        more = {
            "pose_hidden_states": self.noise(model, batch, config.latent_channels, self.frames - 1, rows, columns),
            "face_pixel_values": self.noise(model, batch, 3, 77, face, face),
        }
        return {**inputs, **more}
