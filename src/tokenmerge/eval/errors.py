"""What can go wrong in an evaluation, each said in one sentence."""

from tokenmerge.errors import ConfigError, TokenMergeError


class ExperimentError(ConfigError):
    """An experiment file, or a file it names, holds something that cannot be used."""


class RunFolderError(TokenMergeError, RuntimeError):
    """A run folder is in use, is full, or belongs to another experiment."""


class MetricUnavailable(TokenMergeError, RuntimeError):
    """A metric's network cannot be had; its column says so and everything else goes on."""


class WorkerError(TokenMergeError, RuntimeError):
    """Workers of a cluster were lost too often, or could not be started."""
