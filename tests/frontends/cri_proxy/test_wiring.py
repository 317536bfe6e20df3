"""Which upstream serves which call."""

import pytest

from runtimeproxy.frontends.cri_proxy.wiring import Routes

RUNTIME = "/runtime.v1.RuntimeService/Version"
IMAGE = "/runtime.v1.ImageService/ListImages"
OLD_IMAGE = "/runtime.v1alpha2.ImageService/ListImages"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize(
    ("image", "own", "path", "socket_path"),
    [
        ("", "", RUNTIME, "r"),
        ("", "", IMAGE, "r"),
        ("", "", HEALTH, "r"),
        ("", "o", HEALTH, "o"),
        ("", "o", REFLECTION, "o"),
        ("", "o", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "o"),
        ("", "o", RUNTIME, "r"),
        ("", "o", "/grpc.health.v1.HealthX/Check", "r"),
        ("", "o", "/containerd.services.content.v1.Content/Info", "r"),
        ("", "o", "", "r"),
        ("i", "o", IMAGE, "i"),
        ("i", "o", OLD_IMAGE, "i"),
        ("i", "o", RUNTIME, "r"),
        ("i", "o", "/runtime.v1.ImageServiceX/ListImages", "r"),
        ("r", "", IMAGE, "r"),
    ],
)
def test_where_a_path_goes(image: str, own: str, path: str, socket_path: str) -> None:
    routes = Routes(runtime_socket="r", image_socket=image, own_socket=own)
    upstream = routes(path)
    assert upstream.socket_path == socket_path
    assert upstream.is_intercepted == (socket_path == "r")


def test_one_upstream_is_one_object() -> None:
    """Connections compare upstreams by identity."""
    routes = Routes(runtime_socket="r", image_socket="i", own_socket="o")
    for path in (RUNTIME, IMAGE, HEALTH):
        assert routes(path) is routes(path)
    assert routes(HEALTH) is routes(REFLECTION)
    assert routes(RUNTIME) is routes.runtime
