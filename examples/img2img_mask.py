"""Image to image, with a mask: white is never merged, so that it stays as sharp as without merging."""

import argparse

import torch
from PIL import Image, ImageDraw

import tokenmerge as tm


def load(tiny: bool):
    from diffusers import AutoPipelineForImage2Image

    if tiny:
        from tokenmerge import zoo

        return AutoPipelineForImage2Image.from_pipe(zoo.load("emoji-sd")), {"num_inference_steps": 8}
    pipe = AutoPipelineForImage2Image.from_pretrained(
        "stabilityai/stable-diffusion-xl-base-1.0", torch_dtype=torch.float16, variant="fp16"
    )
    return pipe.to("cuda"), {"num_inference_steps": 30}


def middle_of(size: tuple[int, int]) -> Image.Image:
    """A mask with a white square in the middle."""
    mask = Image.new("L", size)
    width, height = size
    ImageDraw.Draw(mask).rectangle([width // 4, height // 4, width * 3 // 4, height * 3 // 4], fill=255)
    return mask


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default="red apple")
    parser.add_argument("--image", help="the image to start from (default: plain red)")
    parser.add_argument("--mask", help="white where nothing is merged (default: the middle)")
    parser.add_argument("--out", default="img2img.png")
    parser.add_argument("--tiny", action="store_true", help="the embedded emoji-sd, on a CPU")
    args = parser.parse_args(arguments)

    image = Image.open(args.image).convert("RGB") if args.image else Image.new("RGB", (256, 256), "firebrick")
    mask = Image.open(args.mask).convert("L") if args.mask else middle_of(image.size)
    pipe, options = load(args.tiny)
    with tm.merged(pipe, tm.TileMean(), keep=mask) as handle:
        pipe(args.prompt, image=image, strength=0.75, **options).images[0].save(args.out)
        print(handle.explain())


if __name__ == "__main__":
    main()
