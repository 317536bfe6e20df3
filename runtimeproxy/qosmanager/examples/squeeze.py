"""A plugin in a process of its own: BE pods get half of the node's CPU while LS pods are throttled.

    python -m runtimeproxy.qosmanager.examples.squeeze /run/squeeze/plugin.sock

The configuration has `[plugins.squeeze] endpoint = "/run/squeeze/plugin.sock"`, and lets it claim:
`[owners.squeeze]` with the quota of QoS classes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from cri_api.runtimeproxy.v1 import api_pb2, plugin_pb2, plugin_pb2_grpc

THROTTLED = "cpu_throttled"
WINDOW_S = 10
PERIOD_US = 100_000


class Squeeze(plugin_pb2_grpc.QoSPluginServicer):
    """The calls of the service; one at a time."""

    def __init__(self) -> None:
        self._limit = 0.1
        self._is_throttled = False
        self._node = api_pb2.GetNodeResponse()

    def Describe(  # noqa: N802  # the method's name in the service
        self, request: plugin_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> plugin_pb2.DescribeResponse:
        """Needs throttling of the QoS classes."""
        self._limit = json.loads(request.options).get("limit", self._limit)
        need = plugin_pb2.SampleNeed(level=plugin_pb2.SAMPLE_LEVEL_QOS_CLASS, metric=THROTTLED)
        need.window.FromSeconds(WINDOW_S)
        return plugin_pb2.DescribeResponse(needs=[need], about="squeeze 1.0")

    def Decide(  # noqa: N802  # the method's name in the service
        self, request: plugin_pb2.DecideRequest, context: grpc.ServicerContext
    ) -> plugin_pb2.DecideResponse:
        """All that it claims now."""
        if request.HasField("node"):
            self._node = request.node
        if request.is_first:
            # Previous values must not jump.
            self._is_throttled = len(request.held) > 0
        for sample in request.samples:
            if sample.cgroup == self._cgroup_of("Burstable"):
                self._is_throttled = sample.average > self._limit
        if not self._is_throttled:
            return plugin_pb2.DecideResponse(explanation="LS pods are not throttled")
        cpus = sum(cpu.is_online for cpu in self._node.cpus)
        key = api_pb2.ClaimKey(
            target=api_pb2.ClaimTarget(qos_class="BestEffort"),
            field="cpu.cfs_quota_us",
            role=api_pb2.ExplainedClaim.ROLE_AT_MOST,
        )
        reason = f"LS pods are throttled: half of {cpus} CPUs"
        claim = api_pb2.Claim(key=key, value=str(cpus * PERIOD_US // 2), reason=reason)
        return plugin_pb2.DecideResponse(claims=[claim], explanation=reason)

    def _cgroup_of(self, kube_qos_class: str) -> str:
        found = (
            each.cgroup for each in self._node.qos_class_cgroups if each.kube_qos_class == kube_qos_class
        )
        return next(found, "")


def serve(path: str) -> grpc.Server:
    """Starts a server on a socket that only this user may open."""
    Path(path).unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(1))
    plugin_pb2_grpc.add_QoSPluginServicer_to_server(Squeeze(), server)
    before = os.umask(0o077)
    try:
        server.add_insecure_port(f"unix:{path}")
    finally:
        os.umask(before)
    server.start()
    return server


def main() -> None:
    """Serves until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    server = serve(sys.argv[1])
    ended.wait()
    server.stop(1).wait()


if __name__ == "__main__":
    main()
