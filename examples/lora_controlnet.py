"""A LoRA and a ControlNet together with merging. The order of loading and applying does not matter."""

import argparse

import torch
from PIL import Image

import tokenmerge as tm


def load(tiny: bool):
    from diffusers import ControlNetModel, StableDiffusionControlNetPipeline

    if tiny:
        from peft import LoraConfig

        from tokenmerge.runtime.tiny_random import build_tiny_random

        base = build_tiny_random()
        control = ControlNetModel.from_unet(base.unet, controlnet_conditioning_channel_order="rgb")
        pipe = StableDiffusionControlNetPipeline(**base.components, controlnet=control)
        pipe.unet.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_v"]))
        return pipe, {"num_inference_steps": 4}
    control = ControlNetModel.from_pretrained("lllyasviel/control_v11p_sd15_canny", torch_dtype=torch.float16)
    pipe = StableDiffusionControlNetPipeline.from_pretrained(
        "stable-diffusion-v1-5/stable-diffusion-v1-5", controlnet=control, torch_dtype=torch.float16
    ).to("cuda")
    return pipe, {"num_inference_steps": 30}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="red apple")
    parser.add_argument("--control", help="the image that steers the ControlNet (default: plain grey)")
    parser.add_argument("--lora", help="a folder or hub id of LoRA weights")
    parser.add_argument("--out", default="controlled.png")
    parser.add_argument("--tiny", action="store_true", help="a tiny random model and ControlNet, on a CPU")
    args = parser.parse_args(arguments)

    pipe, options = load(args.tiny)
    if args.lora:
        pipe.load_lora_weights(args.lora)
    side = 256 if args.tiny else 512
    control = Image.open(args.control).convert("RGB") if args.control else Image.new("RGB", (side, side), "grey")
    with tm.merged(pipe, tm.TileMean()) as handle:
        pipe(args.prompt, image=control.resize((side, side)), **options).images[0].save(args.out)
        print(handle.explain())


if __name__ == "__main__":
    main()
