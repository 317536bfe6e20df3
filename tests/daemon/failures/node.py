"""Inputs of the node that are broken, gone, or cannot be read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cri_api.runtimeproxy.v1.api_pb2 import GetStatusResponse, NodeInput
from runtimeproxy.node.inputs import name_of_node
from tests.daemon.driving import pod
from tests.daemon.failures.scene import Row, Scene, has_node_problem, state_of
from tests.katalyst.objects import target
from tests.lab.cri_client import CriClient
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import BURST, config_map, node_object, write

SHORT_GRACE = "import runtimeproxy.node.input_file as file; file.GRACE_S = 3.0"
NO_INOTIFY = """
import errno, inotify_simple
def refuse(nonblocking):
    raise OSError(errno.EMFILE, "Too many open files")
inotify_simple.INotify = refuse
"""
UNREADABLE = Path("/proc/sys/vm/drop_caches")
"""A file that no user may read, root included. Source: Linux, proc_sys_permission."""


def objects_are_bad(scene: Scene, text: str) -> ProxyProcess:
    daemon = scene.prepare()
    daemon.objects_folder.mkdir()
    (daemon.objects_folder / "slo.yaml").write_text(text)
    daemon.start()
    scene.wait_for(daemon, "node_problems")
    return daemon


def object_file_is_broken(scene: Scene) -> ProxyProcess:
    return objects_are_bad(scene, "a: [")


def object_is_bad(scene: Scene) -> ProxyProcess:
    return objects_are_bad(scene, "apiVersion: v1\nkind: Node\nmetadata: {name: 1}\n")


def object_file_is_cut(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    daemon.objects_folder.mkdir(exist_ok=True)
    file = daemon.objects_folder / "slo.yaml"
    write(file, config_map(cpu_burst_config="{}"))
    scene.wait_for(daemon, "node_input_state", input="strategies", state="known")
    file.write_text("apiVersion: v1\ndata:\n  cpu-burst-config: '{}'\n")
    scene.wait_for(daemon, "node_problems")
    return daemon


def target_is_not_valid(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    daemon.objects_folder.mkdir(exist_ok=True)
    file = daemon.objects_folder / "katalyst.yaml"
    write(file, target("all"))
    scene.wait_for(daemon, "node_input_state", input="katalyst", state="known")
    write(file, target("all"), target("other"))
    scene.wait_for(daemon, "node_problems")
    return daemon


def key_is_bad(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    daemon.objects_folder.mkdir(exist_ok=True)
    write(daemon.objects_folder / "slo.yaml", config_map(cpu_burst_config="{nonsense"))
    scene.wait_for(daemon, "node_problems")
    return daemon


def name_is_misspelled(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    daemon.objects_folder.mkdir(exist_ok=True)
    strategy = {"clusterStrategy": {"policy": "auto", "cpuBurstPercnt": 200, "burstShares": 2}}
    write(daemon.objects_folder / "slo.yaml", config_map(cpu_burst_config=strategy))
    scene.wait_for(daemon, "node_problems")
    return daemon


def name_of_a_pod_is_misspelled(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    annotations = {
        "koordinator.sh/cpuBrust": "{}",
        "koordinator.sh/cpuBurst": '{"cpuBurstPercnt": 200, "burstShares": 2}',
        "koordinator.sh/new": "",
    }
    with CriClient(daemon.socket) as client:
        pod(client, annotations=annotations).run()
        pod(client, "other").run()
        found = scene.wait_for(daemon, "misspelled_pods")
    assert found.of("misspelled_pods") == 1
    return daemon


def name_at_the_node_is_misspelled(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    daemon.objects_folder.mkdir(exist_ok=True)
    names = {"node.koordinator.sh/reservatoin": "{}", "node.koordinator.sh/newer": "{}"}
    write(daemon.objects_folder / "node.yaml", node_object(name_of_node(""), annotations=names))
    scene.wait_for(daemon, "node_problems")
    return daemon


def misspelled_names(status: GetStatusResponse) -> list[str]:
    return [each.rpartition("; ")[2] for each in status.records.misspelled_names]


def never_read_well(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    daemon.objects_folder.mkdir()
    (daemon.objects_folder / "slo.yaml").write_text("a: [")
    daemon.start()
    scene.wait_for(daemon, "node_input_state", input="strategies", state="unknown")
    return daemon


def too_many_object_files(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    daemon.objects_folder.mkdir()
    for number in range(300):
        (daemon.objects_folder / f"{number}.yaml").touch()
    daemon.start()
    scene.wait_for(daemon, "node_problems")
    return daemon


def start_with_strategies(scene: Scene, statements: str = "") -> tuple[ProxyProcess, Path]:
    daemon = scene.start(statements=statements)
    daemon.objects_folder.mkdir(exist_ok=True)
    file = daemon.objects_folder / "slo.yaml"
    write(file, config_map(cpu_burst_config=BURST))
    scene.wait_for(daemon, "node_input_state", input="strategies", state="known")
    return daemon, file


def object_file_is_gone(scene: Scene) -> ProxyProcess:
    daemon, file = start_with_strategies(scene, SHORT_GRACE)
    file.unlink()
    scene.wait_for(daemon, "node_problems")
    scene.wait_for(daemon, "node_input_state", input="strategies", state="withdrawn")
    return daemon


def file_system_hangs(scene: Scene) -> ProxyProcess:
    sysfs = scene.folder / "tmp" / "devices" / "system" / "cpu"
    daemon = scene.start()
    scene.wait_for(daemon, "node_look_age_seconds", 0.0)
    sysfs.mkdir(parents=True)
    # Its readers wait for a writer.
    os.mkfifo(sysfs / "online")
    scene.wait_for(daemon, "node_look_age_seconds", 11.0)
    return daemon


def object_file_may_not_be_read(scene: Scene) -> ProxyProcess:
    daemon, file = start_with_strategies(scene)
    file.unlink()
    file.symlink_to(UNREADABLE)
    scene.wait_for(daemon, "node_problems")
    return daemon


def no_inotify_is_left(scene: Scene) -> ProxyProcess:
    daemon = scene.start(statements=NO_INOTIFY)
    scene.wait_for(daemon, "node_polled")
    return daemon


def strategy_goes_to_and_fro(scene: Scene) -> ProxyProcess:
    daemon, file = start_with_strategies(scene)
    # None has the values of one before: two that are read at once are a change, too.
    other = {"clusterStrategy": {**BURST["clusterStrategy"], "cpuBurstPercent": 300}}
    for objects in (config_map(), config_map(cpu_burst_config=other)):
        before = scene.wait_for(daemon, "ledger_evaluations_total").of("ledger_evaluations_total")
        write(file, objects)
        scene.wait_for(daemon, "ledger_evaluations_total", before + 1)
    return daemon


ROWS: Final = {
    "a file is empty or broken": Row(object_file_is_broken, has_node_problem),
    "one object of it": Row(object_is_bad, has_node_problem),
    "one key of": Row(key_is_bad, has_node_problem),
    "a key or field has": Row(
        name_is_misspelled,
        lambda s: (
            [each.reason.rpartition("; ")[2] for each in s.node.strategy_problems]
            == ["did you mean cpuBurstPercent?"]
            and any("burstShares" in each for each in s.node.notes)
        ),
    ),
    "a label or annotation of a pod": Row(
        name_of_a_pod_is_misspelled,
        lambda s: (
            misspelled_names(s) == ["did you mean koordinator.sh/cpuBurst?", "did you mean cpuBurstPercent?"]
            and sum(each.startswith("Pod ") for each in s.problems) == 2
        ),
    ),
    "a label or annotation of the Node": Row(
        name_at_the_node_is_misspelled,
        lambda s: (
            [each.reason.rpartition("; ")[2] for each in s.node.strategy_problems]
            == ["did you mean node.koordinator.sh/reservation?"]
            and any("node.koordinator.sh/newer" in each for each in s.node.notes)
        ),
    ),
    "a target of Katalyst's dynamic configuration is not valid, more than one applies": Row(
        target_is_not_valid,
        lambda s: (
            state_of(s, "katalyst") == NodeInput.STATE_KNOWN
            and [(each.name, each.is_applied) for each in s.node.katalyst_targets]
            == [("all", True), ("other", False)]
        ),
    ),
    "a file is cut off": Row(object_file_is_cut, has_node_problem),
    "a file, an object in a file": Row(
        object_file_is_gone, lambda s: state_of(s, "strategies") == NodeInput.STATE_WITHDRAWN
    ),
    "something was never read well": Row(
        never_read_well, lambda s: state_of(s, "strategies") == NodeInput.STATE_UNKNOWN
    ),
    "the file system hangs": Row(file_system_hangs, lambda s: s.node.HasField("hangs_since")),
    "the folder or a file in it may not": Row(
        object_file_may_not_be_read,
        lambda s: "EACCES" in str(s.node.problems) or "ermission" in str(s.node.problems),
    ),
    "the folder has more than": Row(too_many_object_files, has_node_problem),
    "the kernel has no more inotify": Row(
        no_inotify_is_left, lambda s: "fs.inotify.max_user_instances" in s.node.polling_reason
    ),
    "a file changes all the time": Row(strategy_goes_to_and_fro, lambda s: s.ledger.counts.evaluations >= 3),
}
