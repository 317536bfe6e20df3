"""Traffic of pods in the modes `nri` and `standalone`: addresses of NRI's events or the runtime's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from tests.lab.deadline import wait_until
from tests.network.load import TOLERANCE, Load, greedy, near_mbit
from tests.network.namespaces import NodeNetwork
from tests.network.stand import CEILINGS_MBIT, Stand

_EGRESS_MBIT, _INGRESS_MBIT = 8, 12
_LIMITS = {"egressLimit": f"{_EGRESS_MBIT}M", "ingressLimit": f"{_INGRESS_MBIT}M"}
_MANY_BURSTS_S = 3.0


@pytest.mark.parametrize("mode", ["nri", "standalone"])
def test_classes_and_limits_of_pods(network: NodeNetwork, socket_folder: Path, mode: str) -> None:
    """Pods that come while the daemon runs, and while it does not, have their class and their limits."""
    peer, addresses = network.peer, network.peer_addresses
    with Stand(socket_folder, network.node, network, mode=mode) as stand:
        stand.start()
        before = stand.contents()
        with stand.pod("BE") as plain, stand.pod("LS", _LIMITS) as limited:
            flows = (
                [greedy(each.network, peer, addresses, (4, 6)) for each in (plain, limited)],
                [greedy(peer, limited.network, limited.network.addresses, (4, 6))],
            )
            with Load(flows[0]) as load:
                sent = near_mbit(load, (CEILINGS_MBIT["BE"], _EGRESS_MBIT))
            with Load(flows[1]) as load:
                received = near_mbit(load, (_INGRESS_MBIT,), _MANY_BURSTS_S)
            assert sent == pytest.approx([CEILINGS_MBIT["BE"], _EGRESS_MBIT], rel=TOLERANCE)
            assert received == pytest.approx([_INGRESS_MBIT], rel=TOLERANCE)
            assert asked_for(stand, plain.pod.id) is (mode == "standalone")
            stand.daemon.kill()
            missed = stand.addressed_pod(3)
            stand.start_daemon()
            stand.wait_for_addressed_pods([3])
            stand.remove(missed)
        wait_until(lambda: stand.contents() == before, "the rules of before")
        assert not any("had been changed" in line for line in stand.daemon.log)


def asked_for(stand: Stand, pod_id: str) -> bool:
    """Whether the daemon has asked the runtime for the status of a pod: NRI's event has its addresses."""
    calls = stand.runtime.recorded.of("PodSandboxStatus")
    return any(
        api_pb2.PodSandboxStatusRequest.FromString(call.raw).pod_sandbox_id == pod_id for call in calls
    )
