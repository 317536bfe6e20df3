"""A kubelet restarts and makes pods while BE pods are idle and their class is bounded.

The kubelet writes the weight of the BE class when it starts, each minute, and with new pods, and ends if
that fails at its start. What it logs as errors is compared with the same run on the runtime alone.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import grpc

from tests.e2e.koordinator import qos
from tests.lab.busybox_image import IMAGE
from tests.lab.deadline import wait_until

CONFIG: Final = (
    '[policies.startup-boost]\nenabled = true\n[ledger]\nopenings = "all"\n'
    '[plugins.cpu-guard]\nmode = "enforce"\n'
)
"""Of daemon and QoS manager."""
STRATEGIES: Final = {
    "cpu-guard-config": {
        "clusterStrategy": {"enable": True, "targetPressureMilliseconds": 1, "targetRunDelayPercent": 1}
    },
    "startup-boost-config": {"clusterStrategy": {"limitPercent": 300, "maxSeconds": 30}},
}
"""LS pods may not wait at all, so that the guard bounds BE pods whenever it may."""
PERIOD_S: Final = 70.0
"""The kubelet writes to the cgroups of QoS classes each minute, and no event tells. Source: kubelet
pkg/kubelet/cm/qos_container_manager_linux.go, periodicQOSCgroupUpdateInterval."""
_OF_THE_MOMENT: Final = (
    "code = Canceled desc = context canceled",
    "containerd task is in unknown state",
    "container is already in removing state",
    "code = NotFound desc = get container info",
)
"""In texts of errors that a run has or has not: the kubelet's end has cut off a call; cAdvisor has found the
cgroup of a container that has no process yet (source: cAdvisor container/containerd/handler.go); the kubelet
has removed a container twice at once, with the pod and as garbage (source: issue 131275 of Kubernetes)."""
BE, LS = "batch", "web"
"""The names of pods begin so."""
_WORKS: Final = {
    BE: "while :; do :; done",
    LS: "while :; do i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); done; sleep 0.02; done",
}
_FIRST_BOUND_S: Final = 90.0
"""The guard does not look at pods that are younger than 30 s."""
_WORKING: Final = 4
"""The first pods use CPU, and stay: by what they feel the guard decides."""


class Weight(NamedTuple):
    """Texts of `cpu.idle` and of `cpu.shares` or `cpu.weight`."""

    idle: str
    weight: str


class Stand(Protocol):
    """The node, as this module needs it."""

    patience_s: float
    pace_s: float
    """Between two looks: each of them costs CPU time that the kubelet needs."""
    as_requested: Weight
    as_idle: Weight
    """What BE pods have without the guard and with it."""

    def start_kubelet(self) -> None:
        """Starts it, and does not wait for pods."""

    def stop_kubelet(self) -> None:
        """Ends it with SIGTERM."""

    def kubelet_log(self) -> str:
        """What all kubelets of this stand have logged."""

    def put(self, pod: dict[str, Any]) -> None:
        """Adds a static pod."""

    def remove(self, name: str) -> None:
        """Takes a static pod away."""

    def running(self) -> set[str]:
        """The uids of pods with a running container."""

    def be_pods(self) -> dict[str, Weight]:
        """The cgroups of BE pods, by uid."""

    def is_bounded(self) -> bool:
        """Whether the BE class has a quota."""

    def set_strategies(self, keys: Mapping[str, object]) -> None:
        """Configures the node."""

    def restore(self) -> None:
        """Ends daemon and QoS manager, has the command `restore` take all values off, and starts them again
        without a QoS manager."""


@dataclass(frozen=True)
class Report:
    """What came of it.

    Attributes:
        made: Pods.
        starts: Of the kubelet.
        bounded: Its starts beside a bounded class.
        idle: Its starts beside idle pods.
        errors: The kubelet's, without what differs from time to time.
    """

    made: int
    starts: int
    bounded: int
    idle: int
    errors: Counter[str]

    def lines(self, direct: Report) -> list[str]:
        """The figures, and the errors beside those of a run on the runtime alone."""
        beside = f"{self.idle} beside idle pods, {self.bounded} beside a bounded class"
        counts = [(self.errors[each], direct.errors[each], each) for each in self.errors | direct.errors]
        texts = [f"{count} (without the guard {before}) x {each}" for count, before, each in sorted(counts)]
        return [f"{self.made} pods, {self.starts} starts of the kubelet: {beside}", *texts]

    def faults(self, direct: Report) -> list[str]:
        """What is wrong."""
        found = (each for each in self.errors if each not in direct.errors)
        new = [each for each in found if not any(text in each for text in _OF_THE_MOMENT)]
        faults = [f"only with the guard: {each}" for each in new]
        # The first start is that of an empty node.
        if self.idle < self.starts - 1:
            faults.append(f"{self.idle} of {self.starts} starts were beside idle pods")
        if not self.bounded:
            faults.append("no start was beside a bounded class")
        return faults


class Restarts:
    """Restarts a kubelet, and makes pods while it is down and while it runs, half of them BE.

    Args:
        total: Pods that are made.
        most: How many stay.
        strategies: Of the guard, which are in force.
    """

    def __init__(
        self,
        stand: Stand,
        restarts: int,
        total: int,
        most: int,
        *,
        is_guarded: bool,
        strategies: Mapping[str, object] = STRATEGIES,
    ) -> None:
        self._stand = stand
        self._strategies = strategies
        self._starts = restarts + 1
        self._total = total
        self._most = most
        self._is_guarded = is_guarded
        self._names: deque[str] = deque()
        self._made = 0

    def run(self) -> Report:
        """Raises TimeoutError if pods do not run, or values do not come."""
        stand, bounded, idle = self._stand, 0, 0
        for number in range(self._starts):
            self._make(self._total * (2 * number + 1) // (2 * self._starts))
            bounded += stand.is_bounded()
            idle += any(weight.idle == "1" for weight in stand.be_pods().values())
            stand.start_kubelet()
            self._wait()
            self._make(self._total * (number + 1) // self._starts)
            self._wait()
            while len(self._names) > self._most:
                stand.remove(self._names[_WORKING])
                del self._names[_WORKING]
            self._wait()
            if self._is_guarded and number == 0:
                # If it never comes, the report says so.
                with suppress(TimeoutError):
                    self._wait_until(stand.is_bounded, "the bound", _FIRST_BOUND_S)
            if number < self._starts - 1:
                stand.stop_kubelet()
        threading.Event().wait(PERIOD_S)
        self._wait()
        report = Report(self._made, self._starts, bounded, idle, errors(stand.kubelet_log()))
        if self._is_guarded:
            self._give_back()
        while self._names:
            stand.remove(self._names.popleft())
        self._wait()
        self._wait_until(lambda: not stand.be_pods(), "the end of the pods' cgroups")
        return report

    def _give_back(self) -> None:
        """The strategy goes, comes, and then the program goes: no value stays behind."""
        stand = self._stand
        stand.set_strategies({})
        self._wait_for_weights(stand.as_requested)
        self._wait_until(lambda: not stand.is_bounded(), "the end of the bound")
        stand.set_strategies(self._strategies)
        self._wait_for_weights(stand.as_idle)
        stand.restore()
        self._wait_for_weights(stand.as_requested)

    def _make(self, up_to: int) -> None:
        while self._made < up_to:
            pod = pod_document(self._made)
            self._stand.put(pod)
            self._names.append(pod["metadata"]["name"])
            self._made += 1

    def _wait(self) -> None:
        """Until exactly these pods run, and the BE pods of them are idle."""
        stand, uids = self._stand, {uid_of(name) for name in self._names}

        def run_exactly() -> bool:
            # A busy runtime may answer too late.
            with suppress(grpc.RpcError):
                return stand.running() == uids
            return False

        self._wait_until(run_exactly, "the pods' containers")
        if self._is_guarded and any(name.startswith(LS) for name in self._names):
            self._wait_for_weights(stand.as_idle)

    def _wait_for_weights(self, wanted: Weight) -> None:
        stand = self._stand
        uids = {uid_of(name) for name in self._names if name.startswith(BE)}
        found: dict[str, Weight] = {}

        def are_so() -> bool:
            found.clear()
            found.update(stand.be_pods())
            return all(found.get(uid) == wanted for uid in uids)

        try:
            self._wait_until(are_so, "weights")
        except TimeoutError:
            others = {uid: weight for uid, weight in found.items() if weight != wanted}
            raise AssertionError(f"not {wanted}: {others}") from None

    def _wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        stand = self._stand
        wait_until(condition, what, timeout_s or stand.patience_s, stand.pace_s)


def uid_of(name: str) -> str:
    return f"{name}-uid"


def pod_document(number: int) -> dict[str, Any]:
    """A static pod; every other one is BE."""
    kind = (BE, LS)[number % 2]
    works = number < _WORKING
    resources: dict[str, Any] = {}
    if kind == LS:
        resources["requests"] = {"cpu": "10m", "memory": "8Mi"}
        # Throttled seconds tell the guard nothing.
        resources["limits"] = {"memory": "64Mi"} | ({} if works else {"cpu": "300m"})
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", _WORKS[kind]] if works else ["/bin/sleep", "1000000"],
        "resources": resources,
    }
    name = f"{kind}-{number}"
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": uid_of(name),
        "labels": qos("BE" if kind == BE else "LS"),
    }
    spec = {"hostNetwork": True, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


_ERROR: Final = re.compile(r"^E\d{4} [\d:.]+ +\d+ [\w.-]+:\d+\] ", re.MULTILINE)
_RECORD: Final = re.compile(r"^[IWEF]\d{4} ", re.MULTILINE)
"""Source: k8s.io/klog v2, klog.go, formatHeader."""
_MESSAGE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_REASON: Final = re.compile(r' err=(?:"((?:[^"\\]|\\.)*)"|<\n(.*?)\n >)', re.DOTALL)
_VARIABLE: Final = re.compile(r'\\+"[^"\\]*\\+"|"[^"]*"|[0-9a-f]{12,}|/\S+|\d+')

_SAME_AGAIN: Final = re.compile(r"(\[[^]]*\])(?:, \1)+")
"""In a list with one entry for each pod or container."""


def errors(log: str) -> Counter[str]:
    """A program's errors by message and reason, without what differs from time to time.

    Source: k8s.io/klog v2, klogr and textlogger: what a structured record looks like.
    """
    found: Counter[str] = Counter()
    for begin in _ERROR.finditer(log):
        end = _RECORD.search(log, begin.end())
        text = log[begin.end() : end.start() if end is not None else len(log)].rstrip()
        message, reason = _MESSAGE.match(text), _REASON.search(text)
        parts = [message.group(1) if message is not None else text]
        if reason is not None:
            parts.append(" ".join((reason.group(1) or reason.group(2)).split()))
        found[_SAME_AGAIN.sub(r"\1", _VARIABLE.sub("*", ": ".join(parts)))] += 1
    return found
