"""Pods of manifests, and what is wrong with those that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.documents.reading import InputError, parse_documents
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import KubeQoSClass
from runtimeproxy.simulate.manifests import ContainerKind, read_pods
from runtimeproxy.simulate.reading import pod_calls
from runtimeproxy.simulate.simulation import simulate

FULL = {"limits": {"cpu": "1", "memory": "1Gi"}}
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main"}]}}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"status": {"qosClass": "Guaranteed"}}, KubeQoSClass.GUARANTEED),
        ({"spec": {"containers": [{"resources": FULL}]}}, KubeQoSClass.GUARANTEED),
        (
            {"spec": {"containers": [{"resources": {**FULL, "requests": {"cpu": "1000m"}}}]}},
            KubeQoSClass.GUARANTEED,
        ),
        (
            {"spec": {"containers": [{"resources": {**FULL, "requests": {"cpu": "500m"}}}]}},
            KubeQoSClass.BURSTABLE,
        ),
        (
            {"spec": {"containers": [{"resources": {**FULL, "requests": {"cpu": "0"}}}]}},
            KubeQoSClass.BURSTABLE,
        ),
        ({"spec": {"containers": [{"resources": FULL}, {}]}}, KubeQoSClass.BURSTABLE),
        ({"spec": {"containers": [{"resources": FULL}], "initContainers": [{}]}}, KubeQoSClass.BURSTABLE),
        ({"spec": {"containers": [{"resources": {"requests": {"cpu": "0"}}}]}}, KubeQoSClass.BEST_EFFORT),
        (
            {"spec": {"containers": [{"resources": {"requests": {"batch-cpu": "1"}}}]}},
            KubeQoSClass.BEST_EFFORT,
        ),
        ({}, KubeQoSClass.BEST_EFFORT),
    ],
)
def test_kubernetes_qos_class_of_a_pod(pod: dict[str, Any], expected: KubeQoSClass) -> None:
    for key in ("containers", "initContainers"):
        for number, container in enumerate(pod.get("spec", {}).get(key, [])):
            container.setdefault("name", f"{key}-{number}".lower())
    (found,) = read_pods([{"kind": "Pod", **pod}])
    assert found.qos is expected


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"])
def test_the_pod_of_a_workload(kind: str) -> None:
    document = {
        "kind": kind,
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"template": TEMPLATE},
    }
    (pod,) = read_pods([document])
    assert (pod.source, pod.namespace, pod.name) == (f"{kind} shop/web", "shop", "web")
    assert pod.labels == {"app": "web"}
    assert [each.name for each in pod.containers] == ["main"]


def test_a_cron_job_a_list_and_other_objects() -> None:
    cron = {
        "kind": "CronJob",
        "metadata": {"name": "c"},
        "spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}},
    }
    pod = {"kind": "Pod", "metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "x"}]}}
    found = read_pods([{"kind": "List", "items": [cron, {"kind": "Service"}]}, pod])
    assert [each.name for each in found] == ["c", "p-"]
    with pytest.raises(InputError, match="found Service; give one of"):
        read_pods([{"kind": "Service"}])


def test_containers_are_in_the_order_of_their_creation_and_requests_follow_limits() -> None:
    spec = {
        "containers": [
            {"name": "main", "resources": {"limits": {"cpu": "2"}, "requests": {"memory": "1Ki"}}}
        ],
        "initContainers": [{"name": "setup"}, {"name": "mesh", "restartPolicy": "Always"}],
    }
    (pod,) = read_pods([{"kind": "Pod", "spec": spec}])
    assert [(each.name, each.kind) for each in pod.containers] == [
        ("setup", ContainerKind.INIT),
        ("mesh", ContainerKind.SIDECAR),
        ("main", ContainerKind.REGULAR),
    ]
    assert pod.containers[2].requests == {"cpu": 2000, "memory": 1024}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no pod: it is empty; give one of Pod, "),
        ("kind: Service", "has no pod: found Service; give one of Pod, "),
        ("kind: Depolyment", "has no pod: found Depolyment; give one of Pod, "),
        ("[]", "is a list, not a Kubernetes object"),
        ("a: b", "has no kind, so it is not a Kubernetes object"),
        ("kind: Pod\nspec: {containers: [{name: a, image: [}]}", "line 2 column 39: "),
        ("kind: Pod\nspec: 3", "spec: is a number, not a mapping"),
        ("kind: Pod\nspec: {containers: 3}", "spec.containers: is a number, not a list"),
        (
            "kind: Pod\nspec: {containers: []}",
            "spec.containers: Pod default/(without a name) has no container",
        ),
        ("kind: Pod\nspec: {initContainers: [{name: a}]}", "spec.containers: "),
        ("kind: Pod\nspec: {containers: [{}]}", "spec.containers[0].name: is missing"),
        (
            "kind: Pod\nspec: {containers: [{name: a}, {name: a}]}",
            "spec.containers[1].name: 'a' is there twice",
        ),
        (
            "kind: Pod\nspec: {containers: [{name: a, resources: {limits: {cpu: 2x}}}]}",
            "spec.containers[0].resources.limits.cpu: is not a quantity: '2x'",
        ),
        (
            "kind: Pod\nspec: {containers: [{name: a, resources: {limits: {cpu: 1}, requests: {cpu: 2}}}]}",
            "spec.containers[0].resources.requests.cpu: is above the limit",
        ),
        (
            "kind: List\nitems:\n- kind: Job\n  spec: {template: {metadata: {labels: {a: 1}}}}",
            "items[0].spec.template.metadata.labels[a]: is a number, not a text",
        ),
        ("kind: Pod\n---\nkind: Pod\nspec: {priority: high}", "document 2.spec.priority: is a text, "),
        ("kind: Pod\nmetadata: &a {name: x}", "line 2 column 11: anchors are not allowed"),
        ('{"config": {"metadata": {}}}', "is a RunPodSandboxRequest without config.metadata.name"),
        ('{"config": {"metadata": 3}}', "is not a RunPodSandboxRequest in JSON: "),
        (
            '{"sandbox_config": {}, "config": {"envs": [{"value": []}]}}',
            "is not a CreateContainerRequest in ",
        ),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        pod_calls(text.encode(), "x", Node())
    assert str(caught.value).startswith(reason)


def test_recorded_requests() -> None:
    sandbox = '{"config": {"metadata": {"name": "p", "namespace": "n"}, "logDirectory": "/l"}}'
    container = (
        '{"podSandboxId": "s", "sandboxConfig": {"metadata": {"name": "p"}}, '
        '"config": {"metadata": {"name": "c"}, "envs": [{"key": "A", "value": "b c"}], '
        '"linux": {"resources": {"cpu_shares": "7"}}}}'
    )
    first, second = pod_calls(f"{sandbox}\n---\n{container}".encode(), "calls.json", Node())
    assert first.runs_sandbox
    assert first.config.log_directory == "/l"
    assert not second.runs_sandbox
    config = second.containers[0].config
    assert (config.envs[0].value, config.linux.resources.cpu_shares) == (b"b c", 7)


def test_several_documents_are_several_pods() -> None:
    documents = parse_documents(b"kind: Pod\n---\nkind: Pod\n")
    assert len(read_pods(documents)) == 2


_scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text()
_NAMES = """
kind metadata spec template containers initContainers name labels resources limits requests cpu memory env
value items config sandbox_config linux envs key annotations overhead priority status qosClass
"""
_names = st.sampled_from(_NAMES.split())
_values = st.recursive(
    _scalars | st.sampled_from(["Pod", "List", "Job", "1", "Always"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names | st.text(), inner, max_size=5),
    max_leaves=20,
)


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """A manifest or a request in which something is replaced by anything."""
    container = {"name": "a", "resources": {"limits": {"cpu": "1"}}, "env": [{"name": "A", "value": "b"}]}
    pod = {"kind": "Pod", "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    call = {"sandbox_config": {}, "config": {"metadata": {"name": "x"}, "envs": [{"key": "a", "value": "b"}]}}
    document: Any = draw(st.sampled_from([pod, {"kind": "List", "items": [pod]}, call]))
    parts: list[tuple[Any, Any]] = []
    pending = [json.loads(json.dumps(document))]
    root = pending[0]
    while pending:
        part = pending.pop()
        for key in part if isinstance(part, dict) else range(len(part)):
            parts.append((part, key))
            if isinstance(part[key], dict | list):
                pending.append(part[key])
    part, key = draw(st.sampled_from(parts))
    part[key] = draw(_values)
    return json.dumps(root).encode()


@given(_damaged() | st.binary() | _values.map(lambda value: json.dumps(value).encode()), st.booleans())
@settings(max_examples=150)
def test_whatever_a_text_is_it_has_pods_or_a_reason(data: bytes, webhook: bool) -> None:
    calls, reason = [], ""
    try:
        calls = pod_calls(data, "x", Node(), webhook=webhook)
    except InputError as error:
        reason = str(error)
    assert bool(calls) is not bool(reason)
    assert "\n" not in reason
    assert len(reason) < 1000
    simulate(calls, [], Node())
