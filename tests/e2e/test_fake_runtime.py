"""The fake runtime answers the old version of the API as real runtimes do."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.lab.containerd import Containerd
from tests.testing.raw_calls import bytes_call

pytestmark = pytest.mark.containerd

MISSING = "missing"


def request(name: str) -> bytes:
    """A request about nothing that there is: an empty id or image may stand for any."""
    made = getattr(api_pb2, name)()
    for field in made.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING and not field.is_repeated:
            setattr(made, field.name, MISSING)
    if isinstance(made, api_pb2.RemoveImageRequest):
        made.image.image = MISSING
    encoded: bytes = made.SerializeToString()
    return encoded


REQUESTS = {
    f"/runtime.v1alpha2.{service.name}/{method.name}": request(method.input_type.name)
    for service in api_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def unimplemented(target: str) -> dict[str, str | None]:
    """The methods that a runtime does not have, with what it says."""
    found: dict[str, str | None] = {}
    with grpc.insecure_channel(target, options=(("grpc.default_authority", "localhost"),)) as channel:
        for path, message in REQUESTS.items():
            call = bytes_call(channel, path, "unary_stream")(message, timeout=30)
            with contextlib.suppress(grpc.RpcError):
                list(call)
            if call.code() is grpc.StatusCode.UNIMPLEMENTED:
                found[path] = call.details()
    return found


def test_the_old_version_of_the_api(containerd: Containerd, tmp_path: Path, socket_folder: Path) -> None:
    with FakeRuntime(socket_folder / "fake.sock", v1alpha2=containerd.version == "1.6") as fake:
        assert unimplemented(fake.endpoint) == unimplemented(f"unix://{containerd.socket}")
