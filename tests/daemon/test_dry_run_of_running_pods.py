"""What policies in dry-run would change of pods that run already, and answers that cannot be used."""

from __future__ import annotations

import json
import signal

import pytest

from runtimeproxy.testing import CgroupFiles
from tests.daemon.conftest import Daemons
from tests.daemon.driving import batch_pod, pod
from tests.daemon.failures.scene import write_policy
from tests.daemon.test_audit_history import entries
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

BODY = "def container(self, container, node):\n    return ContainerChange({change})"
BVT = "cgroup[cpu.bvt_warp_ns]"


def reload(daemon: ProxyProcess) -> None:
    daemon.forget_states()
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_state("READY=1")


def write_strategy(daemon: ProxyProcess, identity: int) -> None:
    """The group identity of BE pods."""
    strategy = {"clusterStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": identity}}}}
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
        "data": {"resource-qos-config": json.dumps(strategy)},
    }
    daemon.objects_folder.mkdir(exist_ok=True)
    new = daemon.objects_folder / "config.new"
    new.write_text(json.dumps(config))
    new.replace(daemon.objects_folder / "config.json")


def start(daemon: ProxyProcess) -> None:
    """Starts it and waits until it knows the strategies: else the calls may be decided without them."""

    def are_strategies_known() -> bool:
        rows = map(str.split, daemon.run("status").stdout.splitlines())
        return any(row[:2] == ["strategies", "known"] for row in rows)

    daemon.start()
    wait_until(are_strategies_known, "the strategies")


def would_change(daemon: ProxyProcess) -> list[tuple[str, str, str]]:
    found = entries(daemon, "--policy", "group-identity", "--kind", "would-change", "--pod", "default/batch")
    assert {each["field"] for each in found} <= {"cgroup[cpu.bvt_warp_ns]"}
    return [(each["hook"], each["before"], each["after"]) for each in found]


def wait_for_entries(daemon: ProxyProcess, wanted: list[tuple[str, str, str]]) -> None:
    found: list[tuple[str, str, str]] = []

    def are_there() -> bool:
        found[:] = would_change(daemon)
        return found == wanted

    try:
        wait_until(are_there, "the entries")
    except TimeoutError as error:
        raise AssertionError(f"{found}, not {wanted}") from error


@pytest.mark.slow
def test_a_changed_strategy_tells_what_it_would_change(daemons: Daemons, cgroup_files: CgroupFiles) -> None:
    daemon = daemons.prepare("[policies.group-identity]\nmode = 'dry-run'\n")
    write_strategy(daemon, -1)
    start(daemon)
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        cgroup_files.make(made.config.linux.cgroup_parent)
        made.run().create().start()
        created = [("pre_run_pod_sandbox", "", "-1"), ("pre_create_container", "", "-1")]
        wait_for_entries(daemon, created)
        cgroup_files.write(made.config.linux.cgroup_parent, "cpu.bvt_warp_ns", "0\n")
        write_strategy(daemon, 1)
        changed = [("evaluate_pod", "0", "1"), ("evaluate_container", "", "1")]
        wait_for_entries(daemon, created + changed)
        # What was told once is not told again.
        before = would_change(daemon)
        reload(daemon)
        daemon.restart()
        write_policy(daemon, "reads", BODY.format(change="problems=('x',)"))
        reload(daemon)
        wait_until(lambda: entries(daemon, "--policy", "reads"), "an evaluation")
        assert would_change(daemon) == before


def test_explain_shows_what_the_file_has_now(daemons: Daemons, cgroup_files: CgroupFiles) -> None:
    daemon = daemons.prepare("[policies.group-identity]\nmode = 'dry-run'\n")
    write_strategy(daemon, -1)
    start(daemon)
    with CriClient(daemon.socket) as client:
        made = batch_pod(client)
        cgroup_files.make(made.config.linux.cgroup_parent)
        made.run().create().start()
        cgroup_files.write(made.config.linux.cgroup_parent, "cpu.bvt_warp_ns", "0\n")
        found = json.loads(daemon.run("explain", "default/batch", "--output", "json").stdout)
    of_pod = next(each for each in found["targets"] if each["level"] == "LEVEL_POD")
    field = next(each for each in of_pod["fields"] if each["name"] == "cpu.bvt_warp_ns")
    assert (field["claims"][0]["value"], field["observedValue"]) == ("-1", "0")


@pytest.mark.parametrize("mode", ["dry-run", pytest.param("enforce", marks=pytest.mark.slow)])
def test_an_answer_out_of_range_is_left_out_in_audit_and_status(daemons: Daemons, mode: str) -> None:
    daemon = daemons.prepare(f"[policies.reads]\nmode = '{mode}'\n")
    write_policy(daemon, "reads", BODY.format(change=""))
    daemon.start()
    with CriClient(daemon.socket) as client:
        pod(client, "web").run().create().start()
        write_policy(daemon, "reads", BODY.format(change="cgroup={'cpu.bvt_warp_ns': 9999}"))
        reload(daemon)
        wait_until(lambda: entries(daemon, "--policy", "reads", "--kind", "left-out"), "the entry")
        (entry,) = entries(daemon, "--policy", "reads", "--kind", "left-out")
        assert (entry["pod"], entry["container"], entry["field"]) == ("web", "main", BVT)
        assert (entry["after"], entry["reason"]) == ("9999", "is not in -1 to 2")
        status = daemon.run("status").stdout
    (row,) = (line for line in status.splitlines() if line.startswith("reads "))
    assert "  1       left-out " in row
    assert row.endswith(f", {BVT} of default/web/main: is not in -1 to 2")
