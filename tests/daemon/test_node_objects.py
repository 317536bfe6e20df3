"""Kubernetes objects of the node beside a running daemon."""

from __future__ import annotations

from typing import Any

from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.daemon.driving import pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import BURST, config_map, node_object, write

UNKNOWN = "STATUS=7 policies; 0 pods, 0 containers; node: cpus, cgroups unknown"
"""The tests' daemons see no sysfs."""


def warnings(daemon: ProxyProcess) -> list[str]:
    return [each["message"] for each in daemon.log_records if each["message"].startswith("node: ")]


def test_objects_come_break_and_survive_a_restart(daemons: Daemons) -> None:
    daemon = daemons.start("[node]\nname = 'node-a'\n")
    daemon.objects_folder.mkdir()
    file = daemon.objects_folder / "all.yaml"
    write(file, config_map(cpu_burst_config=BURST), node_object("node-b"))
    wait_until(lambda: len(warnings(daemon)) == 2, "what is said of the other node's object")
    assert warnings(daemon) == [
        f"node: {daemon.objects_folder}: has no Node of this node, whose name is node-a (node.name)",
        f"node: {file}: Node 'node-b' is not read; node-a is",
    ]
    saved = daemon.state_folder / "node.json"
    wait_until(lambda: saved.exists() and "cpu-burst-config" in saved.read_text(), "the saved values")
    file.write_text("a: [")
    daemon.wait_for_state(f"{UNKNOWN}, 2 problems")
    assert daemon.terminate() == 0
    daemon.start()
    daemon.wait_for_state(f"{UNKNOWN}, 1 problem")
    stays = "; what was there before stays"
    wait_until(lambda: warnings(daemon)[-1].endswith(stays), "what is said of the file that is broken")
    file.unlink()
    gone = f"node: {file}: is gone; what was there before is withdrawn at "
    wait_until(lambda: warnings(daemon)[-1].startswith(gone), "what is said of the file that is gone")


def group_identity(value: int) -> dict[str, Any]:
    """`resource-qos-config` that gives LS and LSR pods this value."""
    classes = {name: {"cpuQOS": {"enable": True, "groupIdentity": value}} for name in ("lsrClass", "lsClass")}
    return {"clusterStrategy": classes}


def test_an_edited_config_map_counts_for_running_pods(daemons: Daemons, cgroup_files: CgroupFiles) -> None:
    daemon = daemons.start("[node]\nname = 'node-a'\n")
    daemon.objects_folder.mkdir()
    with CriClient(daemon.socket) as client:
        running = pod(client, "one")
        cgroup = running.config.linux.cgroup_parent
        cgroup_files.make(cgroup)
        file = cgroup_files.folder(cgroup) / "cpu.bvt_warp_ns"
        file.write_text("0\n")
        running.run().create()
        objects = daemon.objects_folder / "slo.yaml"
        for value in (2, 1):
            write(objects, config_map(resource_qos_config=group_identity(value)))
            wait_until(lambda value=value: file.read_text() == f"{value}\n", "the value of the strategy")  # type: ignore[misc]
        write(objects, config_map())
        wait_until(lambda: file.read_text() == "0\n", "the value before the strategy")
