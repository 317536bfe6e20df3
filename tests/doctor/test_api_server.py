"""What `doctor` asks an API server, with the daemon's credentials."""

from __future__ import annotations

from pathlib import Path

from runtimeproxy.config.settings import KubernetesSettings, NodeSettings, Settings
from runtimeproxy.doctor.facts import ApiServerFacts
from runtimeproxy.doctor.gather import ask_api_server
from tests.kubernetes.api_server import ApiServer, refusing, sending
from tests.kubernetes.conftest import WriteKubeconfig, server, write_kubeconfig

__all__ = ["server", "write_kubeconfig"]

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
NODE_SLOS = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"


def ask(path: Path) -> ApiServerFacts:
    kubernetes = KubernetesSettings(enabled=True, kubeconfig=str(path))
    return ask_api_server(Settings(kubernetes=kubernetes, node=NodeSettings(name="node-a")))


def test_a_server_with_this_node(server: ApiServer, write_kubeconfig: WriteKubeconfig) -> None:
    server.put(NODES, "node-a")
    server.missing.add(NODE_SLOS)
    found = ask(write_kubeconfig(server.url))
    assert found == ApiServerFacts(server.url, absent=("NodeSLO",), node_name="node-a")
    assert all(each.query["resourceVersion"] == "0" for each in server.requests)


def test_kinds_that_cannot_be_listed(server: ApiServer, write_kubeconfig: WriteKubeconfig) -> None:
    server.faults += [(PODS, refusing(403, "pods is forbidden")), (NODE_SLOS, sending(b"nonsense"))]
    found = ask(write_kubeconfig(server.url))
    assert not found.has_node
    assert found.refused["Pod"] == "403: pods is forbidden"
    assert "the answer is cut off" in found.refused["NodeSLO"]


def test_a_server_that_cannot_be_asked(tmp_path: Path, write_kubeconfig: WriteKubeconfig) -> None:
    assert "Connection refused" in ask(write_kubeconfig("http://127.0.0.1:1")).error
    assert "there is no" in ask(tmp_path / "absent").error
