import pytest
from made_results import model_result, other_result

from tokenmerge.bench.result import Measurement, Result
from tokenmerge.bench.tables import machine_line, table_of, title_of


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_of_a_model_holds_its_figures() -> None:
    header, _, *rows = cells(table_of(model_result()))
    toma = dict(zip(header, rows[-1], strict=True))
    assert toma["method"] == "toma"
    assert toma["s a step (best)"] == "5.500"
    assert toma["speed-up (best)"] == "1.45x"
    assert toma["of removable"] == "62%"
    assert (toma["s to select"], toma["s for weights"], toma["s steady"]) == ("8.000", "7.000", "5.000")
    assert toma["peak memory"] == "2.0 MB"


def test_titles_name_all_that_was_asked_for() -> None:
    assert title_of(model_result()) == "sd15, 512 px, batch 1, float32"
    cut = model_result(model="flux", size=[512, 768], blocks=[1, 2], compile="blocks")
    assert title_of(cut) == "flux, 768x512 px, batch 1, float32, cut to 1 + 2 blocks, blocks compiled"
    assert machine_line(cut) == "A Processor, 2 threads; torch 2.13.0, diffusers 0.42.1; 2026-01-02"


@pytest.fixture
def ops() -> Result:
    case = {"tokens": 1024, "channels": 64}
    return other_result(
        "ops",
        [
            Measurement("tomesd-package", 0.5, case, times={"select": [1e-2], "merge": [3e-3], "unmerge": [5e-3]}),
            Measurement("toma tile 4x4", 0.5, case, times={"select": [2e-2], "merge": [1e-3], "unmerge": [1e-3]}),
        ],
    )


def test_operations_are_compared_by_the_round_trip(ops: Result) -> None:
    header, _, _, toma = cells(table_of(ops))
    row = dict(zip(header, toma, strict=True))
    assert row["merge + unmerge against tomesd (best)"] == "4.00x"
    assert row["merge (ms)"] == "1.00"
    assert "weights (ms)" not in row  # nobody made any


def test_scaling_compares_within_a_size() -> None:
    def measured(method: str, ratio: float | None, tokens: int, seconds: float) -> Measurement:
        case = {"pixels": tokens // 2, "tokens": tokens}
        return Measurement(method, ratio, case, schedule={"steady": 1}, times={"steady": [seconds]})

    result = other_result(
        "scaling",
        [
            measured("none", None, 1024, 1.0),
            measured("toma", 0.5, 1024, 0.8),
            measured("none", None, 4096, 9.0),
            measured("toma", 0.5, 4096, 4.5),
        ],
    )
    header, _, *rows = cells(table_of(result))
    column = header.index("speed-up (best)")
    assert [row[column] for row in rows] == ["1.00x", "1.25x", "1.00x", "2.00x"]


def test_the_lower_bound_has_a_column_where_it_was_measured() -> None:
    assert "over lower bound" not in table_of(model_result())
    result = model_result()
    toma = result.measurements[-1]
    faster = {phase: [seconds / 1.25 for seconds in times] for phase, times in toma.times.items()}
    result.measurements.append(Measurement("lower-bound", 0.5, schedule=toma.schedule, times=faster))
    header, _, *rows = cells(table_of(result))
    toma_row, bound_row = [dict(zip(header, row, strict=True)) for row in rows[-2:]]
    assert (toma_row["over lower bound"], bound_row["over lower bound"]) == ("+25.0%", "")
