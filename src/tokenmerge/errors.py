"""Every error tokenmerge raises on purpose: one sentence that says what was wrong and what to do."""

import re
from collections.abc import Collection
from difflib import SequenceMatcher

LIKE_ENOUGH = 0.6  # of 1 for the same letters in the same order
FIRST_WORD = 0.85  # what a likeness to the first word alone counts


class TokenMergeError(Exception):
    """Base of all errors raised by tokenmerge."""


class ConfigError(TokenMergeError, ValueError):
    """A config field holds a value that is not allowed."""


class UnsupportedModelError(TokenMergeError, TypeError):
    """The object given is neither a pipeline nor a model that tokenmerge knows how to merge in."""


class UnsupportedHostError(TokenMergeError, ImportError):
    """The program that tokenmerge is used from, such as ComfyUI, lacks something that it needs."""


class AlreadyAppliedError(TokenMergeError, RuntimeError):
    """The model has been merged already; remove that first."""


class NothingMergedError(TokenMergeError, RuntimeError):
    """Not one site would merge a single token: the call would be a silent no-op."""


class NothingMergedWarning(UserWarning):
    """Every step ran full, so nothing was merged."""


class MergeRuntimeError(TokenMergeError, RuntimeError):
    """A merged model was called in a way that merging cannot follow."""


class ModelLoadError(TokenMergeError, OSError):
    """A model could not be loaded: missing, damaged or of an unsafe format."""


class WriteError(TokenMergeError, OSError):
    """A file could not be written: the disk is full, or the folder is read-only."""


class UsageError(TokenMergeError):
    """A command was given words it cannot work with."""


def hint(name: object, known: Collection[str], otherwise: str | None = None) -> str:
    """What to do about a name that is not known: the one that was probably meant, or `otherwise`, or a list of all.

    >>> hint("flx-dev", ["flux", "ltx-video"])
    'did you mean flux?'
    >>> hint("toma-tyle", ["toma", "toma-tile"])
    'did you mean toma-tile?'
    """
    near = nearest(name, known)
    return f"did you mean {near}?" if near else otherwise or f"use one of {', '.join(known)}."


def nearest(name: object, known: Collection[str]) -> str | None:
    """The known name that is written most like another, or like its first word; None if none is like it."""
    text = str(name).lower()
    first = re.split(r"[-_./ ]", text)[0]

    def likeness(other: str) -> float:
        whole, start = (SequenceMatcher(None, word, other.lower()).ratio() for word in (text, first))
        return max(whole, FIRST_WORD * start)

    best = max(known, key=likeness, default=None)
    return best if best is not None and likeness(best) >= LIKE_ENOUGH else None
