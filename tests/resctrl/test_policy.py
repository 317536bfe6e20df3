"""The policy `resctrl` in the daemon, on a double of the kernel's file system and with real processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2 as runtimeproxy_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc as runtimeproxy_grpc
from tests.lab.cri_client import CALL_TIMEOUT_S
from tests.lab.deadline import wait_until
from tests.resctrl.double import Double
from tests.resctrl.schemata import Variant
from tests.resctrl.stand import CLASSES, PATIENCE_S, PREFIX, Pod, Stand, class_qos, stand

pytestmark = pytest.mark.slow

OWN = {"llc": {"schemata": {"range": [0, 50]}}, "mb": {"schemata": {"percent": 40}}}
STORM = Path(__file__).with_name("storm.py")
STORM_S = 60.0
"""How long to wait for the tasks of such a program: a busy machine takes some comparisons."""


@pytest.fixture
def node(socket_folder: Path) -> Iterator[Stand]:
    """Intel, two caches with ids 0 and 8; groups of other programs are there."""
    with (
        stand(socket_folder, Variant(caches=(0, 8), cbm_bits=11, mb_closids=16)) as made,
        others(made.double),
    ):
        yield made


@contextmanager
def others(double: Double) -> Iterator[None]:
    """Groups of koordlet, for a class and for a pod, and one of a runtime's class, each with a process."""
    processes = []
    for name, line in {"LS": "L3:0=ff", "koordlet-a1b2": "MB:8=50", "gold": "L3:8=7f0"}.items():
        (double.root / name).mkdir()
        double.write(f"{name}/schemata", f"{line}\n")
        processes.append(subprocess.Popen(["sleep", "600"]))
        double.write(f"{name}/tasks", str(processes[-1].pid))
    (double.root / "gold/mon_groups/box").mkdir()
    double.write("gold/mon_groups/box/tasks", str(processes[-1].pid))
    double.write("schemata", "L3:0=7fe\n")
    yield
    for each in processes:
        each.kill()
        each.wait()


def check_nothing_of_others_was_written(node: Stand) -> None:
    for each in node.written_by_daemons():
        # The root group gets back what was in ours.
        assert each.path.removeprefix("mon_groups/").startswith(PREFIX) or each.path == "tasks", each


def test_classes_and_pods(node: Stand) -> None:
    before = node.of_others()
    node.strategy()
    node.wait_for_schemata("LSR", "L3:0=7ff;8=7ff", "MB:0=100;8=100")
    node.wait_for_schemata("LS", "L3:0=7f;8=7f", "MB:0=90;8=90")
    node.wait_for_schemata("BE", "L3:0=f;8=f", "MB:0=20;8=20")
    pods = {name: node.pod(name.lower(), name).run() for name in ("LSE", "LSR", "LS", "BE", "SYSTEM")}
    own = node.pod("own", "BE", OWN).run()
    per_cache = {
        "llc": {"schemata": {"range": [0, 30]}, "schemataPerCache": [{"cacheID": 8, "range": [50, 100]}]}
    }
    cached = node.pod("cached", "LS", per_cache).run()
    for name, group in {"LSE": "LSR", "LSR": "LSR", "LS": "LS", "BE": "BE"}.items():
        pods[name].wait_for(f"{PREFIX}{group}")
        pods[name].wait_for(f"{PREFIX}{group}/mon_groups/{pods[name].own_group}")
    own.wait_for(own.own_group)
    cached.wait_for(cached.own_group)
    assert node.schemata(f"pod-{own.uid}") == ["L3:0=3f;8=3f", "MB:0=40;8=40"]
    assert node.schemata(f"pod-{cached.uid}") == ["L3:0=f;8=7c0", "MB:0=100;8=100"]
    assert pods["SYSTEM"].is_in("")

    shown = str(node.explain(pods["BE"]))
    assert "BE's group" in shown
    assert "0-30 % of 11 bits -> f (4 bits)" in shown
    assert "MB 20 % -> 20 %" in shown
    assert "0-50 % of 11 bits -> 3f (6 bits)" in str(node.explain(own))

    own.remove()
    wait_until(lambda: f"pod-{own.uid}" not in node.own_groups, "the end of the pod's group", PATIENCE_S)
    node.strategy({"beClass": class_qos(0, 50, 35), "lsClass": CLASSES["lsClass"]})
    node.wait_for_schemata("BE", "L3:0=3f;8=3f", "MB:0=40;8=40")
    pods["LSR"].wait_for("")

    node.switch(enabled=False)
    wait_until(lambda: not node.own_groups, "the end of all groups", PATIENCE_S)
    assert pods["BE"].is_in("")
    assert cached.is_in("")
    assert node.of_others() == before
    check_nothing_of_others_was_written(node)


def test_fork_storms(socket_folder: Path) -> None:
    with stand(socket_folder, quick=False) as node:
        node.strategy()
        storm = (sys.executable, str(STORM))
        pods = {name: node.pod(name.lower(), name).run(*storm) for name in ("LS", "BE")}
        own = node.pod("own", "BE", OWN).run(*storm)
        groups = {pods["LS"]: f"{PREFIX}LS", pods["BE"]: f"{PREFIX}BE", own: own.own_group}
        # What the runtime starts in a running container is no child of what is there.
        wait_until(lambda: all(pod.is_in(group) for pod, group in groups.items()), "all tasks", STORM_S)
        started = pods["BE"].start(*storm)
        seen: dict[Pod, set[int]] = {pod: set() for pod in groups}

        def stay() -> bool:
            """Whether many new tasks have come since the last one that was elsewhere."""
            for pod, group in groups.items():
                seen[pod] = seen[pod] | pod.tasks if pod.is_in(group) else set()
            return all(len(each) > 40 for each in seen.values())

        wait_until(stay, "children of children in their group", STORM_S)
        assert started in node.double.tasks(f"{PREFIX}BE")
        pods["BE"].wait_for(f"{PREFIX}BE/mon_groups/{pods['BE'].own_group}")


def test_standalone(socket_folder: Path) -> None:
    with stand(socket_folder, mode="standalone") as node:
        node.strategy()
        batch, own = node.pod("batch", "BE").run(), node.pod("own", "LS", OWN).run()
        batch.wait_for(f"{PREFIX}BE/mon_groups/{batch.own_group}")
        own.wait_for(own.own_group)
        own.remove()
        wait_until(lambda: f"pod-{own.uid}" not in node.own_groups, "the end of the pod's group", PATIENCE_S)


def test_too_few_classes_of_service(socket_folder: Path) -> None:
    with stand(socket_folder, Variant(mb_closids=4)) as node:
        (node.double.root / "gold").mkdir()
        node.strategy()
        node.wait_for_schemata("LS", "L3:0=fff;1=fff", "MB:0=90;1=90")
        batch, own = node.pod("batch", "BE").run(), node.pod("own", "LS", OWN).run()
        node.wait_for_status("no CLOSID (num_closids) of 4 is left", "gold", f"{PREFIX}LSR", f"{PREFIX}LS")
        for pod in (batch, own):
            node.wait_for_explanation(pod, "no CLOSID (num_closids) of 4 is left")
            assert pod.is_in("")
        assert node.own_groups == {"LSR", "LS"}
        # One is free: who of both gets it is not said, but one does.
        (node.double.root / "gold").rmdir()
        wait_until(lambda: len(node.own_groups) == 3, "a third group", PATIENCE_S)
        node.strategy({"beClass": CLASSES["beClass"]})
        batch.wait_for(f"{PREFIX}BE")
        own.wait_for(own.own_group)
        wait_until(lambda: "NOT APPLIED" not in node.status(), "a status without the problem", PATIENCE_S)


def test_restart_and_kill(node: Stand) -> None:
    node.strategy()
    batch, own, gone = (
        node.pod("batch", "BE").run(),
        node.pod("own", "LS", OWN).run(),
        node.pod("gone", "LS", OWN).run(),
    )
    for pod, group in ((batch, f"{PREFIX}BE"), (own, own.own_group), (gone, gone.own_group)):
        pod.wait_for(group)
        pod.wait_for(f"{group}/mon_groups/{pod.own_group}")
    node.wait_until_settled()
    since, groups, before = len(node.double.commands()), node.own_groups, node.of_others()
    node.restart()
    node.kill()
    node.daemon.kill()
    gone.end()
    started = batch.start()
    node.daemon.start()
    node.client.wait_until_serving(30)
    gone.remove()
    wait_until(lambda: started in node.double.tasks(f"{PREFIX}BE"), "the new process", PATIENCE_S)
    wait_until(lambda: f"pod-{gone.uid}" not in node.own_groups, "the end of the pod's group", PATIENCE_S)
    batch.wait_for(f"{PREFIX}BE/mon_groups/{batch.own_group}")
    assert node.own_groups == groups - {f"pod-{gone.uid}"}
    assert own.is_in(own.own_group)
    # Nothing is done twice.
    assert {each.text for each in node.written_by_daemons(since)} <= {None, f"{started}\n"}
    assert node.of_others() == before

    node.daemon.terminate()
    assert own.is_in(own.own_group)
    done = node.daemon.run("restore")
    assert done.returncode == 0, done.stdout
    assert node.own_groups == set()
    assert {each.parent.name for each in node.double.root.rglob(f"{PREFIX}*")} == set()
    assert batch.is_in("")
    assert own.is_in("")
    assert node.of_others() == before
    assert node.daemon.run("restore").stdout == "nothing to restore\n"
    check_nothing_of_others_was_written(node)


def test_another_writer(node: Stand) -> None:
    node.strategy()
    batch, moved, own = (
        node.pod("batch", "BE").run(),
        node.pod("moved", "BE").run(),
        node.pod("own", "LS", OWN).run(),
    )
    for pod, group in ((batch, f"{PREFIX}BE"), (moved, f"{PREFIX}BE"), (own, own.own_group)):
        pod.wait_for(group)
    node.wait_until_settled()
    foreign = min(moved.tasks)
    node.double.write("gold/tasks", str(foreign))
    node.double.write("tasks", str(min(batch.tasks)))
    node.double.write(f"{PREFIX}BE/schemata", "L3:0=7ff\nMB:8=100\n")
    (node.double.root / own.own_group).rmdir()
    (node.double.root / f"{PREFIX}LSR").rmdir()
    (node.double.root / f"{PREFIX}unknown").mkdir()
    node.wait_for_schemata("BE", "L3:0=f;8=f", "MB:0=20;8=20")
    node.wait_for_schemata("LSR", "L3:0=7ff;8=7ff", "MB:0=100;8=100")
    batch.wait_for(f"{PREFIX}BE")
    own.wait_for(own.own_group)
    assert node.schemata(f"pod-{own.uid}") == ["L3:0=3f;8=3f", "MB:0=40;8=40"]
    node.wait_for_status("default/moved", "gold")
    assert foreign in node.double.tasks("gold")
    wait_until(
        lambda: "unknown" not in node.own_groups, "the end of a group of ours that none wants", PATIENCE_S
    )
    check_nothing_of_others_was_written(node)


def test_what_the_kernel_refuses(socket_folder: Path) -> None:
    with stand(socket_folder) as node:
        # Four bits belong to one group alone, which LSR's would overlap.
        node.double.write("schemata", "L3:0=ffff;1=ffff\n")
        (node.double.root / "gold").mkdir()
        node.double.write("gold/schemata", "L3:0=f0000;1=f0000\n")
        node.double.write("gold/mode", "exclusive\n")
        node.double.deny({f"{PREFIX}BE/schemata": errno.EIO, f"{PREFIX}LS": errno.EPERM})
        node.strategy()
        batch = node.pod("batch", "BE").run()
        node.wait_for_status("resctrl.BE", "resctrl.LS", os.strerror(errno.EIO), os.strerror(errno.EPERM))
        node.wait_for_status("resctrl.LSR", "Overlaps with exclusive group")
        # Each attempt makes the group, and takes it away when the kernel has refused its values.
        wait_until(lambda: node.own_groups == set(), "no group of ours", PATIENCE_S)
        node.double.deny({})
        batch.wait_for(f"{PREFIX}BE")
        node.wait_for_schemata("LS", "L3:0=fff;1=fff", "MB:0=90;1=90")
        node.double.write("gold/mode", "shareable\n")
        node.wait_for_schemata("LSR", "L3:0=fffff;1=fffff", "MB:0=100;1=100")


def test_counters(socket_folder: Path) -> None:
    """Root and three classes have an RMID each, one is left; the processor does not count local bytes."""
    variant = Variant(caches=(0, 8), rmids=5, mon_features=("llc_occupancy", "mbm_total_bytes"))
    with stand(socket_folder, variant) as node:
        node.strategy()
        node.wait_for_schemata("BE", "L3:0=3f;8=3f", "MB:0=20;8=20")
        batch = node.pod("batch", "BE").run()
        batch.wait_for(f"{PREFIX}BE/mon_groups/{batch.own_group}")
        labels = {"namespace": "default", "pod": "batch", "group": "BE", "cache": "8"}
        assert node.metrics().of("resctrl_llc_occupancy_bytes", **labels) == 2 << 20
        before = node.metrics().of("resctrl_memory_bytes_total", scope="total", **labels)
        wait_until(
            lambda: node.metrics().of("resctrl_memory_bytes_total", scope="total", **labels) > before,
            "traffic",
        )
        assert node.metrics().of("resctrl_memory_bytes_total", scope="local") == 0
        api = runtimeproxy_grpc.RuntimeProxyStub(node.client.channel)
        answer = api.GetResctrl(runtimeproxy_pb2.GetResctrlRequest(), timeout=CALL_TIMEOUT_S)
        assert [(each.name, each.is_own) for each in answer.groups] == [
            (f"{PREFIX}{name}", True) for name in ("BE", "LS", "LSR")
        ]
        assert {
            (each.cache, each.value) for each in answer.pods[0].counters if each.name == "llc_occupancy"
        } == {
            (0, 2 << 20),
            (8, 2 << 20),
        }
        assert node.metrics().of("resctrl_counters_missing", counter="llc_occupancy") == 0
        node.double.show_counters(llc_occupancy="Unavailable", mbm_total_bytes="Error")
        found = node.metrics()
        assert not found.names() & {"resctrl_llc_occupancy_bytes", "resctrl_memory_bytes_total"}
        missing = {"llc_occupancy": "Unavailable", "mbm_total_bytes": "Error"}
        for counter, reason in missing.items():
            assert found.of("resctrl_counters_missing", counter=counter, reason=reason) == 2
        node.double.show_counters()

        late = node.pod("late", "BE").run()
        late.wait_for(f"{PREFIX}BE")
        node.wait_for_status("default/late resctrl_monitor", "RMID (num_rmids) of 5 is left", batch.own_group)
        batch.remove()
        late.wait_for(f"{PREFIX}BE/mon_groups/{late.own_group}")
        assert {key for key in node.metrics() if ("pod", "batch") in key[1] and "resctrl" in key[0]} == set()


@pytest.mark.parametrize(
    ("variant", "ls", "be"),
    [
        pytest.param(
            Variant(vendor="amd", cbm_bits=16, padded=True, single_id=True),
            ["L3:0=03ff;1=03ff", "MB:0=136;1=136"],
            ["L3:0=001f;1=001f", "MB:0=32;1=32"],
            id="amd-6.1",
        ),
        pytest.param(
            Variant(cdp=True, caches=(0,), padded=True, single_id=True),
            ["L3CODE:0=00fff", "L3DATA:0=00fff", "MB:0=90"],
            ["L3CODE:0=0003f", "L3DATA:0=0003f", "MB:0=20"],
            id="cdp-6.1",
        ),
        pytest.param(Variant(has_l3=False, rmids=0), ["MB:0=90;1=90"], ["MB:0=20;1=20"], id="bandwidth-only"),
        pytest.param(
            Variant(has_mb=False, min_cbm_bits=8), ["L3:0=fff;1=fff"], ["L3:0=ff;1=ff"], id="cache-only"
        ),
    ],
)
def test_processors_and_kernels(socket_folder: Path, variant: Variant, ls: list[str], be: list[str]) -> None:
    with stand(socket_folder, variant) as node:
        node.strategy()
        node.wait_for_schemata("LS", *ls)
        node.wait_for_schemata("BE", *be)
        refused = [each for each in node.written_by_daemons() if each.code]
        assert refused == []
