"""tables.md: the results as tables that a paper could print."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tabulate import tabulate

from tokenmerge.eval.columns import COLUMNS, Column, shown_estimate
from tokenmerge.eval.front_cells import cells_of
from tokenmerge.eval.front_table import front_text
from tokenmerge.eval.results import Results, VariantResult
from tokenmerge.eval.statistics import Estimate

UNAVAILABLE = "n/a"
SAVES_NOTHING = 1.005  # times fewer multiply-adds; below, a row is pointed out


def tables_of(results: Results) -> str:
    """All tables as Markdown."""
    parts = [f"# {_cell(results.experiment)}", _cell(results.description), _conditions(results), _time_table(results)]
    parts += [_metric_table(results)]
    parts += [_difference_table(results, "to_reference", "at the same ratio")]
    parts += [_difference_table(results, "to_reference_as_fast", "at equal speed")]
    parts += [_by_ratio(results), _front(results), _notes(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def columns_shown(results: Results) -> list[Column]:
    """Metrics that were asked for: those measured, then those missing, each with its reason."""
    measured = {name for variant in results.variants for name in variant.metrics}
    missing = [column for column in COLUMNS if column.metric in results.unavailable]
    return [column for column in COLUMNS if column.metric in measured] + missing


def _conditions(results: Results) -> str:
    cut = (
        f" {results.cut_prompts} prompts were cut at a comma to what the tokenizer reads."
        if results.cut_prompts
        else ""
    )
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    image = results.image
    return (
        f"Model {_cell(results.model)}; {image.width} x {image.height} px, {image.steps} steps; {results.pairs} "
        f"prompt-seed pairs per variant, the same for all.{cut} Brackets are 95 % intervals. "
        f"Made on {_cell('; '.join(results.workers))} with {versions}."
    )


def _time_table(results: Results) -> str:
    rows = [
        [
            _named(variant),
            _ratio(variant),
            f"{variant.multiply_adds / 1e9:,.1f}",
            f"{variant.saved:.2f}x",
            f"{variant.timing.best:.3f}",
            f"{variant.timing.median:.3f}",
            f"{variant.timing.mean:.3f}",
            f"{100 * variant.timing.relative:.1f}",
            shown_estimate(variant.timing.speedup, 3),
        ]
        for variant in results.variants
    ]
    heads = ["variant", "r", "multiply-adds, G", "fewer by", "best s/im", "median s/im", "mean s/im"]
    heads += ["time, % of baseline", "speed-up"]
    return "## Time\n\n" + _table(rows, heads)


def _metric_table(results: Results) -> str:
    columns = columns_shown(results)
    rows = []
    for variant in results.variants:
        cells = [_metric_cell(results, variant, column) for column in columns]
        rows.append([_named(variant), _ratio(variant), f"{variant.saved:.2f}x", *cells])
    heads = ["variant", "r", "multiply-adds fewer by", *(f"{column.title} {column.arrow}" for column in columns)]
    return "## Quality\n\n" + _table(rows, heads)


def _metric_cell(results: Results, variant: VariantResult, column: Column) -> str:
    if column.metric in results.unavailable:
        return UNAVAILABLE
    estimate = variant.metrics.get(column.metric)
    return "" if estimate is None else shown_estimate(estimate, column.digits)


def _difference_table(results: Results, partner: str, how: str) -> str:
    """Each variant against the reference, pair by pair."""
    found = [(variant, getattr(variant, partner)) for variant in results.variants]
    compared = [(variant, differences) for variant, differences in found if differences]
    if not compared:
        return ""
    columns = [column for column in COLUMNS if any(column.metric in differences for _, differences in compared)]
    rows = [
        [_named(variant), _ratio(variant), f"{variant.saved:.2f}x", shown_estimate(variant.timing.speedup, 3)]
        + [_difference_cell(differences, column) for column in columns]
        for variant, differences in compared
    ]
    heads = ["variant", "r", "multiply-adds fewer by", "speed-up", *(column.title for column in columns)]
    return f"## Paired differences to {_cell(results.reference)} {how}\n\n" + _table(rows, heads)


def _difference_cell(differences: Mapping[str, Estimate], column: Column) -> str:
    estimate = differences.get(column.metric)
    return "" if estimate is None else shown_estimate(estimate, column.digits, sign=True)


def _by_ratio(results: Results) -> str:
    """The thesis's tables: ratios down, variants across, FID and time."""
    names = list(dict.fromkeys(v.name for v in results.variants if v.ratio is not None))
    ratios = sorted({v.ratio for v in results.variants if v.ratio is not None})
    if len(ratios) < 2:
        return ""
    cells = {(v.name, v.ratio): v for v in results.variants}
    time_rows, fid_rows = [], []
    for ratio in ratios:
        found = [cells.get((name, ratio)) for name in names]
        time_rows.append([f"{ratio:g}", *("–" if v is None else _time_cell(v) for v in found)])
        fid_rows.append([f"{ratio:g}", *("–" if v is None else _fid_cell(v) for v in found)])
    heads = ["r", *map(_cell, names)]
    text = "## Time by ratio: median s/im (% of r = 0)\n\n" + _table(time_rows, heads)
    if any("fid" in v.metrics for v in results.variants):
        text = "## FID to the unmerged images by ratio\n\n" + _table(fid_rows, heads) + "\n\n" + text
    return text


def _front(results: Results) -> str:
    """Who is ahead at equal speed, if the run has methods of ours and rivals."""
    cells = cells_of(json.loads(results.to_json()))
    return f"## At equal speed\n\n{front_text(cells)}" if cells else ""


def _time_cell(variant: VariantResult) -> str:
    return f"{variant.timing.median:.3f} ({100 * variant.timing.relative:.1f})"


def _fid_cell(variant: VariantResult) -> str:
    estimate = variant.metrics.get("fid")
    return "–" if estimate is None else f"{estimate.value:.2f}"


def _notes(results: Results) -> str:
    lines = [f"- {column.title}: {column.meaning}." for column in columns_shown(results)]
    titles = {column.metric: column.title for column in COLUMNS}
    lines += [f"- {titles[name]} is {UNAVAILABLE}: {reason}." for name, reason in results.unavailable.items()]
    lines += [
        f"- {_cell(variant.label)} saved nothing: it executed as many multiply-adds as the baseline."
        for variant in results.variants[1:]
        if variant.saved < SAVES_NOTHING
    ]
    lines += [
        "- Multiply-adds are those executed in all calls of the denoiser, counted in a separate generation.",
        "- Intervals of means and speed-ups are by bootstrap over pairs; those of FID by leaving out a small "
        "share of the images at a time, because sampling images with repeats moves FID itself.",
        "- At equal speed the reference stands between two of its ratios, in proportion to the median time per image; "
        "variants faster or slower than all of them are not in that table.",
        "- FID depends on how many images there are: compare it within one table only.",
    ]
    return "## Notes\n\n" + "\n".join(lines)


def _named(variant: VariantResult) -> str:
    return _cell(f"{variant.name}, {variant.setting}" if variant.setting else variant.name)


def _ratio(variant: VariantResult) -> str:
    return "" if variant.ratio is None else f"{variant.ratio:g}"


def _cell(text: str) -> str:
    """Text that cannot break out of a Markdown table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _table(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)
