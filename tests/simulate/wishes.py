"""Policies that want whatever a pod's annotations say, and pods that say all kinds of things."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from hypothesis import strategies as st

from runtimeproxy.errors import RefusalError
from runtimeproxy.hooks import (
    CLEAR,
    Add,
    AtMost,
    ContainerChange,
    ContainerView,
    MountSpec,
    PodChange,
    PodView,
    Policy,
    ResourceChange,
    Scale,
)
from runtimeproxy.node.snapshot import Node

SCALARS = (
    "cpu_period_us",
    "cpu_quota_us",
    "cpu_shares",
    "memory_limit_bytes",
    "memory_swap_limit_bytes",
    "oom_score_adj",
    "cpuset_cpus",
    "cpuset_mems",
    "pids_limit",
)
CLASSES = ("rdt_class", "blockio_class")
BATCH_CPU = "kubernetes.io/batch-cpu"
ONLINE = "0-5"
"""CPUs of the test's node."""


def value_of(wish: Any) -> Any:
    if not isinstance(wish, dict):
        return CLEAR if wish == "clear" else wish
    ((role, amount),) = wish.items()
    return {"scale": Scale, "add": Add, "at_most": AtMost}[role](amount)


class Wishing(Policy):
    """Answers with the wishes in the annotation with its name, for the pod or one container."""

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        wishes = self._wishes(pod, "")
        return None if wishes is None else PodChange(**wishes, reason="wished")

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        wishes = self._wishes(container.pod, container.name)
        return None if wishes is None else ContainerChange(**wishes, reason="wished")

    def _wishes(self, pod: PodView, container: str) -> dict[str, Any] | None:
        wishes = json.loads(pod.annotations.get(f"test/{self.name}", "{}")).get(container)
        if wishes is None:
            return None
        if "refuse" in wishes:
            raise RefusalError(wishes["refuse"])
        if "raise" in wishes:
            raise ValueError("as wished")
        found: dict[str, Any] = {}
        for key, each in wishes.items():
            values = {name: value_of(wish) for name, wish in each.items()} if isinstance(each, dict) else each
            if key == "resources":
                unified = values.pop("unified", {})
                found[key] = ResourceChange(**values, unified=unified)
            elif key == "cdi_devices":
                found[key] = tuple(each)
            elif key == "mounts":
                found[key] = tuple(MountSpec(host_path=path, container_path=path) for path in each)
            else:
                found[key] = values
        return found


class First(Wishing):
    name: ClassVar[str] = "first"
    priority: ClassVar[int] = 10


class Second(Wishing):
    name: ClassVar[str] = "second"
    priority: ClassVar[int] = 60


class Dry(Wishing):
    """In dry-run."""

    name: ClassVar[str] = "dry"
    priority: ClassVar[int] = 61


_numbers = st.sampled_from([-1, 0, 1, 2, 500, 1_000, 1_024, 50_000, 100_000, 123_457, 2**20, 2**28, 2**31])
_lists = st.sampled_from(["0", "0-3", "5,1", " 2-3,", "4-9", "x", ""])
_amounts = (
    _numbers
    | st.just("clear")
    | st.builds(
        lambda role, amount: {role: amount},
        st.sampled_from(["add", "at_most"]),
        _numbers,
    )
    | st.builds(lambda ratio: {"scale": ratio}, st.sampled_from([0.5, 1.0, 1.3, 2.5]))
)
_texts = st.sampled_from(["", "a", "b", "clear"])


def _resources() -> st.SearchStrategy[dict[str, Any]]:
    scalars = {
        name: _lists | st.just("clear") | st.builds(lambda cpus: {"at_most": cpus}, _lists)
        if name.startswith("cpuset")
        else _amounts
        for name in SCALARS
    }
    classes = dict.fromkeys(CLASSES, st.sampled_from(["gold", "a/b", "clear", ""]))
    unified = st.dictionaries(st.sampled_from(["memory.high", "cpu.idle", "../x"]), st.just("1"), max_size=2)
    return st.fixed_dictionaries({}, optional={**scalars, **classes, "unified": unified})


_entries = st.dictionaries(st.sampled_from(["x", "y"]), _texts, max_size=2)
QOS_CLASS, CPUS = "koordinator.sh/qosClass", "scheduling.koordinator.sh/resource-status"
# The policies of the pod's containers see these changes.
_labels = _entries | st.sampled_from(["BE", "LS", "LSR", "clear"]).map(lambda qos: {QOS_CLASS: qos})
_annotations = _entries | st.sampled_from(['{"cpuset": "1"}', "clear"]).map(lambda cpus: {CPUS: cpus})
_cgroup = st.fixed_dictionaries({}, optional={"cpu.cfs_burst_us": _amounts, "memory.min": _numbers})
_of_pod = st.fixed_dictionaries(
    {},
    optional={
        "resources": _resources(),
        "labels": _labels,
        "annotations": _annotations,
        "cgroup_parent": st.sampled_from(["/elsewhere", "/kubepods/besteffort/other"]),
        "cgroup": _cgroup,
    },
)
_of_container = st.fixed_dictionaries(
    {},
    optional={
        "resources": _resources(),
        "annotations": _entries,
        "env": st.dictionaries(st.sampled_from(["PATH", "NEW"]), _texts, max_size=2),
        "mounts": st.lists(st.sampled_from(["/a", "/b"]), max_size=1),
        "cdi_devices": st.lists(st.sampled_from(["vendor.com/gpu=0", "vendor.com/gpu=1", "gpu"]), max_size=2),
        "cgroup": _cgroup,
    },
)
_ends = st.sampled_from([{"refuse": "not here"}, {"raise": True}])


def _wishes(names: list[str]) -> st.SearchStrategy[str]:
    rare = st.integers(0, 11)
    of_pod = st.builds(lambda end, odd, wish: end if not odd else wish, _ends, rare, _of_pod)
    of_container = st.builds(lambda end, odd, wish: end if not odd else wish, _ends, rare, _of_container)
    return st.fixed_dictionaries({}, optional={"": of_pod, **dict.fromkeys(names, of_container)}).map(
        json.dumps
    )


_cpu = st.sampled_from(["0", "100m", "0.25", "1", "2500m", "4"])
_memory = st.sampled_from(["0", "64Mi", "1Gi", "1500M", "2e9"])


@st.composite
def _container(draw: st.DrawFn, name: str) -> dict[str, Any]:
    resources: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for resource, amounts in (("cpu", _cpu), ("memory", _memory)):
        which = draw(st.sampled_from(["none", "request", "limit", "both"]))
        amount = draw(amounts)
        if which in ("request", "both"):
            resources["requests"][resource] = amount
        if which in ("limit", "both"):
            resources["limits"][resource] = amount
    env = [{"name": "PATH", "value": "/bin"}, {"name": "PATH", "value": "/usr/bin"}]
    return {"name": name, "image": "busybox", "resources": resources, "env": draw(st.sampled_from([[], env]))}


_numbered = itertools.count()

_ANNOTATIONS: Mapping[str, st.SearchStrategy[str]] = {
    "scheduling.koordinator.sh/resource-status": st.sampled_from(
        ['{"cpuset": "0-1"}', '{"cpuset": "2,4-5"}', '{"cpuset": "7-9"}', '{"cpuset": 3}', "{"]
    ),
    "node.koordinator.sh/extended-resource-spec": st.sampled_from(
        [
            json.dumps({"containers": {"a": {"requests": {BATCH_CPU: "500"}, "limits": {BATCH_CPU: "700"}}}}),
            '{"containers": {"a": {"limits": {"kubernetes.io/batch-memory": "x"}}, "b": {}}}',
            "[]",
        ]
    ),
    "koordinator.sh/cpuBurst": st.sampled_from(['{"policy": "none"}', '{"policy": "auto"}', "x"]),
    "koordinator.sh/memoryQOS": st.sampled_from(['{"policy": "auto"}', '{"minLimitPercent": 50}', "x"]),
    "scheduling.koordinator.sh/device-allocated": st.sampled_from(
        ['{"gpu": [{"minor": 0}, {"minor": 3}]}', '{"gpu": [{"minor": "x"}]}']
    ),
}


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """A Pod; its uid is another one each time."""
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    kinds = [draw(st.sampled_from(["init", "sidecar", "container"])) for _ in names[1:]]
    made = [draw(_container(name)) for name in names]
    spec: dict[str, Any] = {"containers": [made[0]], "initContainers": []}
    for container, kind in zip(made[1:], kinds, strict=True):
        if kind == "sidecar":
            container["restartPolicy"] = "Always"
        spec["containers" if kind == "container" else "initContainers"].append(container)
    number = next(_numbered)
    labels = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "koordinator.sh/qosClass": st.sampled_from(["LSE", "LSR", "LS", "BE", "SYSTEM", "odd"]),
                "koordinator.sh/priority-class": st.sampled_from(["koord-prod", "koord-batch"]),
                "runtimeproxy.koordinator.sh/skip-hookserver": st.sampled_from(["true", "false"]),
            },
        )
    )
    wishes = {f"test/{name}": _wishes(names) for name in ("first", "second", "dry")}
    annotations = draw(st.fixed_dictionaries({}, optional={**_ANNOTATIONS, **wishes}))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "namespace": draw(st.sampled_from(["default", "kube-system"])),
            "uid": f"00000000-0000-0000-0000-{number:012}",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    }
