"""`tiny-random`: a Stable Diffusion pipeline made in code, with random weights. Its images mean nothing.

It has the parts and the shapes of the real thing (4,096 tokens at 512 px), so everything can be tried with no download.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from diffusers import StableDiffusionPipeline
    from transformers import CLIPTokenizer

TEXT_WIDTH = 32
TEXT_LENGTH = 77


def build_tiny_random() -> StableDiffusionPipeline:
    """The pipeline on the CPU in float32; every call makes the same weights."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    tokenizer = _letters()
    text_config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=2 * TEXT_WIDTH,
        projection_dim=TEXT_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=TEXT_LENGTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        unet = UNet2DConditionModel(
            sample_size=64,
            block_out_channels=(32, 64),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            layers_per_block=1,
            cross_attention_dim=TEXT_WIDTH,
            attention_head_dim=1,  # diffusers: the number of heads
            norm_num_groups=8,
        )
        autoencoder = AutoencoderKL(
            block_out_channels=(8, 8, 8, 8),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1,
            norm_num_groups=4,
            sample_size=512,
            mid_block_add_attention=False,
        )
        text_encoder = CLIPTextModel(text_config)
    return StableDiffusionPipeline(
        vae=autoencoder.eval(),
        text_encoder=text_encoder.eval(),
        tokenizer=tokenizer,
        unet=unet.eval(),
        scheduler=DDIMScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            clip_sample=False,
            set_alpha_to_one=False,
            steps_offset=1,
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _letters() -> CLIPTokenizer:
    """A CLIP tokenizer that spells: every byte is a token, alone and at the end of a word."""
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|startoftext|>", "<|endoftext|>", *alphabet, *(letter + "</w>" for letter in alphabet)]
    # By way of files, because transformers 4 takes a vocabulary from nowhere else.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
        (Path(folder) / "merges.txt").write_text("#version: 0.2\n")
        (Path(folder) / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
        tokenizer: CLIPTokenizer = CLIPTokenizer.from_pretrained(folder, model_max_length=TEXT_LENGTH)
    return tokenizer
