"""The ways of a passing and of a changed call, from the request to the answer, do not grow."""

from __future__ import annotations

import pytest

from tests.readability.__main__ import GOALS, TracedCall, trace, way

CALLS = 5


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[TracedCall]]:
    return trace(tmp_path_factory.mktemp("traced"), CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["warm Version", "changed CreateContainer"])
def test_a_call_passes_few_functions_and_files(traces: dict[str, list[TracedCall]], name: str) -> None:
    # On a busy machine a call may last until what follows it is done, too.
    common = way(traces[name])
    assert common.functions <= GOALS[f"{name}: functions"], "\n".join(common.names)
    assert common.files <= GOALS[f"{name}: files"], "\n".join(common.names)
