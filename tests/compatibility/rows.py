"""Every row of the table, in its order."""

from __future__ import annotations

import with_attention
import with_caches
import with_control
import with_copies
import with_interruption
import with_lora
import with_offload
import with_pipelines
import with_precision
import with_schedulers
import with_sharing
import with_training
from row import Row

FEATURES = (
    with_lora,
    with_control,
    with_pipelines,
    with_schedulers,
    with_attention,
    with_offload,
    with_caches,
    with_precision,
    with_copies,
    with_training,
    with_sharing,
    with_interruption,
)
ROWS: list[Row] = [row for feature in FEATURES for row in feature.ROWS]
