"""Video with Wan. Presets skip steps; this merges tokens too, in tiles that span four frames."""

import argparse

import torch

import tokenmerge as tm


def load(tiny: bool):
    from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel

    if not tiny:
        pipe = WanPipeline.from_pretrained("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", torch_dtype=torch.bfloat16)
        return pipe.to("cuda"), {"num_frames": 81, "num_inference_steps": 30}
    transformer = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=16, out_channels=16, text_dim=16, freq_dim=32,
        ffn_dim=32, num_layers=2,
    ).eval()  # fmt: skip
    pipe = WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=None,
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(),
    )
    # Without a text encoder and a VAE: embeddings in, latents out.
    embeddings = {"prompt_embeds": torch.randn(1, 8, 16), "negative_prompt_embeds": torch.zeros(1, 8, 16)}
    size = {"height": 128, "width": 128, "num_frames": 17, "num_inference_steps": 6}
    return pipe, {**embeddings, **size, "output_type": "latent"}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="a cat walks through grass")
    parser.add_argument("--out", default="video.mp4")
    parser.add_argument("--tiny", action="store_true", help="a small random transformer, on a CPU; no file is written")
    args = parser.parse_args(arguments)

    pipe, options = load(args.tiny)
    with tm.merged(pipe, tm.TileMean(tile=(4, 2, 2), step_speedup=1.5)) as handle:
        frames = pipe(prompt=None if args.tiny else args.prompt, **options).frames[0]
        print(handle.explain())
    if not args.tiny:
        from diffusers.utils import export_to_video

        export_to_video(frames, args.out, fps=16)


if __name__ == "__main__":
    main()
