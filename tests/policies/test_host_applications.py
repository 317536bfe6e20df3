"""Cgroups of host applications."""

from __future__ import annotations

import pytest

from policies.host_applications import host_application_values
from runtimeproxy.qos import QoSClass
from runtimeproxy.slo.host_applications import host_application_cgroup
from runtimeproxy.slo.schema import CgroupBase, CgroupPath, HostApplication


def application(
    qos: QoSClass = QoSClass.LS, path: CgroupPath | None = None, name: str = "nginx"
) -> HostApplication:
    return HostApplication(name=name, qos=qos, cgroup_path=path)


@pytest.mark.parametrize(
    ("qos", "expected"),
    [
        (QoSClass.LSE, "/host-latency-sensitive/nginx"),
        (QoSClass.LSR, "/host-latency-sensitive/nginx"),
        (QoSClass.LS, "/host-latency-sensitive/nginx"),
        (QoSClass.BE, "/host-best-effort/nginx"),
        (QoSClass.SYSTEM, "/nginx"),
        (QoSClass.NONE, "/nginx"),
    ],
)
def test_the_default_directory_depends_on_the_class(qos: QoSClass, expected: str) -> None:
    assert host_application_cgroup(application(qos), None) == expected


@pytest.mark.parametrize(
    ("driver", "base", "expected"),
    [
        (None, CgroupBase.CGROUP_ROOT, "/apps/web"),
        ("systemd", CgroupBase.KUBEPODS, "/kubepods.slice/apps/web"),
        ("systemd", CgroupBase.KUBEPODS_BURSTABLE, "/kubepods.slice/kubepods-burstable.slice/apps/web"),
        ("systemd", CgroupBase.KUBEPODS_BEST_EFFORT, "/kubepods.slice/kubepods-besteffort.slice/apps/web"),
        ("cgroupfs", CgroupBase.KUBEPODS, "/kubepods/apps/web"),
        ("cgroupfs", CgroupBase.KUBEPODS_BURSTABLE, "/kubepods/burstable/apps/web"),
        ("cgroupfs", CgroupBase.KUBEPODS_BEST_EFFORT, "/kubepods/besteffort/apps/web"),
    ],
)
def test_a_base_depends_on_the_driver(driver: str | None, base: CgroupBase, expected: str) -> None:
    path = CgroupPath(base=base, parent_dir="/apps/", relative_path="web")
    assert host_application_cgroup(application(path=path), driver) == expected


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
@pytest.mark.parametrize(
    ("base", "directory"),
    [
        (CgroupBase.KUBEPODS, ""),
        (CgroupBase.KUBEPODS_BURSTABLE, ""),
        (CgroupBase.KUBEPODS_BEST_EFFORT, "./"),
        (CgroupBase.CGROUP_ROOT, "kubepods.slice"),
        (CgroupBase.CGROUP_ROOT, "kubepods"),
        (CgroupBase.CGROUP_ROOT, "custom/kubepods/besteffort"),
        (CgroupBase.CGROUP_ROOT, "kubepods/burstable/pod1234"),
        (CgroupBase.CGROUP_ROOT, "kubepods/pod1234/4321"),
        (CgroupBase.CGROUP_ROOT, "custom.slice/custom-kubepods.slice/custom-kubepods-pod12.slice/a.scope"),
        (CgroupBase.CGROUP_ROOT, "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12.slice"),
    ],
)
def test_cgroups_of_the_kubelets_are_not_an_applications(
    base: CgroupBase, directory: str, driver: str
) -> None:
    """The values of QoS classes and pods would be taken for those of the application, and given back."""
    path = CgroupPath(base=base, relative_path=directory)
    with pytest.raises(ValueError, match="QoS class or of a pod"):
        host_application_cgroup(application(path=path), driver)


@pytest.mark.parametrize(
    "cgroup", ["kubepods/hadoop", "kubepods.slice/yarn.slice", "mykubepods", "pods/pod1"]
)
def test_an_application_beside_the_pods(cgroup: str) -> None:
    assert host_application_cgroup(application(path=CgroupPath(relative_path=cgroup)), None) == f"/{cgroup}"


@pytest.mark.parametrize(
    ("path", "name", "reason"),
    [
        (CgroupPath(base=CgroupBase.KUBEPODS, relative_path="web"), "nginx", "driver"),
        (CgroupPath(relative_path="../system.slice"), "nginx", "leaves"),
        (CgroupPath(), "nginx", "empty"),
        (None, "..", "leaves"),
    ],
)
def test_a_path_that_cannot_be_used_is_reported(path: CgroupPath | None, name: str, reason: str) -> None:
    cgroups, problems = host_application_values(
        (application(path=path, name=name), application(QoSClass.BE, name="good")),
        None,
        lambda qos: {"cpu.bvt_warp_ns": 2 if qos is QoSClass.LS else -1},
    )
    assert cgroups == {"/host-best-effort/good": {"cpu.bvt_warp_ns": -1}}
    assert reason in problems[0]


def test_of_two_with_the_same_cgroup_the_first_counts() -> None:
    """Whether it is the same may depend on the driver."""
    one = application(path=CgroupPath(relative_path="kubepods/web"), name="one")
    two = application(path=CgroupPath(base=CgroupBase.KUBEPODS, relative_path="web"), name="two")
    values = {QoSClass.LS: {"cpu.bvt_warp_ns": 2}}
    cgroups, problems = host_application_values((one, two), "cgroupfs", lambda qos: values.get(qos, {}))
    assert cgroups == {"/kubepods/web": {"cpu.bvt_warp_ns": 2}}
    assert problems == ("host application two: its cgroup /kubepods/web is that of one, too",)
    assert host_application_values((one, two), "systemd", lambda qos: values.get(qos, {}))[1] == ()
