"""Plots the loss curve of a model from its training log.

python -m training.curve emoji-sd --work DIR curve.png
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from training.data import work_parser
from training.recipes import RECIPES

SMOOTHING = 10  # log lines


def main() -> None:
    parser = work_parser("Plots the loss curve.")
    parser.add_argument("model", choices=list(RECIPES))
    parser.add_argument("output", type=Path, help="image to write")
    args = parser.parse_args()
    lines = [json.loads(line) for line in (args.work / f"{args.model}.jsonl").read_text().splitlines()]
    figure, axes = plt.subplots(figsize=(8, 4))
    for size in dict.fromkeys(line["size"] for line in lines):
        chosen = [line for line in lines if line["size"] == size]
        losses = [line["loss"] for line in chosen]
        smooth = [sum(part) / len(part) for i in range(len(losses)) if (part := losses[max(0, i - SMOOTHING) : i + 1])]
        axes.plot([line["samples"] for line in chosen], smooth, label=f"{size} px")
    axes.set(xlabel="samples", ylabel="velocity error", title=args.model)
    axes.legend()
    figure.tight_layout()
    figure.savefig(args.output)


if __name__ == "__main__":
    main()
