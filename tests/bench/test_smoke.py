"""The bench itself: every row is measured on a small fake runtime, and the table is made of the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import names
from tests.bench.__main__ import main
from tests.bench.goals import GOALS
from tests.bench.results import Results
from tests.bench.samples import has_v1
from tests.bench.stands import DIRECT, EARLIER, GENERIC, LANES, PROXY
from tests.bench.table import lines, misses
from tests.lab.programs import go_tool

NRI = {names.NRI, names.SYNCHRONIZE}
TINY = (
    *("--runtime", "fake", "--containers", "5", "--rounds", "1"),
    *("--seconds", "0.02", "--cycles", "10", "--beside-rounds", "1"),
    *("--storm-pods", "3"),
)


@pytest.mark.slow
def test_every_row_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"
    rows = (
        *("version", "beside", "watched", "managed", "list", "held", "evaluated", "hooked"),
        *("storm", "samples", "pooled", "guarded-threads", "start"),
    )
    assert main([*TINY, "--rows", ",".join(rows), "--json", str(figures)]) == 0
    printed = capsys.readouterr().out
    assert "given up" not in printed
    measured = json.loads(figures.read_text())
    others = {names.PASSING, names.HOOKED, names.SKIPPED}
    # With pressure pods are guarded when they are 30 s old only.
    left_out = NRI if has_v1() else {*NRI, names.GUARDED}
    assert set(measured) == {goal.row for goal in GOALS} - left_out | others
    assert set(measured[names.VERSION_32]["CPU us/call"]) == set(LANES) - {EARLIER}
    assert "<= 0.07x generic" in printed


@pytest.mark.slow
@pytest.mark.golang
def test_rows_of_nri_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go_tool("nri-adaptation")
    figures = tmp_path / "figures.json"
    assert main([*TINY, "--rows", "nri", "--json", str(figures)]) == 0
    assert "given up" not in capsys.readouterr().out
    measured = json.loads(figures.read_text())
    assert set(measured) == NRI
    assert measured[names.NRI]["all policies, p50 us"][PROXY][0] > 0
    assert set(measured[names.SYNCHRONIZE]) == {"Go plugin, s", "fixed answers, s", "all policies, s"}


def test_medians_are_of_each_rounds_ratio() -> None:
    results = Results()
    for proxy, generic in ((10, 100), (30, 100), (90, 1000)):
        results.add(names.VERSION_1, PROXY, {"CPU us/call": proxy})
        results.add(names.VERSION_1, GENERIC, {"CPU us/call": generic})
    assert results.ratio(names.VERSION_1, "CPU us/call", GENERIC) == pytest.approx(0.1)
    assert "0.1 ok" in lines(results)[1]
    assert misses(results) == 0


def test_a_figure_over_its_limit_is_a_miss() -> None:
    results = Results()
    results.add(names.BESIDE, DIRECT, {"p99 us": 1000.0})
    results.add(names.BESIDE, PROXY, {"p99 us": 4001.0})
    assert "3e+03 MISS" in lines(results)[1]
    assert misses(results) == 1
