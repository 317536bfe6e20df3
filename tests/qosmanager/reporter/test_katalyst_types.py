"""Katalyst's own Go types read the document, and lose nothing of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from runtimeproxy.qosmanager.plugin import PluginContext
from runtimeproxy.qosmanager.plugins.katalyst_reporter import KatalystReporter
from runtimeproxy.qosmanager.reporter.builtin import BUILT_IN
from runtimeproxy.qosmanager.reporter.fields import FieldReporter, ObjectSection, ReportedField, View
from runtimeproxy.qosmanager.snapshot import PoolMember, Snapshot
from tests.lab.programs import go_tool, run
from tests.qosmanager.reporter.nodes import CPUS, GIB, MEMBERS, PODS, pod, pools, snapshot

pytestmark = pytest.mark.golang


class AllFields(FieldReporter):
    """Gives what the built-in reporters do not."""

    name = "all-fields"

    def report(self, view: View) -> Sequence[ReportedField]:
        usage = {"cpu": "1500m", "memory": "2Gi"}
        siblings = [{"type": "GPU", "name": "1", "attributes": [{"name": "link", "value": "8"}]}]
        condition = {
            "type": "AgentReady",
            "status": "True",
            "lastHeartbeatTime": "2026-01-02T03:04:05Z",
            "reason": "Ready",
            "message": "it works",
        }
        metrics = {
            "updateTime": "2026-01-02T03:04:05Z",
            "nodeMetric": {"numaUsage": [{"numaId": 1, "usage": usage}], "genericUsage": usage},
            "groupMetric": [{"QoSLevel": "shared_cores", "genericUsage": usage, "podList": ["a/b"]}],
        }
        return [
            ReportedField(ObjectSection.METADATA, "labels", {"example.com/a": "b"}),
            ReportedField(
                ObjectSection.STATUS, "topologyZone", [{"type": "GPU", "name": "0", "siblings": siblings}]
            ),
            ReportedField(ObjectSection.STATUS, "conditions", [condition]),
            ReportedField(ObjectSection.STATUS, "nodeMetricStatus", metrics),
        ]


def large() -> Snapshot:
    """250 pods, a third of them bound to NUMA nodes."""
    names = [f"pod-{number}" for number in range(250)]
    bound = {
        name: PoolMember("shared_cores", "share-NUMA2", frozenset({4, 5}), numa_nodes=frozenset({2}))
        for name in names[::3]
    }
    of_pods = (*PODS, *(pod(name) for name in names))
    return snapshot(of_pods=of_pods, cpu_pools=pools(members={**MEMBERS, **bound}))


def document_of(of_node: Snapshot) -> str:
    plugin = KatalystReporter(built_in=[*BUILT_IN, AllFields])
    report = plugin.run(of_node, plugin.setup(PluginContext(gates={}))).node_report
    assert report is not None
    return report.document


def without_nulls(value: Any) -> Any:
    """Go writes some times that are not set, such as that of the creation."""
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "of_node",
    [
        pytest.param(snapshot(), id="usual"),
        pytest.param(snapshot(reserved={"cpu": 2_501, "memory": 1_500 * 1_000 * 1_000}), id="odd-amounts"),
        pytest.param(snapshot(cpu_pools=None), id="no-pools"),
        pytest.param(snapshot(usage={}, memory_bytes={0: 1, 1: 1_024, 2: 3_000, 9: GIB}), id="odd-memory"),
        pytest.param(replace(snapshot(), node=replace(snapshot().node, cpus=CPUS[:1])), id="one-cpu"),
        pytest.param(replace(snapshot(), node=replace(snapshot().node, cpus=(), capacity={})), id="no-cpus"),
        pytest.param(snapshot(of_pods=(replace(pod("<&>\u2028é"), uid="cache"),)), id="odd-names"),
        pytest.param(large(), id="250-pods"),
    ],
)
def test_no_field_is_lost(of_node: Snapshot) -> None:
    document = document_of(of_node)

    ended = run((go_tool("katalyst-types"),), stdin=document)

    assert ended.returncode == 0, ended.stderr
    assert without_nulls(json.loads(ended.stdout)) == json.loads(document)


@pytest.mark.parametrize("part", ['"allocatables": {}', '"used": 1'])
def test_a_field_that_the_types_lack_is_noticed(part: str) -> None:
    text = document_of(snapshot()).replace('"resources":{"', f'"resources":{{{part},"', 1)

    ended = run((go_tool("katalyst-types"),), stdin=text)

    assert ended.returncode == 1
    assert "unknown field" in ended.stderr
