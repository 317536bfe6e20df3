"""Names and paths of the two CRI packages and of the hook service."""

import pytest

from cri_api.koordinator import v1alpha1
from cri_api.koordinator.v1alpha1 import api_pb2 as hooks_pb2
from cri_api.runtime import v1, v1alpha2
from cri_api.runtime.v1 import api_pb2


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/runtime.v1alpha2.RuntimeService/Version", "/runtime.v1.RuntimeService/Version"),
        ("/runtime.v1alpha2.ImageService/PullImage", "/runtime.v1.ImageService/PullImage"),
        ("/runtime.v1.RuntimeService/Version", "/runtime.v1.RuntimeService/Version"),
        ("/runtime.v1alpha1.RuntimeHookService/X", "/runtime.v1alpha1.RuntimeHookService/X"),
        ("/containerd.services.version.v1.Version/Version",) * 2,
        ("", ""),
    ],
)
def test_v1_path(path: str, expected: str) -> None:
    assert v1alpha2.v1_path(path) == expected


def test_service_names_are_those_of_the_descriptors() -> None:
    services = api_pb2.DESCRIPTOR.services_by_name
    assert services["RuntimeService"].full_name == v1.RUNTIME_SERVICE
    assert services["ImageService"].full_name == v1.IMAGE_SERVICE
    hooks = hooks_pb2.DESCRIPTOR.services_by_name["RuntimeHookService"]
    assert hooks.full_name == v1alpha1.HOOK_SERVICE


def test_v1alpha2_names_differ_by_the_package_only() -> None:
    for old, new in (
        (v1alpha2.RUNTIME_SERVICE, v1.RUNTIME_SERVICE),
        (v1alpha2.IMAGE_SERVICE, v1.IMAGE_SERVICE),
    ):
        assert old.removeprefix(v1alpha2.PACKAGE) == new.removeprefix(v1.PACKAGE)
