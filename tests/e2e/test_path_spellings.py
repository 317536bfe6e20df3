"""Which spellings of a method's path a runtime serves: of methods that are held, all of those are held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimeproxy.frontends.cri_proxy.calls.methods import BY_PATH
from tests.conformance.relay_here import RelayHere
from tests.frontends.cri_proxy.relay.playbook import ScriptedInterceptor, forward_as_it_came
from tests.lab.containerd import Containerd
from tests.peers.blocking import Http2Client

METHOD = "runtime.v1.RuntimeService/StopPodSandbox"
REQUEST = b"\x0a\x04none"
"""The sandbox `none`."""
NOT_SERVED = ("unknown service", "unknown method", "malformed method name")
SERVED = {f"/{METHOD}", METHOD}
SPELLINGS = [
    *sorted(SERVED),
    f"//{METHOD}",
    f"/{METHOD}/",
    f"{METHOD}/",
    f"/{METHOD}?x=1",
    f"/{METHOD}#x",
    f"/{METHOD} ",
    f" /{METHOD}",
    f"./{METHOD}",
    f"/./{METHOD}",
    f"/x/{METHOD}",
    f"http://localhost/{METHOD}",
    f"/{METHOD.replace('v1', 'v%31')}",
    f"/{METHOD.replace('/', '%2F')}",
    f"/{METHOD.replace('/', '//')}",
    f"/{METHOD.lower()}",
    f"/{METHOD.upper()}",
    "//StopPodSandbox",
    "/StopPodSandbox",
    "StopPodSandbox",
]


class Noting(ScriptedInterceptor):
    """Holds the methods that the daemon holds, and sends them on as they came."""

    def __init__(self) -> None:
        super().__init__(forward_as_it_came)

    def intercepts(self, path: str) -> bool:
        return path in BY_PATH


@pytest.fixture(scope="module")
def noting() -> Noting:
    return Noting()


@pytest.fixture(scope="module")
def relay(containerd: Containerd, folder: Path, noting: Noting) -> Iterator[Path]:
    socket = folder / "spellings.sock"
    with RelayHere(socket, containerd.socket, noting):
        yield socket


def is_served(socket: Path, path: str) -> bool:
    """Whether the method itself answers."""
    with Http2Client(socket) as client:
        trailers = client.call(path, REQUEST).trailers
    return not trailers["grpc-message"].startswith(NOT_SERVED)


@pytest.mark.parametrize("path", SPELLINGS)
def test_what_is_served_is_held(containerd: Containerd, relay: Path, noting: Noting, path: str) -> None:
    """The newest grpc-go, in containerd 2.4, wants the first slash; what is held without it fails there."""
    served = is_served(containerd.socket, path)
    expected = {f"/{METHOD}"} if containerd.version == "2.4" else SERVED
    assert served == (path in expected)
    noting.calls.clear()
    assert is_served(relay, path) == served
    assert [call.head.path for call in noting.calls] == ([f"/{METHOD}"] if path in SERVED else [])
