"""Katalyst's levels where the kubelet calls the runtime itself: NRI and stand-alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc
import pytest

from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    NriAdaptation,
    NriRuntimeState,
    PodCgroups,
)
from tests.daemon.conftest import PATIENT_NRI, Daemons
from tests.daemon.test_katalyst import TABLE, Node, Nodes, Row, config
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects

pytestmark = pytest.mark.slow

STRATEGY: Final = {"cpu-burst-config": {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 30}}}
BURST: Final = {"": "30000", "LS": "30000", "LSE": "0", "SYSTEM": "30000", "BE": "0"}
"""By class, of a pod whose annotations say nothing of it: what the policy `cpu-burst` says."""
BATCH_WEIGHT: Final = "20"
"""Of 512 shares. Source: kubelet pkg/kubelet/cm/cgroup_manager_linux.go, getCPUWeight."""


@pytest.fixture
def state(socket_folder: Path, cgroup_files: CgroupFiles) -> NriRuntimeState:
    adaptation = NriAdaptation(socket_folder / "nri.sock", PATIENT_NRI)
    return NriRuntimeState(adaptation, PodCgroups(CgroupDriver.CGROUPFS, cgroup_files))


@pytest.fixture
def runtime(socket_folder: Path, state: NriRuntimeState) -> Iterator[FakeRuntime]:
    with FakeRuntime(socket_folder / "runtime.sock", state=state) as running:
        yield running


@pytest.fixture
def nodes(daemons: Daemons, cgroup_files: CgroupFiles, socket_folder: Path) -> Iterator[Nodes]:
    cgroup_files.root.mkdir(parents=True, exist_ok=True)
    made = Nodes(daemons, cgroup_files)
    yield made
    for each in made.made:
        each.close()


def configuration(runtime: FakeRuntime, state: NriRuntimeState, mode: str, on_error: str) -> str:
    lock = Path(runtime.socket_path).parent / "front-end.lock"
    return (
        f'{config(on_error=on_error)}[daemon]\nmode = "{mode}"\nlock = "{lock}"\n'
        f'[nri]\nsocket = "{state.nri.socket_path}"\n'
    )


def oom_score(node: Node, name: str) -> str:
    """What the policy wants as OOM score of a pod's container by `explain`; empty: nothing."""
    fields = {each.name: each for target in node.explain(name).targets for each in target.fields}
    claims = fields["oom_score_adj"].claims if "oom_score_adj" in fields else ()
    return next((each.value for each in claims if each.owner == "katalyst-qos"), "")


def check_values(files: CgroupFiles, row: Row, cgroup: str) -> None:
    """Those of other policies, which go by the class."""
    burst = row.burst if row.burst != "0" else BURST[row.qos]
    weight = BATCH_WEIGHT if row.qos == "BE" else "1"
    wait_until(
        lambda: (files.read(cgroup, "cpu.max.burst"), files.read(cgroup, "cpu.weight")) == (burst, weight),
        f"burst {burst} and weight {weight} of {cgroup}",
    )


@pytest.mark.parametrize("mode", ["nri", "standalone"])
def test_all_levels(
    nodes: Nodes, runtime: FakeRuntime, state: NriRuntimeState, cgroup_files: CgroupFiles, mode: str
) -> None:
    """Class, level and pool, what other policies make of the class, and what becomes of a refused pod."""
    endpoint = Path(runtime.socket_path)
    node = nodes.start(configuration(runtime, state, mode, "fallback"), endpoint)
    if mode == "nri":
        state.nri.wait_for_plugins("50-koord-runtime-proxy")
    NodeObjects(node.daemon.objects_folder).strategies(STRATEGY)
    cgroups = {name: node.run(name, row)[0] for name, row in TABLE.items()}
    pods = wait_until(lambda: found if (found := node.pods()).keys() >= TABLE.keys() else None, "all pods")
    for name, row in TABLE.items():
        pod = pods[name]
        assert (pod.qos_class, pod.katalyst.level, pod.katalyst.pool) == (row.qos, row.level, row.pool), name
        assert ("; ".join(pod.katalyst.problems)).startswith(row.problem), name
        check_values(cgroup_files, row, cgroups[name])
        assert oom_score(node, name) == (str(row.score) if row.level else ""), name
    assert "UpdateContainerResources" not in {call.method for call in runtime.recorded}
    wrong = {f"default/{name}": row.problem for name, row in TABLE.items() if row.problem}
    assert {each.pod: each.reason for each in node.status().katalyst_problems} == wrong

    node.daemon.config_file.write_text(configuration(runtime, state, mode, "reject"))
    node.daemon.restart()
    refused = TABLE["refused"]
    wait_until(lambda: refusal_by_policy(node, "refused") != "", "the other configuration")
    # What runs is neither refused nor treated otherwise.
    assert node.pods()["refused"].qos_class == "LS"
    if mode == "nri":
        wait_until(lambda: node.status().nri.is_connected, "the runtime")
        # The runtime is the last to know it.
        state.nri.wait_for_plugins("50-koord-runtime-proxy")
        before = len(state.sandboxes)
        with pytest.raises(grpc.RpcError) as error:
            node.run("late", refused)
        assert refused.problem in str(error.value.details())
        assert len(state.sandboxes) == before
        assert "late" not in node.pods()
    else:
        node.run("late", refused)
        late = wait_until(lambda: node.pods().get("late"), "the pod, which stand-alone mode does not refuse")
        assert late.qos_class == "LS"
        assert f"Pod default/late: Katalyst's level: {refused.problem}." in node.status().problems
        wait_until(lambda: refused.problem in refusal_by_policy(node, "late"), "the reason")
    check_values(cgroup_files, TABLE["reclaimed"], node.run("batch", TABLE["reclaimed"])[0])


def refusal_by_policy(node: Node, name: str) -> str:
    """Why the policy would refuse a pod that runs, by `explain`; empty if it would not."""
    answers = [policy for target in node.explain(name).targets for policy in target.policies]
    return next(
        (each.reason for each in answers if each.policy == "katalyst-qos" and "refused" in each.reason), ""
    )
