"""Annotations of running pods that change and go, in every mode: groups, schemata and processes follow."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.api_server import ApiServer
from tests.lab.deadline import wait_until
from tests.resctrl.schemata import Variant
from tests.resctrl.stand import ANNOTATION, PATIENCE_S, PREFIX, Pod, stand
from tests.resctrl.test_policy import STORM, STORM_S

pytestmark = pytest.mark.slow

PODS = "/api/v1/pods"
HALF = {"llc": {"schemata": {"range": [0, 50]}}, "mb": {"schemata": {"percent": 40}}}
THIRD = {"llc": {"schemata": {"range": [0, 30]}}, "mb": {"schemata": {"percent": 70}}}


@pytest.mark.parametrize("mode", ["proxy", "nri", "standalone"])
def test_a_running_pod_follows_its_annotation(socket_folder: Path, mode: str) -> None:
    """A pod whose processes fork all the time gets a group, another part, and goes back to its class."""
    with ApiServer() as server:
        config = (
            f'[kubernetes]\nenabled = true\nkubeconfig = "{server.kubeconfig(socket_folder)}"\n'
            "[slo]\nstart_spread_s = 0\n"
        )
        with stand(socket_folder, Variant(caches=(0, 8)), mode=mode, more_config=config) as node:
            node.strategy()
            made = node.pod("made", "LS", HALF).run()
            pod = node.pod("web", "LS")
            edit(server, made, HALF)
            edit(server, pod, None)
            pod.run(sys.executable, str(STORM))
            pod.wait_for(f"{PREFIX}LS", STORM_S)
            made.wait_for(made.own_group)

            edit(server, pod, HALF)
            node.wait_for_schemata(f"pod-{pod.uid}", "L3:0=3ff;8=3ff", "MB:0=40;8=40")
            pod.wait_for(pod.own_group, STORM_S)
            edit(server, pod, THIRD)
            node.wait_for_schemata(f"pod-{pod.uid}", "L3:0=3f;8=3f", "MB:0=70;8=70")
            pod.wait_for(pod.own_group, STORM_S)
            edit(server, pod, None)
            pod.wait_for(f"{PREFIX}LS", STORM_S)
            wait_until(
                lambda: f"pod-{pod.uid}" not in node.own_groups, "the end of the pod's group", PATIENCE_S
            )
            # Of a pod that keeps its annotation nothing has changed.
            assert made.is_in(made.own_group)
            assert node.schemata(f"pod-{made.uid}") == ["L3:0=3ff;8=3ff", "MB:0=40;8=40"]
            made.remove()
            wait_until(
                lambda: node.own_groups == {"LSR", "LS", "BE"}, "the end of the other group", PATIENCE_S
            )


def edit(server: ApiServer, pod: Pod, own: object) -> None:
    """Gives the pod at the API server this annotation, or none."""
    annotations = {} if own is None else {ANNOTATION: json.dumps(own)}
    metadata: dict[str, Any] = {"namespace": "default", "uid": pod.uid, "annotations": annotations}
    server.put(PODS, pod.config.metadata.name, metadata=metadata, spec={"nodeName": socket.gethostname()})
