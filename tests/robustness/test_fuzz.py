"""Whatever is asked for, on whatever model and size: a clear error or a sound image, and the model comes back.

500 cases by default, of which `make test` runs 125 and `make fuzz` 20,000. A shard that fails prints its case and
is the same each time it is run.
"""

from __future__ import annotations

import dataclasses
import os

import pytest
from fuzzing import METHODS, OPTIONS, Case, Outcomes, beyond_the_region, cases, check, first_ones, not_whole
from hypothesis import HealthCheck, Phase, given, seed, settings

SHARD = 125  # cases
# A shard that only ever refuses would be no test. Hypothesis draws in clusters: of 160 shards most merged 34 cases, the
# poorest 13.
FEWEST_MERGED = SHARD // 16
CASES = int(os.environ.get("TOKENMERGE_FUZZ_CASES", "500"))
FIRST = int(os.environ.get("TOKENMERGE_FUZZ_FIRST", "0"))


SHARDS = range(FIRST // SHARD, -(-CASES // SHARD))


@pytest.mark.parametrize(
    "shard", [pytest.param(shard, id=f"shard-{shard}", marks=pytest.mark.long if shard else ()) for shard in SHARDS]
)
def test_a_clear_error_or_a_sound_image(shard: int) -> None:
    outcomes = Outcomes()

    @seed(shard)
    @settings(
        max_examples=SHARD,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(case=cases())
    def holds(case: Case) -> None:
        outcomes.counts[check(case)] += 1

    holds()
    print(f"shard {shard}: {outcomes}")
    assert outcomes.merged > FEWEST_MERGED, str(outcomes)


FOUND = [
    (Case("ToMeSD", {"min_tokens": 4, "skip_blocks": ()}, "wan", (8, 8), 1), "merged"),
    (Case("ToMA", {"min_tokens": 4, "selector": first_ones}, "sd15", (8, 8), 1, explained=True), "merged"),
    (Case("ToMA", {"min_tokens": 4, "selector": not_whole}, "sdxl", (8, 8), 1), "refused by a call"),
    (Case("ToMA", {"min_tokens": 4, "selector": beyond_the_region}, "sd15", (8, 8), 1), "refused by a call"),
]


@pytest.mark.parametrize(("case", "outcome"), FOUND, ids=range(len(FOUND)))
def test_what_once_crashed(case: Case, outcome: str) -> None:
    assert check(case) == outcome


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.__name__)
def test_every_option_takes_part(method: type) -> None:
    missing = [field.name for field in dataclasses.fields(method) if field.name not in OPTIONS]
    assert not missing, f"add values for {missing} to OPTIONS in fuzzing.py"
