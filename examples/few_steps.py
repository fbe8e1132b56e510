"""A model of four steps. Every step matters there, so only keys are left out: all queries stay."""

import argparse

import torch

import tokenmerge as tm


def load(tiny: bool):
    if tiny:
        from tokenmerge import zoo

        return zoo.load("emoji-sd", steps=4), {"num_inference_steps": 4, "guidance_scale": 1.0}
    from diffusers import LCMScheduler, StableDiffusionXLPipeline

    pipe = StableDiffusionXLPipeline.from_pretrained(
        "stabilityai/stable-diffusion-xl-base-1.0", torch_dtype=torch.float16, variant="fp16"
    ).to("cuda")
    pipe.load_lora_weights("latent-consistency/lcm-lora-sdxl")
    pipe.scheduler = LCMScheduler.from_config(pipe.scheduler.config)
    return pipe, {"num_inference_steps": 4, "guidance_scale": 1.0}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="red apple")
    parser.add_argument("--out", default="few_steps.png")
    parser.add_argument("--tiny", action="store_true", help="the embedded emoji-sd in four steps, on a CPU")
    args = parser.parse_args(arguments)

    pipe, options = load(args.tiny)
    print(tm.compare(pipe, tm.SampledKeys(tile=2), [args.prompt], **options))  # look before you rely on it
    with tm.merged(pipe, tm.SampledKeys(tile=2)):
        pipe(args.prompt, **options).images[0].save(args.out)


if __name__ == "__main__":
    main()
