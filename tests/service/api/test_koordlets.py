"""A koordlet on this node, as the status shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from policies.cpu_burst import CpuBurst
from policies.cpuset import Cpuset
from runtimeproxy.frontends.front_end import FrontEnd
from runtimeproxy.node.koordlet import Koordlet, KoordletLook
from runtimeproxy.service.daemon import Daemon
from runtimeproxy.testing import FakeRuntime, KoordProxy
from tests.daemon.conftest import runtime
from tests.frontends.synthetic import Synthetic
from tests.lab.cri_client import CALL_TIMEOUT_S

__all__ = ["runtime"]


class WithSynthetic(Daemon):
    """One whose socket serves its API."""

    def _make_front_end(self, *_: object) -> FrontEnd:
        return Synthetic()


def test_a_koordlet_that_writes_the_same_values_is_noted(
    socket_folder: Path, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (Koordlet(7, uses_nri=True), Koordlet(8, uses_nri=False, gates=frozenset()))
    monkeypatch.setattr(KoordletLook, "find", lambda _: found)
    monkeypatch.setattr("runtimeproxy.testing.koord_proxy.Daemon", WithSynthetic)
    with KoordProxy(runtime, socket_folder, [Cpuset, CpuBurst]) as proxy:
        api = api_pb2_grpc.RuntimeProxyStub(proxy.channel)
        status = api.GetStatus(api_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S, wait_for_ready=True)
    assert [(each.pid, each.is_nri_plugin, list(each.policies)) for each in status.koordlets] == [
        (7, True, ["cpu-burst", "cpuset"]),
        (8, False, []),
    ]
    text = "Koordlet (process 7) is an NRI plugin, and sets what these policies set, too: cpu-burst, cpuset."
    assert [each for each in status.notes if "Koordlet" in each] == [text]
    assert not any("Koordlet" in each for each in status.problems)
