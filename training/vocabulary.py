"""The words of the captions: how a caption may be phrased, and a CLIP tokenizer that knows each word as one token."""

from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTokenizer

TEXT_LENGTH = 16
TEMPLATES = ("{}", "a {}", "{} emoji", "an emoji of a {}", "a 3d picture of the {}", "an {} on white")


def phrasings(caption: str) -> list[str]:
    """What a user may type for one image: the caption, the caption in a sentence, the caption short of a word."""
    words = caption.split()
    shorter = [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))] if len(words) > 1 else []
    return [template.format(caption) for template in TEMPLATES] + shorter


def build_tokenizer(texts: list[str]) -> CLIPTokenizer:
    """A byte-pair tokenizer trained until every word of the texts is one token; other words fall into pieces."""
    untrained = CLIPTokenizer()
    start, end = untrained.bos_token, untrained.eos_token
    trainer = trainers.BpeTrainer(
        vocab_size=100_000,  # more than there are merges: training ends when every word is whole
        special_tokens=[start, end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    backend = Tokenizer(models.BPE(unk_token=end, end_of_word_suffix="</w>"))
    backend.normalizer = untrained.backend_tokenizer.normalizer
    backend.pre_tokenizer = untrained.backend_tokenizer.pre_tokenizer
    backend.train_from_iterator(texts, trainer)
    return _as_clip(backend)


def _as_clip(backend: Tokenizer) -> CLIPTokenizer:
    """The trained byte-pair model in the class the pipelines expect."""
    import json

    model = json.loads(backend.to_str())["model"]
    vocabulary = dict(model["vocab"])
    # A character that ends an unknown word needs its own token, or the word would vanish.
    for character in pre_tokenizers.ByteLevel.alphabet():
        vocabulary.setdefault(character + "</w>", len(vocabulary))
    merges = [tuple(merge) for merge in model["merges"]]
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=TEXT_LENGTH)
