"""Servers, certificates and clients of the tests."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from runtimeproxy.kubernetes.access import load_access
from runtimeproxy.kubernetes.client import ApiClient, Timeouts
from tests.kubernetes.api_server import ApiServer

PATIENT = Timeouts(connect_s=60.0, response_s=60.0, total_s=60.0)
"""No answer is late, however slow the machine is."""

WriteKubeconfig = Callable[..., Path]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as found:
        yield found


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def tls_server(authority: trustme.CA) -> Iterator[ApiServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).configure_cert(context)
    with ApiServer(context) as found:
        yield found


@pytest.fixture
def write_kubeconfig(tmp_path: Path) -> WriteKubeconfig:
    """Writes a kubeconfig with these parts of cluster and user, as JSON, which is YAML."""

    def write(server: str, cluster: dict[str, object] | None = None, **user: object) -> Path:
        path = tmp_path / "kubeconfig"
        document = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "lab", "user": "node"}}],
            "clusters": [{"name": "lab", "cluster": {"server": server, **(cluster or {})}}],
            "users": [{"name": "node", "user": user}],
        }
        path.write_text(json.dumps(document))
        return path

    return write


@pytest.fixture
def client(server: ApiServer, write_kubeconfig: WriteKubeconfig) -> Iterator[ApiClient]:
    path = write_kubeconfig(server.url)
    found = ApiClient(lambda: load_access(path), PATIENT)
    yield found
    found.close()
