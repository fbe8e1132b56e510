"""report.html: everything a run found in one file that opens without a network."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenmerge.eval.columns import COLUMNS, Column, shown, shown_estimate
from tokenmerge.eval.figures.grids import embedded
from tokenmerge.eval.metrics.measure import Measurements
from tokenmerge.eval.pairs import Pair
from tokenmerge.eval.records import Record
from tokenmerge.eval.results import Results, VariantResult
from tokenmerge.eval.statistics import Estimate
from tokenmerge.eval.tables import columns_shown
from tokenmerge.eval.variants import BASELINE, Variant

LONGEST_SIDE = 512


def report_page(results: Results, figures: Sequence[tuple[str, str]], gallery: Mapping[str, Any]) -> str:
    """The page. `figures` are (caption, svg), in the order they appear."""
    data = {
        "title": results.experiment,
        "description": results.description,
        "conditions": _conditions(results),
        "cards": _cards(results),
        "notes": _notes(results),
        **_table(results),
        **gallery,
    }
    # Inside a script element only "<" could end it: the data cannot break out.
    encoded = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    shown_figures = "".join(_figure(caption, svg) for caption, svg in figures)
    page = files("tokenmerge.eval").joinpath("report_page.html").read_text(encoding="utf-8")
    before, after_title = page.split("@TITLE@")
    until_figures, after_figures = after_title.split("@FIGURES@")
    until_data, end = after_figures.split("@DATA@")
    return "".join([before, html.escape(results.experiment), until_figures, shown_figures, until_data, encoded, end])


def _figure(caption: str, svg: str) -> str:
    """As an image, not as markup: nothing in it can run, and two figures cannot get at each other's names."""
    source = base64.b64encode(svg.encode()).decode()
    words = html.escape(caption)
    return (
        f'<figure><img alt="{words}" src="data:image/svg+xml;base64,{source}"><figcaption>{words}</figcaption></figure>'
    )


def _conditions(results: Results) -> str:
    cut = f" {results.cut_prompts} prompts cut to what the tokenizer reads." if results.cut_prompts else ""
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return (
        f"Model {results.model}. {results.pairs} prompt-seed pairs per variant, the same for all.{cut} "
        f"Made on {'; '.join(results.workers)} with {versions}."
    )


def _cards(results: Results) -> list[dict[str, str]]:
    merged = results.variants[1:]
    fastest = max(merged, key=lambda variant: variant.timing.speedup.value)
    cards = [
        {"value": f"{results.pairs * len(results.variants):,}", "label": "images"},
        {"value": f"{fastest.timing.speedup.value:.2f}x", "label": f"most speed-up: {fastest.label}"},
    ]
    for column in COLUMNS:
        if column.metric in ("psnr", "lpips", "fid") and any(column.metric in variant.metrics for variant in merged):
            best = _best(merged, column)
            value = shown(best.metrics[column.metric].value, column.digits)
            cards.append({"value": value, "label": f"best {column.title}: {best.label}"})
    return cards


def _best(variants: Sequence[VariantResult], column: Column) -> VariantResult:
    sign = 1 if column.higher_is_better else -1
    measured = [variant for variant in variants if column.metric in variant.metrics]
    return max(measured, key=lambda variant: sign * variant.metrics[column.metric].value)


def _notes(results: Results) -> list[str]:
    titles = {column.metric: column.title for column in COLUMNS}
    return [
        *(f"{titles[name]} is missing: {reason}." for name, reason in results.unavailable.items()),
        "FID depends on how many images there are: compare it within this table only.",
    ]


def _table(results: Results) -> dict[str, Any]:
    columns = columns_shown(results)
    heads = [
        {"title": "variant", "meaning": "method and its settings"},
        {"title": "r", "meaning": "fraction of tokens merged away"},
        {
            "title": "fewer multiply-adds ↑",
            "meaning": "executed by the denoiser for the baseline over those for the variant",
            "falling": True,
        },
        {"title": "speed-up ↑", "meaning": "median time of the baseline over that of the variant", "falling": True},
        {"title": "median s/im ↓", "meaning": "seconds per image, warm-up excluded"},
        {"title": "best s/im ↓", "meaning": "shortest time of any image"},
    ]
    for column in columns:
        title = f"{column.title} {column.arrow}"
        heads.append({"title": title, "meaning": column.meaning, "falling": column.higher_is_better})
    return {"columns": heads, "rows": [_row(results, variant, columns) for variant in results.variants]}


def _row(results: Results, variant: VariantResult, columns: Sequence[Column]) -> list[dict[str, Any]]:
    merged = results.variants[1:]
    timing = variant.timing
    fastest = max(merged, key=lambda other: other.timing.speedup.value)
    cells: list[dict[str, Any]] = [
        {"text": f"{variant.name}, {variant.setting}".removesuffix(", "), "sort": variant.label},
        {"text": "" if variant.ratio is None else f"{variant.ratio:g}", "sort": variant.ratio},
        {"text": f"{variant.saved:.2f}x", "sort": variant.saved},
        {**_estimate(timing.speedup, 2), "best": variant is fastest},
        {"text": f"{timing.median:.3f}", "sort": timing.median},
        {"text": f"{timing.best:.3f}", "sort": timing.best},
    ]
    for column in columns:
        estimate = variant.metrics.get(column.metric)
        if estimate is None:
            cells.append({"text": "n/a" if column.metric in results.unavailable else "", "sort": None})
        else:
            cells.append({**_estimate(estimate, column.digits), "best": variant is _best(merged, column)})
    return cells


def _estimate(estimate: Estimate, digits: int) -> dict[str, Any]:
    value, _, interval = shown_estimate(estimate, digits).partition(" ")
    return {"text": value, "interval": interval, "sort": estimate.value}


def gallery_of(
    folder: Path,
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    records: Mapping[tuple[str, str], Record],
    measured: Measurements,
    most_images: int,
) -> dict[str, Any]:
    """The pairs in which each variant did worst, with as many images as may go into the page."""
    merged = variants[1:]
    orders = [column for column in COLUMNS if merged[0].key in measured.values.get(column.metric, {})]
    each = min(len(pairs), most_images // (2 * len(merged)))
    baseline: dict[str, str] = {}
    gallery = []
    for variant in merged if each else []:
        shots = []
        for pair in _worst(pairs, variant, orders, measured)[:each]:
            if pair.id not in baseline:
                baseline[pair.id], _ = embedded(folder / records[BASELINE.key, pair.id].file, LONGEST_SIDE)
            image, (width, height) = embedded(folder / records[variant.key, pair.id].file, LONGEST_SIDE)
            values = {column.metric: measured.values[column.metric][variant.key][pair.id] for column in orders}
            numbers = [f"{column.title} {shown(values[column.metric], column.digits)}" for column in orders]
            shots.append(
                {
                    "id": pair.id,
                    "prompt": pair.prompt,
                    "seed": str(pair.seed),
                    "image": image,
                    "width": width,
                    "height": height,
                    "values": values,
                    "numbers": " · ".join(numbers),
                }
            )
        gallery.append({"label": variant.label, "shots": shots})
    sorted_by = [{"title": c.title, "metric": c.metric, "higherIsBetter": c.higher_is_better} for c in orders]
    note = ""
    if gallery and each < len(pairs):
        order = f"with the worst {orders[0].title}" if orders else "that came first"
        note = f"Of {len(pairs)} pairs, the {each} {order} are shown for each variant."
    return {"gallery": gallery, "baseline": baseline, "orders": sorted_by, "galleryNote": note}


def _worst(pairs: Sequence[Pair], variant: Variant, orders: Sequence[Column], measured: Measurements) -> list[Pair]:
    if not orders:
        return list(pairs)
    column = orders[0]
    values = measured.values[column.metric][variant.key]
    return sorted(pairs, key=lambda pair: values[pair.id], reverse=not column.higher_is_better)
