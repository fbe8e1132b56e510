"""Published configurations of video models."""

from __future__ import annotations

from tokenmerge.models.architecture import Architecture

VIDEO_MODELS: dict[str, Architecture] = {}
