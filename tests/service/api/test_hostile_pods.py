"""Pods whose annotations, labels and names are meant to do harm: they are told of like others."""

from __future__ import annotations

import json
from typing import Any

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.qosmanager.from_api import pod_of
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.daemon.driving import Pod
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient

DEEP = '{"a":' * 3_000 + "1" + "}" * 3_000
VALUES = [
    "",
    "null",
    "NaN",
    "[]",
    "{",
    DEEP,
    "[" * 8_000,
    '"\\ud800"',
    '{"policy": "\\ud800\\u0000\\n"}',
    '{"policy": "auto", "policy": "none", "POLICY": 5}',
    '{"policy": "auto", "cfsQuotaBurstPercent": 1e400, "cpuBurstPercent": NaN}',
    '{"policy": "auto", "cfsQuotaBurstPercent": 9223372036854775808}',
    '{"policy": "auto", "cfsQuotaBurstPercent": -1, "cfsQuotaBurstPeriodSeconds": -9223372036854775809}',
    json.dumps({f"k{number}": number for number in range(1_500)}),
    "x" * 200_000,
    "-99999999999999999999",
    "1e3",
    "\u0661\u0662",
]
KEYS = [
    "koordinator.sh/cpuBurst",
    "koordinator.sh/memoryQOS",
    "koordinator.sh/cpuQOS",
    "koordinator.sh/networkQOS",
    "koordinator.sh/blkioQOS",
    "koordinator.sh/eviction-policy",
    "koordinator.sh/eviction-priority",
    "node.koordinator.sh/resctrl",
    "node.koordinator.sh/extended-resource-spec",
    "scheduling.koordinator.sh/resource-status",
]


def amounts(amount: Any) -> str:
    spec = {"requests": {"kubernetes.io/batch-cpu": amount}, "limits": {"kubernetes.io/batch-memory": amount}}
    return json.dumps({"containers": {"main": spec}})


AMOUNTS = ["9E30", "-1", "1e400", "0x10", 1e300, -1, 9223372036854775808, True, [], "\u0661", "1" * 5_000]
LABELS = {
    "koordinator.sh/priority": "99999999999999999999",
    "koordinator.sh/priority-class": "koord-\u2028",
    "koordinator.sh/eviction-enabled": "TRUE\n",
}


def run(client: CriClient, name: str, annotations: dict[str, str]) -> None:
    config = pod_sandbox_config(name, qos="LS", annotations=annotations, labels=LABELS)
    pod = Pod(client, config).run()
    request = create_container_request(pod.id, container_config("main", pod=config), config)
    client.runtime.CreateContainer(request, timeout=CALL_TIMEOUT_S)


def test_every_pod_is_told_of(client: CriClient, own_api: Any) -> None:
    names = []
    for number, value in enumerate(VALUES):
        run(client, f"value{number}", dict.fromkeys(KEYS, value))
        names.append(f"value{number}")
    for number, amount in enumerate(AMOUNTS):
        run(client, f"amount{number}", {"node.koordinator.sh/extended-resource-spec": amounts(amount)})
        names.append(f"amount{number}")
    request = api_pb2.WatchPodsRequest(snapshot_only=True)
    found = [
        pod
        for part in own_api.WatchPods(request, timeout=30, wait_for_ready=True)
        for pod in part.snapshot.pods
    ]
    assert sorted(pod.name for pod in found) == sorted(names)
    for message in found:
        pod, problems = pod_of(message)
        assert not problems
        assert pod.sub_priority is None
        assert all(0 <= amount < 1 << 63 for amount in pod.containers[0].requests.values())
