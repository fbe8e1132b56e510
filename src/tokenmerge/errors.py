"""Every error tokenmerge raises on purpose: one sentence that says what was wrong and what to do."""


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
