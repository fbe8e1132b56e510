"""The fastest settings that keep a PSNR on your prompts, saved as JSON for `--config` and `MergeConfig.from_dict`."""

import argparse

import torch

import tokenmerge as tm


def load(tiny: bool):
    if tiny:
        from tokenmerge.runtime.tiny_random import build_tiny_random

        return build_tiny_random(), {"num_inference_steps": 4, "width": 256, "height": 256}
    from diffusers import StableDiffusionXLPipeline

    pipe = StableDiffusionXLPipeline.from_pretrained(
        "stabilityai/stable-diffusion-xl-base-1.0", torch_dtype=torch.float16, variant="fp16"
    )
    return pipe.to("cuda"), {"num_inference_steps": 30}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="*", default=["red apple", "red heart"])
    parser.add_argument("--min-psnr", type=float, default=30.0, help="decibels to the unmerged image")
    parser.add_argument("--out", default="tuned.json")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model, on a CPU")
    args = parser.parse_args(arguments)

    pipe, options = load(args.tiny)
    candidates = [tm.TileMean(tile=4), tm.TileMean(tile=2), tm.SampledKeys()] if args.tiny else None
    found = tm.tune(pipe, args.prompts, args.min_psnr, candidates=candidates, **options)
    print(found)
    found.save(args.out)


if __name__ == "__main__":
    main()
