"""Every method computes on every tiny model what the golden record says, to the last bit.

A change that is meant to change results is recorded with `python tests/golden/record.py`, whose list of rows belongs
into the commit message.
"""

from __future__ import annotations

import copy

import pytest
from compute import GROUPS, UNMODIFIED, compute, differences, read_record

RECORDED = read_record()


def of(group: str) -> dict[str, dict[str, object]]:
    return {name: row for name, row in RECORDED.items() if name.startswith(f"{group}/")}


# One of each way through the engine. `make test-all` computes the others too.
QUICK = ("sd15", "pixart", "pixart-odd", "flux", "sd3", "sana", "wan", "graphs-flux", "photo-flux")


@pytest.mark.parametrize(
    "group", [pytest.param(group, marks=() if group in QUICK else pytest.mark.long) for group in GROUPS]
)
def test_rows_are_as_recorded(group: str) -> None:
    differing = differences(of(group), compute(group))
    assert not differing, f"{len(differing)} rows differ from the golden record:\n" + "\n".join(differing)


def test_no_row_is_recorded_of_what_is_no_longer_computed() -> None:
    assert {name.rpartition("/")[0] for name in RECORDED} == set(GROUPS)


def test_one_bit_is_a_difference_where_the_unmodified_model_is_bit_equal() -> None:
    recorded, computed = of("flux"), copy.deepcopy(of("flux"))
    assert differences(recorded, computed) == []
    computed["flux/paper"]["sha256"] = "0"
    del computed["flux/fast"]
    assert [line.partition(":")[0] for line in differences(recorded, computed)] == ["flux/paper", "flux/fast"]


def test_on_other_machines_values_are_compared_within_a_tolerance() -> None:
    recorded, computed = of("flux"), copy.deepcopy(of("flux"))
    for row in computed.values():
        row["sha256"] = "0"
        row["samples"] = [1.0001 * value for value in row["samples"]]  # type: ignore[attr-defined]
    assert differences(recorded, computed) == []
    computed[f"flux/{UNMODIFIED}"]["multiply_adds"] = 0
    computed["flux/paper"]["samples"] = [1.1 * value for value in computed["flux/paper"]["samples"]]  # type: ignore[attr-defined]
    names = [line.partition(":")[0] for line in differences(recorded, computed)]
    assert names == [f"flux/{UNMODIFIED}", "flux/paper"]
