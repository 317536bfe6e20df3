"""Which calls met a restart, how long none was answered, which containers are wrong."""

from __future__ import annotations

import pytest

from tests.restarts import figures
from tests.restarts.figures import Window
from tests.restarts.lines import Begun, Call, Created, parsed

WINDOW = Window(10.0, 12.0)


def call(begun: float, ended: float, code: str = "OK", worker: str = "list-1") -> Call:
    return Call(worker, "ListContainers", begun, ended, code, "" if code == "OK" else "gone")


@pytest.mark.parametrize(
    ("begun", "ended", "expected"),
    [
        pytest.param(9.0, 9.9, False, id="before"),
        pytest.param(9.0, 10.1, True, id="on its way at the signal"),
        pytest.param(10.5, 11.0, True, id="within"),
        pytest.param(9.0, 13.0, True, id="around"),
        pytest.param(11.9, 12.5, True, id="answered by the successor"),
        pytest.param(12.0, 12.5, False, id="after"),
    ],
)
def test_calls_during_a_restart(begun: float, ended: float, expected: bool) -> None:
    assert bool(figures.during([call(begun, ended)], WINDOW)) is expected


@pytest.mark.parametrize(
    ("calls", "expected_s"),
    [
        pytest.param([], 0.0, id="none"),
        pytest.param([call(9, 9.5), call(9, 11), call(11, 12.5)], 1.5, id="answers within"),
        pytest.param([call(9, 9.5), call(9.6, 12.5)], 3.0, id="a call that waits"),
        pytest.param(
            [call(9, 9.5), call(10, 11, "Unavailable"), call(12, 13)], 3.5, id="failures are no answers"
        ),
        pytest.param([call(1, 2), call(1, 8), call(8, 9.9), call(11, 11.5)], 1.6, id="a longer one before"),
    ],
)
def test_outage(calls: list[Call], expected_s: float) -> None:
    assert figures.outage_s(calls, WINDOW) == pytest.approx(expected_s)


def test_calls_belong_to_the_restart_before_their_end() -> None:
    windows = [Window(10.0, 11.0), Window(20.0, 21.0)]
    first, second = figures.by_restart([call(1, 2), call(9, 10), call(12, 19), call(19, 20)], windows)

    assert [one.ended for one in first] == [10, 19]
    assert [one.ended for one in second] == [20]


def test_reasons_are_counted() -> None:
    calls = [call(1, 2), call(1, 2, "Unavailable"), call(2, 3, "Unavailable")]

    assert figures.reasons(calls) == {"Unavailable: gone": 2}


@pytest.mark.parametrize(
    ("created", "is_wrong"),
    [
        pytest.param(Created("a", "OK", 1, 512), False, id="there once with its values"),
        pytest.param(Created("a", "OK", 0, 0), True, id="vanished"),
        pytest.param(Created("a", "OK", 2, 512), True, id="twice"),
        pytest.param(Created("a", "OK", 1, 2), True, id="without the policies' values"),
        pytest.param(Created("a", "Unavailable", 0, 0), False, id="failed"),
        pytest.param(Created("a", "Unavailable", 1, 0), False, id="made, but the answer was lost"),
        pytest.param(Created("a", "Unavailable", 2, 0), True, id="failed and made twice"),
    ],
)
def test_containers_that_are_wrong(created: Created, is_wrong: bool) -> None:
    assert bool(figures.wrong_containers([created], 512)) is is_wrong


def test_lines_are_read() -> None:
    line = '{"kind":"begun","worker":"list-1","method":"Status","at":1.5}'

    assert parsed(line) == Begun("list-1", "Status", 1.5)
    with pytest.raises(ValueError, match="not a line of a caller"):
        parsed('{"kind":"other"}')
