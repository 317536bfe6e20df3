"""A public HTTP/2 conformance suite: no case may fail through the proxy alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.lab.containerd import Containerd
from tests.lab.h2spec import ALL_SECTIONS, VERSION, report_for, section_of
from tests.lab.programs import CONTAINERDS_WITH_EVENTS
from tests.lab.proxy_process import ProxyProcess

# Each case waits, and none makes a pod: on a worker of its own, with another containerd.
pytestmark = [pytest.mark.golang, pytest.mark.xdist_group("h2spec")]

HELD = "/runtime.v1.RuntimeService/CreateContainer"
# A few cases depend on whether the last frame or the end of the connection is seen first: seen on
# containerd alone, http2/5.1 "Sends a HEADERS frame after sending RST_STREAM frame".
ROUNDS = 5
# h2spec sends no gRPC content type, which containerd refuses with an answer of its own; the proxy
# closes the connection first, because a second header block has come on a held stream. To gRPC
# such a block is an error either way.
DECIDED = frozenset({"generic/4: Sends a POST request with trailers"})


def test_no_case_fails_through_the_proxy_alone(containerd: Containerd, proxy: ProxyProcess) -> None:
    compare(VERSION, containerd.socket, proxy.socket)


@pytest.mark.parametrize("containerd_version", CONTAINERDS_WITH_EVENTS, indirect=True)
def test_no_case_fails_through_the_proxy_alone_on_a_held_call(
    containerd: Containerd, proxy: ProxyProcess
) -> None:
    compare(HELD, containerd.socket, proxy.socket, DECIDED)


def compare(method: str, direct: Path, through: Path, decided: frozenset[str] = frozenset()) -> None:
    """A case counts when it failed through the proxy, and passed without it, in every round."""
    only_through: frozenset[str] | None = None
    sections: Sequence[str] = ALL_SECTIONS
    with ThreadPoolExecutor(2) as threads:
        for _ in range(ROUNDS):
            report = partial(report_for, method=method, sections=sections)
            without, behind = threads.map(report, (direct, through))
            assert without.passed
            failed = behind.failed - without.failed - decided
            only_through = failed if only_through is None else only_through & failed
            if not only_through:
                return
            sections = sorted({section_of(case) for case in only_through})
    assert sorted(only_through or ()) == []
