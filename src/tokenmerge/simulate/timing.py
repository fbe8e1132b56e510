"""How long recorded kernels take on a device: pure arithmetic, nothing measured.

A kernel takes as long as its products or its memory traffic, whichever is longer. In eager PyTorch the host issues one
kernel after the other, and a fast device waits for it; in a CUDA graph it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tokenmerge.simulate.devices import Device
from tokenmerge.simulate.recording import Kernel, Work

HOST_SECONDS = 30e-6  # Python and dispatch for each kernel of a diffusers model
LEAST_SECONDS = 2e-6  # a kernel that does next to nothing
TILE = 128 * 128  # outputs of a product that one multiprocessor computes at a time
LEAST_FILL = 0.15  # small products are split along what they sum over
MEMORY_SHARE = 0.8  # of the bandwidth that copies reach
CACHE_GAIN = 3.0  # faster than memory, if everything a kernel touches fits into the cache
# Of what large products reach.
REACHED = {Work.ATTENTION: 0.8, Work.MASKED_ATTENTION: 0.5, Work.PRODUCT: 1.0}
CONVOLUTION = 0.65  # in the channels-first layout that diffusers uses


def kernel_seconds(kernel: Kernel, device: Device) -> float:
    """Seconds of one kernel on the device itself."""
    gain = CACHE_GAIN if kernel.bytes < device.cache * 1e6 else 1.0
    moving = kernel.bytes / (device.bandwidth * 1e9 * MEMORY_SHARE * gain)
    return max(moving, _computing(kernel, device)) + LEAST_SECONDS


def device_seconds(kernels: Sequence[Kernel], device: Device) -> float:
    """Seconds if the host never lets the device wait, as with CUDA graphs."""
    return sum(kernel_seconds(kernel, device) for kernel in kernels)


def eager_seconds(kernels: Sequence[Kernel], device: Device, host_seconds: float = HOST_SECONDS) -> float:
    """Seconds if the host issues each kernel, and the device starts it when it is both issued and its turn."""
    issued = done = 0.0
    for kernel in kernels:
        issued += host_seconds
        done = max(issued, done) + kernel_seconds(kernel, device)
    return done


def _computing(kernel: Kernel, device: Device) -> float:
    if not kernel.flops:
        return 0.0
    reached = REACHED[kernel.work] * kernel.used * (CONVOLUTION if kernel.name == "convolution" else 1.0)
    peak = device.tflops * 1e12 * device.sustained
    return kernel.flops / (peak * reached * _fill(kernel.outputs, device.multiprocessors))


def _fill(outputs: int, multiprocessors: int) -> float:
    """The share of multiprocessors that a product keeps busy: the last round of tiles is rarely full."""
    tiles = math.ceil(outputs / TILE)
    rounds = math.ceil(tiles / multiprocessors)
    return max(tiles / (rounds * multiprocessors), LEAST_FILL)
