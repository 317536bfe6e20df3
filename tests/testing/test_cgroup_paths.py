"""Where cgroups lie, by driver."""

import pytest

from runtimeproxy.testing import CgroupDriver
from runtimeproxy.testing.cgroups import container_path, parent_path, spec_path

CGROUPFS, SYSTEMD = CgroupDriver.CGROUPFS, CgroupDriver.SYSTEMD
SLICES = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu.slice"


@pytest.mark.parametrize(
    ("parent", "driver", "expected"),
    [
        ("/kubepods/besteffort/podu", CGROUPFS, "/kubepods/besteffort/podu/c1"),
        ("/kubepods/besteffort/podu/", CGROUPFS, "/kubepods/besteffort/podu/c1"),
        (SLICES, SYSTEMD, "kubepods-besteffort-podu.slice:cri-containerd:c1"),
        ("kubepods-podu.slice", SYSTEMD, "kubepods-podu.slice:cri-containerd:c1"),
        ("", CGROUPFS, ""),
        ("", SYSTEMD, ""),
    ],
)
def test_spec_path(parent: str, driver: CgroupDriver, expected: str) -> None:
    assert spec_path(parent, "c1", driver) == expected


@pytest.mark.parametrize(
    ("parent", "driver", "expected"),
    [
        ("/kubepods/podu", CGROUPFS, "/kubepods/podu/c1"),
        (SLICES, SYSTEMD, f"{SLICES}/cri-containerd-c1.scope"),
        ("kubepods-besteffort-podu.slice", SYSTEMD, f"{SLICES}/cri-containerd-c1.scope"),
        ("/plain", SYSTEMD, "/plain/cri-containerd-c1.scope"),
    ],
)
def test_container_path(parent: str, driver: CgroupDriver, expected: str) -> None:
    assert container_path(parent, "c1", driver) == expected


def test_a_slice_lies_in_the_slices_that_its_name_begins_with() -> None:
    assert parent_path("a-b-c.slice", SYSTEMD) == "/a.slice/a-b.slice/a-b-c.slice"
