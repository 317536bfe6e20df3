"""A pod's annotation `networkQOS` at a real API server: soon in the rules of the kernel, in a namespace."""

from __future__ import annotations

import json
import re
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.daemon.live_annotations import check_values
from tests.e2e_api.conftest import NODE, config_map, pod
from tests.lab.kube_api_server import KubeApiServer
from tests.network.load import TOLERANCE, Load, greedy, near_mbit
from tests.network.namespaces import Namespace, NodeNetwork
from tests.network.stand import LIMITS, Stand, need_network_namespaces, strategies

_EGRESS_MBIT, _INGRESS_MBIT = 8, 12
_VALUE: Final = {"egressLimit": f"{_EGRESS_MBIT}M", "ingressLimit": f"{_INGRESS_MBIT}M"}
_BLOCK_BYTES: Final = 64 << 10


@contextmanager
def reachable_from(namespace: Namespace, port: int) -> Iterator[None]:
    """This host's port of 127.0.0.1 is one of the namespace, too."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as server:
                back = threading.Thread(target=_pump, args=(server, self.request))
                back.start()
                _pump(self.request, server)
                back.join()

    with namespace.entered():
        listener = socketserver.ThreadingTCPServer(("127.0.0.1", port), Connection)
    listener.daemon_threads = True
    with listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            listener.shutdown()
            thread.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(_BLOCK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One end is gone, so the other is not needed.
        for each in (source, target):
            each.close()


def test_an_edited_network_qos_applies_soon(
    cluster: KubeApiServer, kubeconfig: Path, socket_folder: Path
) -> None:
    need_network_namespaces()
    config = (
        f'[kubernetes]\nenabled = true\nkubeconfig = "{kubeconfig}"\n[slo]\nstart_spread_s = 0\n'
        f'[node]\nname = "{NODE}"\n'
    )
    texts = {key: json.dumps(value) for key, value in strategies().items()}
    cluster.upsert({**config_map(), "data": texts})
    cluster.apply(json.dumps(pod("limited")))
    uid = cluster.get(pod("limited"))["metadata"]["uid"]

    def edit(annotations: Mapping[str, str]) -> None:
        # A merge patch: a key with null is taken away.
        cluster.replace(pod("limited", annotations={LIMITS: None, **annotations}))

    with (
        NodeNetwork() as network,
        reachable_from(network.node, cluster.port),
        Stand(socket_folder, network.node, network, config=config) as stand,
    ):
        stand.start_daemon()
        stand.wait_for_classes()
        before = stand.contents()

        def limits() -> str:
            """What the kernel has for single pods: ceilings of classes, and rates in bytes/s in nft."""
            contents = stand.contents()
            ceilings = re.findall(r" ceil (\S+)", "\n".join(contents.classes - before.classes))
            rates = re.findall(r'"name": "pod_\w+_(\d+)"', "\n".join(contents.objects))
            return " ".join([*ceilings, *rates])

        with stand.pod("LS", uid=uid) as running:
            places = ("", f"{_EGRESS_MBIT}Mbit {_INGRESS_MBIT * 1_000_000 // 8}")
            check_values(LIMITS, _VALUE, places, limits, edit)
            edit({LIMITS: json.dumps(_VALUE)})
            inside, peer = running.network, network.peer
            with Load([greedy(inside, peer, network.peer_addresses, (4, 6))]) as load:
                sent = near_mbit(load, (_EGRESS_MBIT,))
            with Load([greedy(peer, inside, inside.addresses, (4, 6))]) as load:
                received = near_mbit(load, (_INGRESS_MBIT,), 2.5)
        cluster.delete(pod("limited"))
    assert sent == pytest.approx([_EGRESS_MBIT], rel=TOLERANCE)
    assert received == pytest.approx([_INGRESS_MBIT], rel=TOLERANCE)
