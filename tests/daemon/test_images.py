"""An image service of its own: each call goes where it belongs, from one client."""

from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.lab.cri_client import CriClient


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_image_calls_go_to_the_image_service(
    daemons: Daemons, runtime: FakeRuntime, socket_folder: Path
) -> None:
    with FakeRuntime(socket_folder / "images.sock") as images:
        images.state.images.add("registry.example/only-there:1")
        daemon = daemons.start(image_endpoint=str(images.socket_path))
        with CriClient(daemon.socket) as client:
            for _ in range(2):
                assert client.has_image("registry.example/only-there:1")
                assert client.wait_until_serving(30).runtime_name == "fake-runtime"
        assert set(images.recorded.methods) == {"ImageStatus"}
        assert "ImageStatus" not in runtime.recorded.methods


def test_image_calls_go_to_the_runtime_otherwise(daemons: Daemons, runtime: FakeRuntime) -> None:
    with CriClient(daemons.start().socket) as client:
        client.images.ListImages(api_pb2.ListImagesRequest(), timeout=30)
    assert "ListImages" in runtime.recorded.methods
