"""Transformers of diffusers in which nothing is merged, and why."""

from __future__ import annotations

AUDIO = "it makes sound, and has no grid of tokens"
# These could be described by a family, and nobody has done it yet.
UNDESCRIBED = "it has no family yet"

# Class name -> (what people call it, the reason).
UNSUPPORTED: dict[str, tuple[str, str]] = {
    "AceStepTransformer1DModel": ("ACE-Step", AUDIO),
    "LongCatAudioDiTTransformer": ("LongCat-Audio", AUDIO),
    "MiniMaxMusic3RVQDepthDecoder": ("MiniMax Music 3, decoder", AUDIO),
    "MiniMaxMusic3Transformer1DModel": ("MiniMax Music 3", AUDIO),
    "StableAudio3DiTModel": ("Stable Audio 3", AUDIO),
    "StableAudioDiTModel": ("Stable Audio", AUDIO),
    "T5FilmDecoder": ("Spectrogram Diffusion", AUDIO),
    "PriorTransformer": ("Prior of unCLIP", "it makes an embedding of an image, and has no spatial tokens"),
    "RFD4ProteinaTransformer": ("RFD4 Proteina", "it makes proteins, and has no grid of tokens"),
    "Transformer2DModel": ("A part of UNets", "it is a part of other models, in which it is merged"),
    "TransformerTemporalModel": (
        "A part of video UNets",
        "it attends over the few frames of one place, inside of models whose other parts are merged",
    ),
    "DreamLiteTransformer2DModel": (
        "A part of DreamLite's UNet",
        "it is a part of a UNet that leaves self-attention out in most blocks, and has no family yet",
    ),
    "AnyFlowFARTransformer3DModel": (
        "AnyFlow FAR",
        "it generates chunk by chunk, and its flex-attention masks tokens by their place",
    ),
    "Cosmos3OmniTransformer": (
        "Cosmos 3",
        "text, images, video and sound share one packed sequence, whose tokens are found by index",
    ),
    "HeliosTransformer3DModel": (
        "Helios",
        "frames of three histories, each shrunk by another factor, share the sequence with those being made",
    ),
    "HunyuanVideoFramepackTransformer3DModel": (
        "HunyuanVideo FramePack",
        "its frames stand between those of its history and the text, at places that differ from block to attention",
    ),
    "MiniMaxH3Transformer3DModel": (
        "MiniMax H3",
        "text, images, sound and video share one packed sequence, whose tokens are found by index",
    ),
    "Ideogram4Transformer2DModel": (
        "Ideogram 4",
        "text and images share one packed sequence, whose tokens are found by indicators, and which has no family yet",
    ),
    "JoyImageEditPlusTransformer3DModel": (
        "JoyImage Edit Plus",
        "images of several sizes share one padded sequence of patches, and their number differs from sample to sample",
    ),
    "Kandinsky6Transformer3DModel": (
        "Kandinsky 6",
        "video and sound are denoised in one fused block, which returns both",
    ),
    "SanaVideoTransformer3DModel": (
        "Sana-Video",
        "its self-attention is linear already and its MLP has convolutions over frames, rows and columns",
    ),
    "SanaWMTransformer3DModel": (
        "Sana-WM",
        "its self-attention is linear, runs along frames, and reads the camera at every token",
    ),
    "SanaWMLTX2RefinerTransformer3DModel": (
        "Sana-WM's refiner",
        "it generates chunk by chunk, and keeps keys of all tokens of earlier chunks",
    ),
    "WanAnimate2Transformer3DModel": (
        "Wan Animate 2",
        "it is given a list of videos, whose tokens read those of a reference from a cache of its own",
    ),
    "LuminaNextDiT2DModel": (
        "Lumina-Next",
        "its self- and cross-attention return heads apart, and are projected together",
    ),
    "AnyFlowTransformer3DModel": ("AnyFlow", f"{UNDESCRIBED}, though its blocks are those of Wan 2.1"),
    "BriaFibo2Transformer2DModel": ("Bria Fibo 2", f"{UNDESCRIBED}, though its blocks are like those of Z-Image"),
    "JoyImageEditTransformer3DModel": ("JoyImage Edit", UNDESCRIBED),
    "Kandinsky6SRTransformer3DModel": ("Kandinsky 6, super-resolution", UNDESCRIBED),
    "MotifVideoTransformer3DModel": ("Motif-Video", UNDESCRIBED),
}
