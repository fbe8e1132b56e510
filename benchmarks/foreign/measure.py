"""Presets and plain methods on trained models that were made by others (docs/quality.md).

    python benchmarks/foreign/measure.py terrain benchmarks/foreign/terrain.json

Nothing is downloaded. The module of the model says which package to install.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import tokenmerge as tm
from tokenmerge.eval import evaluate_model

VARIANTS = (
    "quality",
    "balanced",
    "fast",
    tm.ToMA(ratio=0.5),
    tm.ToMA.paper_tile(0.5),
    tm.TileMean(),
    tm.ToMeSD(ratio=0.5),
)


def rows_of(results: dict[str, Any]) -> list[dict[str, Any]]:
    """PSNR to the unmerged sample, with a 95 % interval, and how many times fewer multiply-adds were executed."""
    rows = []
    for variant in results["variants"][1:]:  # the first is the unmerged model
        row = {key: variant[key] for key in ("name", "ratio", "setting")}
        row |= {"fewer_multiply_adds": round(variant["saved"], 3)}
        rows.append(row | {key: round(variant["metrics"]["psnr"][key], 2) for key in ("value", "low", "high")})
    return rows


def main(name: str, path: str) -> None:
    module: Any = importlib.import_module(name)
    model = module.load()
    tm.register_family(module.FAMILY)
    found: dict[str, Any] = {"package": f"{module.PACKAGE} {module.VERSION}", "steps": {}}
    for steps in module.STEPS:
        results = evaluate_model(
            model,
            partial(module.sample, model),
            (*VARIANTS, *module.ALSO),
            steps=steps,
            prompts=module.PROMPTS,
            seeds=module.SEEDS,
            fewer_steps=(0.8, 0.65, 0.5, 0.4, 0.33),
            metrics=("psnr",),
        )
        print(results, flush=True)
        plain = json.loads(results.to_json())
        found |= {key: plain[key] for key in ("pairs", "workers", "versions")}
        found["steps"][str(steps)] = rows_of(plain)
        Path(path).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
