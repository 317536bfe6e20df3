"""A field of a policy's answer that cannot be used is a problem as long as it is so."""

from __future__ import annotations

import signal

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod, pod
from tests.daemon.failures.scene import write_policy
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until

BODY = "def container(self, container, node):\n    return ContainerChange({change})"
BAD = BODY.format(change="problems=('annotation x is no number',)")
GOOD = BODY.format(change="")


def problems(client: CriClient) -> list[str]:
    api = api_pb2_grpc.RuntimeProxyStub(client.channel)
    status: api_pb2.GetStatusResponse = api.GetStatus(api_pb2.GetStatusRequest(), timeout=30)
    return [each for each in status.problems if "Policy reads" in each or "policy reads" in each]


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("end", ["pod", "policy"])
def test_the_problem_ends(daemons: Daemons, end: str) -> None:
    daemon = daemons.prepare()
    write_policy(daemon, "reads", BAD)
    daemon.start()
    with CriClient(daemon.socket) as client:
        made: Pod = pod(client, "web").run().create().start()
        wait_until(lambda: problems(client), "the problem")
        (problem,) = problems(client)
        assert problem.startswith("A field of policy reads cannot be used, for ")
        assert problem.endswith("/web: annotation x is no number.")
        if end == "pod":
            made.remove()
        else:
            write_policy(daemon, "reads", GOOD)
            daemon.signal(signal.SIGHUP)
        wait_until(lambda: not problems(client), "its end")
