import pytest

from runtimeproxy.service.status_line import status_line


@pytest.mark.parametrize(
    ("count", "trouble", "passes", "expected"),
    [
        pytest.param(0, "", False, "3 policies; 0 connections", id="quiet"),
        pytest.param(1, "", False, "3 policies; 1 connection", id="one client"),
        pytest.param(2, "", True, "all calls pass unheld; 3 policies; 2 connections", id="bypassed"),
        pytest.param(
            2,
            "the runtime is away",
            True,
            "the runtime is away; all calls pass unheld; 3 policies; 2 connections",
            id="everything",
        ),
    ],
)
def test_the_line(count: int, trouble: str, passes: bool, expected: str) -> None:
    assert status_line("3 policies", count, trouble, passes=passes) == expected
