"""`tokenmerge doctor`: what is installed, on what it would run, and whether a small image comes out right."""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING, Any

from tokenmerge.cli import options
from tokenmerge.report.terminal import WIDTH
from tokenmerge.runtime.machine import version_of

if TYPE_CHECKING:
    import torch

# What each extra is for. `dev` and `docs` are for people who change tokenmerge.
EXTRAS = {
    "web": "tokenmerge serve",
    "eval": "tokenmerge eval",
    "bench": "plots of tokenmerge bench",
    "peers": "caches and ToMeSD to compare with",
    "ray": "tokenmerge eval on several machines",
    "triton": "fused kernels on a GPU",
}
INDENT = 13
TEST_SIZE, TEST_STEPS = (256, 256), 4


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="check the installation: versions, device, what is missing, a small test",
        description="Show versions, the device, which optional packages are missing, and run a test of about ten "
        "seconds: one small image unmerged, merged, and unmerged again. Paste its output into bug reports.",
        formatter_class=options.HelpFormatter,
    )
    parser.add_argument("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 or mps (default: the best there is)")
    parser.add_argument("--no-test", action="store_true", help="show what is installed, and generate nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def run(args: argparse.Namespace) -> int:
    from tokenmerge.runtime.devices import pick_device, pick_dtype

    device = pick_device(args.device)
    found = {**installed(device), "dtype": str(pick_dtype(None, device)).removeprefix("torch.")}
    if not args.json:
        print(as_text(found), flush=True)
    if not args.no_test:
        print("testing, about ten seconds ...", file=sys.stderr)
        found["test"] = self_test(args.device)
        if not args.json:
            print(f"{'self-test'.ljust(INDENT)}{found['test']['result']}")
    if args.json:
        print(json.dumps(found, indent=2))
    return 0 if args.no_test or found["test"]["passed"] else 1


def installed(device: torch.device) -> dict[str, Any]:
    """The machine, versions, embedded models, and the packages that each extra lacks, as plain JSON values."""
    from tokenmerge.runtime.machine import describe_machine
    from tokenmerge.zoo import list_models

    return {
        "machine": describe_machine(device),
        "device": str(device),
        "models": list_models(),
        "missing": {extra: _missing(extra) for extra in EXTRAS},
    }


def as_text(found: dict[str, Any]) -> str:
    """What was found, in lines of at most 100 characters."""
    machine = found["machine"]
    versions = ", ".join(f"{name} {version or 'missing'}" for name, version in machine["versions"].items())
    threads = machine["threads"]
    memory = "" if machine["memory_bytes"] is None else f", {machine['memory_bytes'] / 2**30:.0f} GB of memory"
    lines = [
        ("versions", f"Python {machine['python']}, {versions}"),
        ("system", f"{machine['system']}, {machine['cpu']}, {threads} thread{'' if threads == 1 else 's'}{memory}"),
        ("device", f"{machine['accelerator'] or found['device']} in {found['dtype']}"),
        ("models", ", ".join(found["models"]) or "none: install the wheel, which holds them"),
        *((f"[{extra}]", _about(extra, missing)) for extra, missing in found["missing"].items()),
    ]
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=name.ljust(INDENT), subsequent_indent=" " * INDENT)
        for name, text in lines
    )


def self_test(device: str | None) -> dict[str, Any]:
    """Generates one image unmerged, merged, and unmerged again: the first and the last must be equal."""
    from tokenmerge.api import merged
    from tokenmerge.runtime.fidelity import fidelity
    from tokenmerge.runtime.generation import ImageRequest
    from tokenmerge.runtime.pipelines import load_pipeline

    loaded = load_pipeline(None, device)
    request = ImageRequest(prompt="red apple", seed=0, steps=TEST_STEPS, size=TEST_SIZE)
    before, _ = loaded.generate(request)
    with merged(loaded.pipe):
        during, _ = loaded.generate(request)
    after, _ = loaded.generate(request)
    close = fidelity(before, during)
    problems = []
    if close.identical:
        problems.append("merging changed nothing")
    if fidelity(before, after).psnr is not None:
        problems.append("removing left something behind")
    verdict = "; ".join(problems) or "passed: merged, and removed without a trace"
    return {
        "passed": not problems,
        "result": f"{verdict} ({loaded.name}, {TEST_STEPS} steps)",
        "psnr": close.psnr,
    }


def _missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed, by the package's own metadata."""
    try:
        wanted = requires("tokenmerge") or []
    except PackageNotFoundError:
        return []
    ours = [line for line in wanted if re.search(rf"""extra\s*==\s*["']{extra}["']""", line)]
    names = [re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0] for line in ours]
    return [name for name in names if version_of(name) is None]


def _about(extra: str, missing: list[str]) -> str:
    if not missing:
        return f"installed, for {EXTRAS[extra]}"
    return f"lacks {', '.join(missing)}, for {EXTRAS[extra]}: pip install 'tokenmerge[{extra}]'"
