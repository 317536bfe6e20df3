"""Values of what runs that others change, that cannot be written, or that are given back."""

from __future__ import annotations

import json
import os
import signal
from typing import Final

import grpc
import pytest

from runtimeproxy.testing.builders import KubeletQos, pod_sandbox_config
from tests.daemon.driving import Pod, batch_pod, pod
from tests.daemon.failures.scene import Row, Scene, write_policy
from tests.daemon.hook_servers import use
from tests.daemon.test_from_0_1 import NOT_KNOWN, checkpoint, left_node
from tests.hooks.remote.behaviours import Behaviour
from tests.hooks.remote.hook_server_process import HookServerProcess
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects, kubelet_files
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import Machine
from tests.resctrl.double import mounted
from tests.resctrl.schemata import Variant

MAY_CHANGE_THE_NETWORK = """
from runtimeproxy.node import machine
machine.has_net_admin = lambda: True
"""
NOTHING_LEAVES = """
import asyncio
from runtimeproxy.ledger.evaluate import Evaluator
async def move_off(self, cpus):
    await asyncio.Event().wait()
Evaluator.move_off = move_off
"""
"""What runs hangs while it is asked to leave CPUs."""


def reset(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        _, weight = scene.run_batch_pod(client)
        ours = weight.read_text()
        weight.write_text("100\n")
        found = scene.wait_for(daemon, "ledger_repairs_total", level="pod", found_by="comparison")
        assert weight.read_text() == ours
        assert found.of("ledger_overwrites_total") == 0
    return daemon


def overwritten(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    # Values of QoS classes are compared every second.
    answer = "    return CgroupChange(cgroup={'memory.min': 4096}, reason='test')"
    write_policy(daemon, "classes", f"def qos_class(self, qos, pods, node):\n{answer}", "CgroupChange")
    daemon.start()
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        parent = made.config.linux.cgroup_parent
        scene.files.make(parent)
        scene.files.make(parent.rpartition("/")[0])
        file = scene.files.folder(parent.rpartition("/")[0]) / "memory.min"
        made.run().create().start()
        for _ in range(3):
            wait_until(lambda: file.read_text().strip() == "4096", "the policy's value", 30)
            # Never an empty file, which would be another value of this program's.
            with file.open("r+") as opened:
                opened.write("8192\n")
        scene.wait_for(daemon, "ledger_overwrites_total", 3, parameter="memory.min")
        scene.wait_for(daemon, "ledger_yielded_values")
    return daemon


def koordlet_is_registered(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with HookServerProcess(scene.folder / "hook.sock", Behaviour()) as server:
        server.register(daemon.hook_folder, "koordlet.json", "PreCreateContainer")
        scene.wait_for(daemon, "ledger_observed_parameters")
    return daemon


def disable(daemon: ProxyProcess) -> None:
    (daemon.folder / "config.toml").write_text("[policies.batch-resource]\nenabled = false\n")
    daemon.signal(signal.SIGHUP)


def policy_is_disabled(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        _, weight = scene.run_batch_pod(client)
        disable(daemon)
        scene.wait_for(daemon, "ledger_given_back_total", level="pod")
        assert weight.read_text() == "100\n"
    return daemon


def changed_before_it_is_given_back(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        _, weight = scene.run_batch_pod(client)
        weight.write_text("77\n")
        # The next comparison of pods is 10 s after the one that finds this.
        scene.wait_for(daemon, "ledger_repairs_total", level="pod")
        weight.write_text("78\n")
        disable(daemon)
        scene.wait_for(daemon, "ledger_left_alone_total", reason="changed_since")
        assert weight.read_text() == "78\n"
    return daemon


def cannot_be_written(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        scene.files.make(made.config.linux.cgroup_parent)
        weight = scene.files.folder(made.config.linux.cgroup_parent) / "cpu.weight"
        weight.unlink()
        # No part of a cgroup's path is followed out of the tree.
        weight.symlink_to(scene.folder / "elsewhere")
        made.run()
        scene.wait_for(daemon, "cgroup_writes_total", parameter="cpu.shares", outcome="refused")
    return daemon


def a_limit_waits(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[policies.batch-resource]\nenabled = false\n")
    with CriClient(daemon.socket) as client:
        made = batch_pod(client).run().create().start()
        scene.files.make(f"{made.config.linux.cgroup_parent}/{made.container}")
        (daemon.folder / "config.toml").write_text("")
        daemon.signal(signal.SIGHUP)
        scene.wait_for(daemon, "ledger_unapplied_values", cause="lower-limit")
    return daemon


def processes_are_not_visible(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[policies.oom-score]\nenabled = false\n")
    with CriClient(daemon.socket) as client:
        made = Pod(client, pod_sandbox_config("scored", annotations={"koordinator.sh/oom-score-adj": "5"}))
        made.run().create().start()
        cgroup = f"{made.config.linux.cgroup_parent}/{made.container}"
        scene.files.make(cgroup)
        scene.files.write(cgroup, "cgroup.procs", "0")
        (daemon.folder / "config.toml").write_text("[policies.oom-score]\nenabled = true\n")
        daemon.signal(signal.SIGHUP)
        scene.wait_for(daemon, "ledger_unapplied_values")
    return daemon


def cgroup_is_made_anew(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        made, weight = scene.run_batch_pod(client)
        weight.parent.rename(weight.parent.with_name("old"))
        scene.files.make(made.config.linux.cgroup_parent)
        scene.wait_for(daemon, "ledger_renewed_cgroups_total", level="pod")
    return daemon


def server_is_deregistered(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    server = scene.stack.enter_context(
        HookServerProcess(scene.folder / "hook.sock", Behaviour(overlay={"cpu_shares": 512}))
    )
    server.register(daemon.hook_folder, "pod.json", "PreRunPodSandbox")
    use(daemon, "pod.json")
    with CriClient(daemon.socket) as client:
        made = pod(client)
        parent = made.config.linux.cgroup_parent
        scene.files.make(parent)
        made.run().create().start()
        assert scene.files.read(parent, "cpu.weight") == "20"
        (daemon.hook_folder / "pod.json").unlink()
        scene.wait_for(daemon, "ledger_given_back_total", level="pod")
        assert scene.files.read(parent, "cpu.weight") != "20"
    return daemon


def two_modes_are_wanted(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    both = {"kernel.sched_core": 1, "kernel.sched_group_identity_enabled": 1}
    answer = f"def node(self, node):\n    return NodeChange(sysctl={both}, reason='test')"
    write_policy(daemon, "modes", answer, "NodeChange")
    daemon.start()
    scene.wait_for(daemon, "cpu_mode_blocked")
    return daemon


def saved_sysctls_are_unreadable(scene: Scene) -> ProxyProcess:
    daemon = scene.prepare()
    (daemon.state_folder / "sysctls.json").mkdir(parents=True)
    daemon.start()
    scene.wait_for(daemon, "sysctl_writes_total", outcome="failed")
    return daemon


def original_is_not_known(scene: Scene) -> ProxyProcess:
    left_node(scene.runtime, scene.files)
    daemon = scene.prepare()
    checkpoint(daemon.state_folder, NOT_KNOWN)
    daemon.start()
    scene.wait_for(daemon, "ledger_unknown_originals")
    return daemon


def too_many_pods_fail(scene: Scene) -> ProxyProcess:
    daemon = scene.start("[policies.batch-resource]\nenabled = false\n")
    with CriClient(daemon.socket) as client:
        for number in range(12):
            made = batch_pod(client, f"batch-{number}")
            scene.files.make(made.config.linux.cgroup_parent)
            weight = scene.files.folder(made.config.linux.cgroup_parent) / "cpu.weight"
            weight.unlink()
            weight.mkdir()
            made.run()
        (daemon.folder / "config.toml").write_text("")
        daemon.signal(signal.SIGHUP)
        scene.wait_for(daemon, "ledger_change_ended")
    return daemon


def memory_is_in_use(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        parent = made.config.linux.cgroup_parent
        scene.files.make(parent)
        (scene.files.folder(parent) / "memory.current").write_text(f"{1 << 30}\n")
        made.run().create().start()
        scene.wait_for(daemon, "ledger_limits_above_usage_total", level="pod")
    return daemon


def start_with_computed_pools(scene: Scene, statements: str = "") -> ProxyProcess:
    machine = Machine(scene.folder / "machine")
    kubelet_files(scene.folder / "kubelet", {})
    scene.daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(machine.sysfs)
    config = f"[node]\nshared_pools = 'computed'\nkubelet_dir = '{scene.folder}/kubelet'\n"
    return scene.start(config, statements=statements)


def pod_of(scene: Scene, client: CriClient, name: str, qos: str, cpus: str = "") -> Pod:
    """A pod of a machine with computed pools, which is not there yet; `cpus` are its own."""
    status = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus})} if cpus else {}
    config = pod_sandbox_config(
        name, qos=qos, kubelet_qos=KubeletQos.BURSTABLE, uid=f"uid-{name}", annotations=status
    )
    scene.files.make(config.linux.cgroup_parent)
    return Pod(client, config)


def cpus_are_not_left(scene: Scene) -> ProxyProcess:
    scene.daemons.environment["KOORD_RUNTIMEPROXY_HOOKS_BUDGET_S"] = "2"
    daemon = start_with_computed_pools(scene, NOTHING_LEAVES)
    with CriClient(daemon.socket) as client:
        pod_of(scene, client, "web", "LS").run().create().start()
        pod_of(scene, client, "own", "LSR", "0-3").run()
        scene.wait_for(daemon, "cpu_owners_occupied")
        scene.wait_for(daemon, "call_problems_total", cause="cpus_not_left")
    return daemon


def allocations_cannot_be_saved(scene: Scene) -> ProxyProcess:
    daemon = start_with_computed_pools(scene)
    with CriClient(daemon.socket) as client:
        # No file can replace a folder.
        (daemon.state_folder / "allocations.json").unlink(missing_ok=True)
        (daemon.state_folder / "allocations.json").mkdir()
        pod_of(scene, client, "own", "LSR", "0-3").run()
        scene.wait_for(daemon, "cpu_owners_unsaved")
    return daemon


def start_with_katalysts_pools(scene: Scene, config: str = "", statements: str = "") -> ProxyProcess:
    machine = Machine(scene.folder / "machine", 4)
    kubelet_files(scene.folder / "kubelet", {})
    scene.daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(machine.sysfs)
    switched = "[policies.cpuset]\nenabled = false\n[policies.katalyst-pools]\nenabled = true\n"
    text = f"[node]\nkubelet_dir = '{scene.folder}/kubelet'\n{switched}{config}"
    return scene.start(text, statements=statements)


def dedicated_pod(scene: Scene, client: CriClient, name: str = "own") -> Pod:
    annotations = {
        "katalyst.kubewharf.io/qos_level": "dedicated_cores",
        "katalyst.kubewharf.io/memory_enhancement": '{"numa_binding": "true", "numa_exclusive": "true"}',
    }
    config = pod_sandbox_config(name, uid=f"uid-{name}", annotations=annotations)
    config.linux.resources.cpu_shares = 2048
    scene.files.make(config.linux.cgroup_parent)
    return Pod(client, config)


def pools_cannot_be_saved(scene: Scene) -> ProxyProcess:
    daemon = start_with_katalysts_pools(scene)
    scene.wait_for_zero(daemon, "cpu_pools_off")
    with CriClient(daemon.socket) as client:
        (daemon.state_folder / "cpu_pools.json").unlink(missing_ok=True)
        (daemon.state_folder / "cpu_pools.json").mkdir()
        dedicated_pod(scene, client).run()
        scene.wait_for(daemon, "cpu_pools_unsaved")
        scene.wait_for(daemon, "cpu_pools_refusals_total", cause="went_on")
    return daemon


def pod_has_no_room(scene: Scene) -> ProxyProcess:
    daemon = start_with_katalysts_pools(scene)
    scene.wait_for_zero(daemon, "cpu_pools_off")
    with CriClient(daemon.socket) as client:
        for name in ("one", "two", "three"):
            dedicated_pod(scene, client, name).run()
        scene.wait_for(daemon, "cpu_pools_unplaced_pods")
        scene.reject_what_katalyst_refuses(daemon)
        with pytest.raises(grpc.RpcError):
            dedicated_pod(scene, client, "four").run()
        scene.wait_for(daemon, "cpu_pools_refusals_total", cause="no_room")
    return daemon


def pod_does_not_leave(scene: Scene) -> ProxyProcess:
    daemon = start_with_katalysts_pools(scene)
    scene.wait_for_zero(daemon, "cpu_pools_off")
    with CriClient(daemon.socket) as client:
        web = pod_of(scene, client, "web", "LS").run().create().start()
        path = scene.files.folder(f"{web.config.linux.cgroup_parent}/{web.container}") / "cpuset.cpus"
        wait_until(lambda: bool(path.read_text().strip()), "CPUs of a pool")
        path.unlink()
        path.mkdir()
        dedicated_pod(scene, client).run()
        scene.wait_for(daemon, "cpu_pools_overlaps")
        scene.wait_for(daemon, "cpu_pools_refusals_total", cause="went_on")
    return daemon


def kubelet_manages_memory(scene: Scene) -> ProxyProcess:
    daemon = start_with_katalysts_pools(scene)
    config = scene.folder / "kubelet" / "config.yaml"
    config.write_text(f"{config.read_text()}memoryManagerPolicy: Static\n")
    scene.wait_for(daemon, "cpu_pools_off", 1)
    return daemon


def pod_cannot_be_evaluated(scene: Scene) -> ProxyProcess:
    daemon = scene.start()
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        made.config.linux.cgroup_parent = "/.."
        made.run().create().start()
        daemon.signal(signal.SIGHUP)
        scene.wait_for(daemon, "ledger_unevaluated_pods")
    return daemon


def pool_is_empty(scene: Scene) -> ProxyProcess:
    daemon = start_with_computed_pools(scene)
    with CriClient(daemon.socket) as client:
        pod_of(scene, client, "own", "LSR", "0-7").run()
        scene.wait_for(daemon, "node_problems")
    return daemon


def protection_is_above_the_machines_memory(scene: Scene) -> ProxyProcess:
    machine = Machine(scene.folder / "machine")
    scene.daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(machine.sysfs)
    daemon = scene.start("[policies.memory-qos]\nenabled = true\n")
    memory = {"kubernetes.io/batch-memory": "8Ei"}
    annotations = {
        "koordinator.sh/memoryQOS": '{"minLimitPercent": 100}',
        "node.koordinator.sh/extended-resource-spec": json.dumps(
            {"containers": {"main": {"requests": memory, "limits": memory}}}
        ),
    }
    with CriClient(daemon.socket) as client:
        Pod(client, pod_sandbox_config("greedy", qos="BE", annotations=annotations)).run().create()
        scene.wait_for(daemon, "policy_fields_left_out_total", policy="memory-qos")
    return daemon


REFUSES_LINES = """
import errno
from runtimeproxy.cgroups import writer
def write_lines(file, folder, lines):
    return {each: OSError(errno.EOPNOTSUPP, "Operation not supported") for each in lines}
writer._write_lines = write_lines
"""
"""The kernel takes no weight of a disk without a cost model; plain files take all."""


def limited_pod(scene: Scene, client: CriClient, device: str) -> Pod:
    block = {"name": device, "type": "device", "ioCfg": {"writeBPS": 1024, "ioWeightPercent": 40}}
    annotations = {"koordinator.sh/blkioQOS": json.dumps({"blocks": [block]})}
    made = Pod(client, pod_sandbox_config("limited", qos="LS", annotations=annotations))
    parent = made.config.linux.cgroup_parent
    scene.files.make(parent)
    for name in ("io.max", "io.weight"):
        scene.files.write(parent, name, "")
    return made.run()


def with_a_disk(scene: Scene) -> None:
    disk = scene.folder / "machine/class/block/sda"
    disk.mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    scene.daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(scene.folder / "machine")


def disk_is_not_there(scene: Scene) -> ProxyProcess:
    with_a_disk(scene)
    daemon = scene.start("[policies.block-io]\nenabled = true\n")
    with CriClient(daemon.socket) as client:
        limited_pod(scene, client, "/dev/sdb")
        scene.wait_for(daemon, "policy_fields_left_out_total", policy="block-io")
    return daemon


def line_is_refused(scene: Scene) -> ProxyProcess:
    with_a_disk(scene)
    daemon = scene.start("[policies.block-io]\nenabled = true\n", statements=REFUSES_LINES)
    with CriClient(daemon.socket) as client:
        limited_pod(scene, client, "/dev/sda")
        scene.wait_for(daemon, "cgroup_writes_total", parameter="blkio.cost.weight", outcome="failed")
    return daemon


def link_is_anothers(scene: Scene) -> ProxyProcess:
    """With programs that say so: this machine's own network is none of a test's."""
    programs = scene.folder / "bin"
    programs.mkdir()
    qdiscs = '[{"kind": "fq", "handle": "8001:", "dev": "up0", "root": true}]'
    tc, nft = f"echo '{qdiscs}'", "echo 'No such file or directory' >&2; exit 1"
    for name, line in (("tc", tc), ("nft", nft)):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    scene.daemons.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    config = "[policies.network-qos]\nenabled = true\n[network]\nlink = 'up0'\n"
    daemon = scene.prepare(config, statements=MAY_CHANGE_THE_NETWORK)
    strategy = {"clusterStrategy": {"totalNetworkBandwidth": "1G"}}
    NodeObjects(daemon.objects_folder).strategies({"system-config": strategy})
    daemon.start()
    scene.wait_for(daemon, "sysctl_writes_total", sysctl="network.qos", outcome="failed")
    return daemon


def no_group_is_left(scene: Scene) -> ProxyProcess:
    """On a double of resctrl with three CLOSIDs: the root group has one, koordlet's group another one."""
    folder = scene.folder / "tmp" / "fs" / "resctrl"
    double = scene.stack.enter_context(mounted(folder, Variant(mb_closids=3)))
    (double.root / "BE").mkdir()
    daemon = scene.prepare("[policies.resctrl]\nenabled = true\n")
    of_class = {"resctrlQOS": {"enable": True, "catRangeEndPercent": 50}}
    strategy = {"clusterStrategy": {"lsClass": of_class, "beClass": of_class}}
    NodeObjects(daemon.objects_folder).strategies({"resource-qos-config": strategy})
    daemon.start()
    scene.wait_for(daemon, "sysctl_writes_total", sysctl="resctrl.BE", outcome="failed")
    return daemon


ROWS: Final = {
    "resctrl has no CLOSID left": Row(
        no_group_is_left, lambda s: "no CLOSID (num_closids) of 3 is left" in str(s.ledger)
    ),
    "systemd, the kernel or the runtime": Row(reset, lambda s: s.ledger.counts.repairs > 0),
    "another program writes a value": Row(
        overwritten, lambda s: s.ledger.counts.overwrites > 0 and len(s.ledger.yielded) > 0
    ),
    "koordlet is registered": Row(koordlet_is_registered, lambda s: len(s.ledger.observed) > 0),
    "a policy is removed, disabled": Row(policy_is_disabled, lambda s: s.ledger.counts.given_back > 0),
    "a hook server is deregistered": Row(server_is_deregistered, lambda s: s.ledger.counts.given_back > 0),
    "policies want two CPU modes": Row(two_modes_are_wanted, lambda s: bool(s.ledger.cpu_mode_problem)),
    "what was saved of sysctls": Row(
        saved_sysctls_are_unreadable, lambda s: "sysctls.json" in str(s.ledger.sysctl_problems)
    ),
    "the original of a pod's file": Row(original_is_not_known, lambda s: s.ledger.unknown_originals > 0),
    "another program has changed a value": Row(
        changed_before_it_is_given_back, lambda s: s.ledger.counts.left_alone > 0
    ),
    "a value cannot be written": Row(cannot_be_written, lambda s: len(s.ledger.failed_writes) > 0),
    "the values of more than": Row(too_many_pods_fail, lambda s: "a change ended" in s.ledger.change_problem),
    "a pod cannot be evaluated": Row(
        pod_cannot_be_evaluated,
        lambda s: any("default/batch cannot be evaluated" in each for each in s.problems),
    ),
    "`LSE` and `LSR` pods": Row(pool_is_empty, lambda s: "shared pool of LS pods" in str(s.node.problems)),
    "memory protection of a pod": Row(
        protection_is_above_the_machines_memory,
        lambda s: any("is bounded to" in each.last_left_out.reason for each in s.policies),
    ),
    "a disk that a block of `blkioQOS` names": Row(
        disk_is_not_there,
        lambda s: any(
            "block '/dev/sdb' is not on this node" in each.last_left_out.reason for each in s.policies
        ),
    ),
    "the kernel refuses the line": Row(
        line_is_refused,
        lambda s: any("8:0: ENOTSUP" in each.reason for each in s.ledger.unapplied),
    ),
    "the root queueing discipline": Row(
        link_is_anothers,
        lambda s: "up0 is fq 8001:, neither the kernel's default nor ours" in str(s.ledger.sysctl_problems),
    ),
    "a value is wanted and cannot be applied": Row(
        a_limit_waits, lambda s: "lower_memory_limits" in s.ledger.unapplied[0].reason and not s.problems
    ),
    "processes of a running container": Row(
        processes_are_not_visible, lambda s: "(hostPID)" in s.ledger.unapplied[0].reason
    ),
    "a memory limit is to fall": Row(memory_is_in_use, lambda s: s.ledger.counts.above_usage > 0),
    "the CPUs of a new pod": Row(cpus_are_not_left, lambda s: s.ledger.occupied_pods > 0),
    "the CPUs allocated to a new pod": Row(
        allocations_cannot_be_saved, lambda s: bool(s.ledger.allocation_problem)
    ),
    "Katalyst's pools cannot be saved": Row(
        pools_cannot_be_saved, lambda s: "cannot be saved" in s.cpu_pools.problem
    ),
    "a pod has no room in Katalyst's pools": Row(
        pod_has_no_room, lambda s: [each.pod for each in s.cpu_pools.unplaced] == ["default/three"]
    ),
    "a pod cannot be made to leave CPUs": Row(
        pod_does_not_leave, lambda s: "default/web has not left" in str(s.cpu_pools.overlaps)
    ),
    "the kubelet's CPU manager or memory manager": Row(
        kubelet_manages_memory, lambda s: "memory manager policy is Static" in s.cpu_pools.off_reason
    ),
    "the node is rebooted": Row(cgroup_is_made_anew, lambda s: s.ledger.counts.renewed > 0),
}
