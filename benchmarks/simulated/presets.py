"""Simulates the presets on GPUs; `python benchmarks/simulated/presets.py` writes presets.json and prints its tables.

Steps that are skipped launch next to nothing, so tile means are simulated with and without them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenmerge import TileMean
from tokenmerge.cli.predict import table
from tokenmerge.config.base import MergeConfig
from tokenmerge.models.published import build
from tokenmerge.presets import NAMES, preset
from tokenmerge.simulate.devices import read_devices
from tokenmerge.simulate.predict import default_batch, fewer_steps, merged, predict, subject_for, unmerged

GENERATIONS = (("sdxl", 1024, 50), ("flux", 1024, 28))
DEVICES = ("RTX4090", "RTX6000Ada", "A100", "H100")
OUT = Path(__file__).parent / "presets.json"


def simulated(name: str, size: int, steps: int) -> dict[str, Any]:
    model = build(name)
    subject = subject_for(model, (size, size), default_batch(model))
    configs: dict[str, MergeConfig] = {
        "TileMean()": TileMean(),
        "TileMean(step_speedup=2)": TileMean(step_speedup=2),
        **{f"preset {each}": preset(each, model) for each in NAMES},
    }
    base = unmerged(subject, steps)
    rows = [base, fewer_steps(base, 0.5), *(merged(subject, config, steps, row) for row, config in configs.items())]
    known = read_devices()
    predictions = predict(rows, {each: known[each] for each in DEVICES})
    print(f"\n{name}, {size} px, {steps} steps: eager / CUDA graphs. SIMULATED\n\n{table(predictions)}", flush=True)
    presets = {each: repr(preset(each, model)) for each in NAMES}
    setting = {"model": name, "size": size, "steps": steps, "batch": subject.batch, "dtype": "bfloat16"}
    return {**setting, "presets": presets, "predictions": [each.to_dict() for each in predictions]}


def main() -> None:
    found = [simulated(*generation) for generation in GENERATIONS]
    OUT.write_text(json.dumps({"simulated": True, "generations": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
