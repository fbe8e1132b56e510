import pytest
import torch

from tokenmerge import ToMA
from tokenmerge.bench.ops import VARIANTS, operation_trials, toma_operations, tomesd_operations
from tokenmerge.errors import UsageError

CPU = torch.device("cpu")


def test_every_method_is_timed_at_every_size_and_ratio() -> None:
    trials = operation_trials([256], [8, 16], [0.5, 0.75], 1, CPU, torch.float32)
    assert len(trials) == 2 * 2 * (1 + len(VARIANTS))
    for trial in trials[: 1 + len(VARIANTS)]:
        trial.visit()
        names = {"select", "merge", "unmerge"} if trial.measurement.method == "tomesd-package" else None
        assert trial.measurement.repeats == 1
        assert names is None or set(trial.measurement.times) == names


@pytest.mark.parametrize("name", VARIANTS)
def test_operations_of_toma_shorten_and_lengthen(name: str) -> None:
    operations = toma_operations(torch.randn(2, 256, 8), VARIANTS[name](0.5))
    merged, unmerged = operations["merge"](), operations["unmerge"]()
    assert isinstance(merged, torch.Tensor)
    assert isinstance(unmerged, torch.Tensor)
    assert merged.shape == (2, 128, 8)
    assert unmerged.shape == (2, 256, 8)
    # Stripes are in order as they come; tiles have to be brought into it.
    assert ("reorder" in operations) == (VARIANTS[name](0.5).region == "tile")


def test_weights_alone_keep_the_destinations() -> None:
    from tokenmerge.config.interfaces import Operators

    operations = toma_operations(torch.randn(2, 256, 8), ToMA())
    selected, weighted = operations["select"](), operations["weights"]()
    assert isinstance(selected, Operators)
    assert isinstance(weighted, Operators)
    assert selected.selected is not None
    assert weighted.selected is not None
    assert torch.equal(selected.selected, weighted.selected)


def test_operations_of_the_package_shorten_as_much() -> None:
    operations = tomesd_operations(torch.randn(2, 256, 8), 0.5)
    merged, unmerged = operations["merge"](), operations["unmerge"]()
    assert isinstance(merged, torch.Tensor)
    assert isinstance(unmerged, torch.Tensor)
    assert merged.shape == (2, 128, 8)
    assert unmerged.shape == (2, 256, 8)


def test_tokens_that_make_no_square_are_a_sentence() -> None:
    with pytest.raises(UsageError, match="1000, which is not a square"):
        operation_trials([1000], [8], [0.5], 1, CPU, torch.float32)
