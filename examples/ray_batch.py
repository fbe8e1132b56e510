"""A batch of prompts on Ray: each worker loads the model once, merges it once, and takes prompts from one queue."""

import argparse
import json
from pathlib import Path


class Worker:
    """One model on one GPU, or on one core."""

    def __init__(self, tiny: bool, preset: str) -> None:
        import torch

        import tokenmerge as tm

        if tiny:
            from tokenmerge import zoo

            torch.set_num_threads(1)
            self.pipe, self.options = zoo.load("emoji-sd"), {"num_inference_steps": 4}
        else:
            from diffusers import StableDiffusionXLPipeline

            self.pipe = StableDiffusionXLPipeline.from_pretrained(
                "stabilityai/stable-diffusion-xl-base-1.0", torch_dtype=torch.float16, variant="fp16"
            ).to("cuda")
            self.options = {"num_inference_steps": 30}
        self.handle = tm.apply(self.pipe, preset)

    def generate(self, number: int, prompt: str, folder: str) -> str:
        import torch

        generator = torch.Generator().manual_seed(number)  # the same image whichever worker generates it
        file = Path(folder) / f"{number:04}.png"
        self.pipe(prompt, generator=generator, **self.options).images[0].save(file)
        return str(file)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="*", default=["red apple", "red heart", "cat face"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--preset", default="balanced", choices=["quality", "balanced", "fast"])
    parser.add_argument("--out", default="batch")
    parser.add_argument("--tiny", action="store_true", help="the embedded emoji-sd, on CPUs")
    args = parser.parse_args(arguments)

    import ray
    from ray.util import ActorPool

    folder = Path(args.out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    ray.init(include_dashboard=False, ignore_reinit_error=True)
    needs = {"num_cpus": 1} if args.tiny else {"num_gpus": 1}
    worker = ray.remote(**needs)(Worker)
    pool = ActorPool([worker.remote(args.tiny, args.preset) for _ in range(args.workers)])
    tasks = [(number, prompt) for number, prompt in enumerate(args.prompts)]
    files = list(pool.map(lambda actor, task: actor.generate.remote(*task, str(folder)), tasks))
    (folder / "prompts.json").write_text(json.dumps(dict(zip(files, args.prompts, strict=True)), indent=1))
    print(f"{len(files)} images in {folder}")
    ray.shutdown()


if __name__ == "__main__":
    main()
