"""Our ToMeSD gives what the package `tomesd` gives, on the same UNet."""

import pytest
import tomesd
import torch

import tokenmerge as tm

FLAGS = {"self": "merge_attn", "cross": "merge_crossattn", "mlp": "merge_mlp"}
CASES = [
    # ratio, sx, sy, parts, max_downsample, (height, width)
    (0.5, 2, 2, ("self",), 1, (16, 16)),
    (0.1, 2, 2, ("self",), 1, (16, 16)),
    (0.75, 2, 2, ("self",), 1, (16, 16)),
    (0.5, 2, 2, ("self", "cross"), 1, (16, 24)),
    (0.5, 2, 2, ("self", "mlp"), 1, (16, 24)),
    (0.3, 2, 2, ("cross", "mlp"), 2, (24, 16)),
    (0.6, 2, 2, ("self", "cross", "mlp"), 4, (16, 16)),
    (0.4, 1, 2, ("self",), 1, (16, 16)),
    (0.4, 2, 1, ("self",), 2, (16, 16)),
    (0.8, 3, 3, ("self",), 2, (24, 12)),
    (0.8, 3, 3, ("self",), 2, (16, 20)),  # cells that do not divide the grid
    (0.5, 5, 3, ("self", "cross", "mlp"), 2, (20, 28)),
]


@pytest.mark.parametrize(("ratio", "sx", "sy", "parts", "max_downsample", "size"), CASES)
def test_same_output_as_the_package(tiny_unet, denoise, ratio, sx, sy, parts, max_downsample, size):
    plain = denoise(*size)
    flags = {flag: part in parts for part, flag in FLAGS.items()}
    tomesd.apply_patch(tiny_unet, ratio=ratio, sx=sx, sy=sy, use_rand=False, max_downsample=max_downsample, **flags)
    try:
        theirs = denoise(*size)
    finally:
        tomesd.remove_patch(tiny_unet)
    config = tm.ToMeSD(
        ratio=ratio, sx=sx, sy=sy, use_rand=False, max_downsample=max_downsample, parts=parts, min_tokens=0
    )
    with tm.merged(tiny_unet, config):
        ours = denoise(*size)
    assert (theirs - plain).abs().max() > 1e-3, "the package did not merge, so this would compare nothing"
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert torch.equal(denoise(*size), plain)
