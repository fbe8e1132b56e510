"""SDXL with the preset "balanced", and what was merged where."""

import argparse

import torch

import tokenmerge as tm


def load(tiny: bool):
    if tiny:
        from tokenmerge import zoo

        return zoo.load("emoji-sd"), {"num_inference_steps": 6}
    from diffusers import StableDiffusionXLPipeline

    pipe = StableDiffusionXLPipeline.from_pretrained(
        "stabilityai/stable-diffusion-xl-base-1.0", torch_dtype=torch.float16, variant="fp16"
    )
    return pipe.to("cuda"), {"num_inference_steps": 30}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="red apple")
    parser.add_argument("--preset", default="balanced", choices=["quality", "balanced", "fast"])
    parser.add_argument("--out", default="sdxl.png")
    parser.add_argument("--tiny", action="store_true", help="the embedded emoji-sd, on a CPU")
    args = parser.parse_args(arguments)

    pipe, options = load(args.tiny)
    handle = tm.apply(pipe, args.preset)
    pipe(args.prompt, **options).images[0].save(args.out)
    print(handle.explain())
    handle.remove()  # exactly the model that came in


if __name__ == "__main__":
    main()
