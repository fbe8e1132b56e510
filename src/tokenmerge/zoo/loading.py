"""Loads an embedded model as an ordinary diffusers pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmerge.zoo.folders import GUIDANCE, few_steps_name, folder_of, known_words, lora_of, verify

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

NATIVE_SIZE = 256


def load(name: str = "emoji-sd", steps: int | None = None) -> DiffusionPipeline:
    """The embedded model `name` ("emoji-sd" or "photo-flux") in float32, ready to run.

    Its images are 256 x 256 unless asked otherwise; 512 x 512 works too. A prompt with words the model has
    never seen gives an `UnknownWordWarning` that lists near known ones.

        pipe = tokenmerge.zoo.load("emoji-sd")
        image = pipe("red heart", num_inference_steps=20).images[0]

    With `steps`, a model that was trained for so few; "emoji-sd" has one for 4, which is also named "emoji-sd-4".
    It runs one pass a step and has its guidance built in.

        pipe = tokenmerge.zoo.load("emoji-sd", steps=4)
        image = pipe("red heart", num_inference_steps=4).images[0]
    """
    name = name if steps is None else few_steps_name(name, steps)
    return load_folder(folder_of(name), lora_of(name))


def load_folder(folder: Path, lora: Path | None = None) -> DiffusionPipeline:
    """Check the files of a model folder against their checksums and load it, with a LoRA for few steps if given."""
    verify(folder)

    # Imported here, because diffusers takes seconds and `import tokenmerge.zoo` should take none.
    import torch

    from tokenmerge.zoo.few_steps import make_few_steps
    from tokenmerge.zoo.prompts import trim_padding, warn_of_unknown_words

    with _quiet():
        from diffusers import DiffusionPipeline, FluxPipeline

        pipe = DiffusionPipeline.from_pretrained(folder, local_files_only=True).to(torch.float32)
    if isinstance(pipe, FluxPipeline):
        # Flux would generate 1,024 px and pad prompts to 512 tokens, both far beyond what this model was trained on.
        pipe.default_sample_size = NATIVE_SIZE // pipe.vae_scale_factor
        trim_padding(pipe.text_encoder_2, pipe.tokenizer.model_max_length)
    if lora is not None:
        make_few_steps(pipe, lora)
    # For tokenmerge's commands; a pipeline's call has its default in its code.
    pipe.suggested_guidance = GUIDANCE if lora is None else 1.0
    warn_of_unknown_words(pipe, known_words(folder))
    pipe.set_progress_bar_config(disable=None)  # shown on a terminal only
    return pipe


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and remarks of a load that is over in a second.

    Among them: that our autoencoder is not a KL one, and that image processors, which no model here uses, would like
    torchvision.
    """
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    libraries = (diffusers_logging, transformers_logging)
    before = [(library.get_verbosity(), library.is_progress_bar_enabled()) for library in libraries]
    for library in libraries:
        library.set_verbosity_error()
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library, (verbosity, bars) in zip(libraries, before, strict=True):
            library.set_verbosity(verbosity)
            if bars:
                library.enable_progress_bar()
