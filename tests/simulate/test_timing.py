"""Predicted seconds against closed forms."""

from __future__ import annotations

import pytest

from tokenmerge.simulate.devices import Device
from tokenmerge.simulate.recording import Kernel, Work
from tokenmerge.simulate.timing import (
    LEAST_SECONDS,
    MEMORY_SHARE,
    REACHED,
    TILE,
    device_seconds,
    eager_seconds,
    kernel_seconds,
)

DEVICE = Device("X", "X", tflops=100.0, bandwidth=1000.0, multiprocessors=10, cache=1.0, sustained=0.5, source="none")


def test_a_large_product_runs_at_what_the_device_sustains() -> None:
    full = Kernel("mm", Work.PRODUCT, flops=10**13, bytes=0, outputs=100 * TILE)
    assert kernel_seconds(full, DEVICE) == pytest.approx(10**13 / 50e12 + LEAST_SECONDS)


def test_a_product_with_a_partly_filled_last_round_takes_longer() -> None:
    full, more = (Kernel("mm", Work.PRODUCT, 10**12, 0, tiles * TILE) for tiles in (10, 11))
    assert kernel_seconds(more, DEVICE) > 1.5 * kernel_seconds(full, DEVICE)


def test_memory_bounds_what_computes_nothing_and_a_cache_helps() -> None:
    large, small = Kernel("add", Work.MEMORY, 0, 10**9), Kernel("add", Work.MEMORY, 0, 10**5)
    assert kernel_seconds(large, DEVICE) == pytest.approx(10**9 / (1e12 * MEMORY_SHARE) + LEAST_SECONDS)
    assert kernel_seconds(small, DEVICE) - LEAST_SECONDS < 10**5 / 1e12


def test_a_mask_slows_attention_down() -> None:
    plain, masked = (
        Kernel("attention", work, 10**12, 0, 100 * TILE) for work in (Work.ATTENTION, Work.MASKED_ATTENTION)
    )
    slower = (kernel_seconds(masked, DEVICE) - LEAST_SECONDS) / (kernel_seconds(plain, DEVICE) - LEAST_SECONDS)
    assert slower == pytest.approx(REACHED[Work.ATTENTION] / REACHED[Work.MASKED_ATTENTION])


def test_channels_of_zeros_take_time() -> None:
    plain, filled_up = (Kernel("attention", Work.ATTENTION, 10**12, 0, 100 * TILE, used=used) for used in (1, 0.75))
    slower = (kernel_seconds(filled_up, DEVICE) - LEAST_SECONDS) / (kernel_seconds(plain, DEVICE) - LEAST_SECONDS)
    assert slower == pytest.approx(1 / 0.75)


def test_the_host_bounds_many_small_kernels_and_graphs_do_without_it() -> None:
    small = [Kernel("add", Work.MEMORY, 0, 1)] * 100
    host = 10 * LEAST_SECONDS
    assert eager_seconds(small, DEVICE, host) == pytest.approx(100 * host + kernel_seconds(small[0], DEVICE))
    assert device_seconds(small, DEVICE) == pytest.approx(100 * kernel_seconds(small[0], DEVICE))


def test_a_slow_device_hides_the_host() -> None:
    large = [Kernel("add", Work.MEMORY, 0, 10**9)] * 10
    host = LEAST_SECONDS
    assert eager_seconds(large, DEVICE, host) == pytest.approx(host + device_seconds(large, DEVICE))
