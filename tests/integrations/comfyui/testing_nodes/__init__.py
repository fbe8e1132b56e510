"""Nodes that stand in for what only downloads have: a text encoder, an autoencoder, an SDXL checkpoint."""

import sys
from pathlib import Path

import torch
from comfy_api.latest import ComfyExtension, io

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import small_models


class TestText(io.ComfyNode):
    """A random conditioning instead of CLIPTextEncode."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [io.Int.Input("seed", default=1, min=0, max=999)]
        return io.Schema("TestText", "Text (test)", "testing", inputs, [io.Conditioning.Output()])

    @classmethod
    def execute(cls, seed: int) -> io.NodeOutput:
        return io.NodeOutput(small_models.text(seed))


class TestSDXL(io.ComfyNode):
    """A small random UNet of SDXL's shape instead of a checkpoint."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema("TestSDXL", "Load small SDXL (test)", "testing", [], [io.Model.Output()])

    @classmethod
    def execute(cls) -> io.NodeOutput:
        return io.NodeOutput(small_models.sdxl())


class TestDecode(io.ComfyNode):
    """Three channels of a latent as an image instead of VAEDecode."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema("TestDecode", "Decode (test)", "testing", [io.Latent.Input("samples")], [io.Image.Output()])

    @classmethod
    def execute(cls, samples: dict) -> io.NodeOutput:
        image = samples["samples"][:, :3].movedim(1, -1)
        image = torch.sigmoid(image / image.std()).repeat_interleave(8, 1).repeat_interleave(8, 2)
        return io.NodeOutput(image)


class TestingExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [TestText, TestSDXL, TestDecode]


def comfy_entrypoint() -> TestingExtension:
    return TestingExtension()
