"""Kubernetes objects of the node beside a running daemon."""

from __future__ import annotations

from tests.daemon.conftest import Daemons
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import BURST, config_map, node_object, write

UNKNOWN = "STATUS=7 policies; 0 pods, 0 containers; node: cpus, memory, cgroups unknown"
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
    assert warnings(daemon)[-1].endswith("; what was there before stays")
    file.unlink()
    daemon.wait_for_state(f"{UNKNOWN}; ")
