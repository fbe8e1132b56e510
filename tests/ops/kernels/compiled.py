"""Compiles every kernel for GPUs that are not here, and prints registers and spilled bytes as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from tokenmerge.ops.kernels import selection, tiles

CAPABILITIES = (80, 89, 90)
# As SDXL and Flux use them: half precision, 4 x 4 tiles; 8 x 8 tiles for the choice of destinations.
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, int]]] = {
    "tile mean": (
        tiles.mean_kernel,
        {"tokens": "*bf16", "means": "*bf16"},
        {"DEPTH": 1, "TILE_H": 4, "TILE_W": 4, "BLOCK": tiles.BLOCK},
    ),
    "unmerge, corrected": (
        tiles.unmerge_kernel,
        {"means": "*bf16", "errors": "*bf16", "weights": "*bf16", "output": "*bf16"},
        {"DEPTH": 1, "ERRORS": 2, "BLOCK": tiles.BLOCK},
    ),
    "facility location, 4 x 4": (
        selection.select_kernel,
        {"similarity": "*fp32", "available": "*i8", "selected": "*i64"},
        {"CANDIDATES": 16, "TOKENS": 16},
    ),
    "facility location, 8 x 8": (
        selection.select_kernel,
        {"similarity": "*fp32", "available": "*i8", "selected": "*i64"},
        {"CANDIDATES": 64, "TOKENS": 64},
    ),
}


def compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, int], capability: int) -> dict[str, int]:
    signature = {name: pointers.get(name, "constexpr" if name in constants else "i32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places)
    ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx)
        architecture = f"sm_{capability}{'a' if capability == 90 else ''}"
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={architecture}", str(path), "-o", f"{folder}/cubin"]
        messages = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers = re.search(r"Used (\d+) registers", messages)
    spilled = re.search(r"(\d+) bytes spill stores", messages)
    assert registers is not None, messages
    assert spilled is not None, messages
    return {"registers": int(registers[1]), "spilled": int(spilled[1])}


if __name__ == "__main__":
    table = {
        name: {f"sm_{capability}": compiled(*kernel, capability) for capability in CAPABILITIES}
        for name, kernel in KERNELS.items()
    }
    print(json.dumps(table))
