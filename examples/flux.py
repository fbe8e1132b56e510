"""Flux with model offload: tokenmerge is applied first or last, both work."""

import argparse

import torch

import tokenmerge as tm


def load(tiny: bool):
    if tiny:
        from tokenmerge import zoo

        return zoo.load("photo-flux"), {"num_inference_steps": 6, "negative_prompt": "", "true_cfg_scale": 3.0}
    from diffusers import FluxPipeline

    pipe = FluxPipeline.from_pretrained("black-forest-labs/FLUX.1-dev", torch_dtype=torch.bfloat16)
    pipe.enable_model_cpu_offload()
    return pipe, {"num_inference_steps": 28, "guidance_scale": 3.5}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="granny smith apples")
    parser.add_argument("--out", default="flux.png")
    parser.add_argument("--tiny", action="store_true", help="the embedded photo-flux, on a CPU")
    args = parser.parse_args(arguments)

    pipe, options = load(args.tiny)
    with tm.merged(pipe, "balanced") as handle:
        pipe(args.prompt, **options).images[0].save(args.out)
        print(handle.explain())


if __name__ == "__main__":
    main()
