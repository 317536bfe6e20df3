"""All built-in policies at once on pods of all classes: conflicts, and values that are given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from policies import BUILT_IN
from tests.lab import cgroup_v1
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod
from tests.lab.pods import PodSpec
from tests.modes.pods import KINDS, specs_of
from tests.modes.runs import Mode, Node, burst_strategy, node, running

NAMES: Final = tuple(
    getattr(import_module(module), name).name
    for module, _, name in (each.partition(":") for each in BUILT_IN)
)
"""The names of all built-in policies."""
_CLASS: Final[Mapping[str, object]] = {
    "cpuQOS": {"enable": True, "groupIdentity": 2},
    "memoryQOS": {"enable": True, "minLimitPercent": 20, "lowLimitPercent": 40, "wmarkRatio": 95},
}
STRATEGIES: Final[Mapping[str, object]] = {
    **burst_strategy(30),
    "resource-qos-config": {
        "clusterStrategy": {
            "policies": {"cpuPolicy": "groupIdentity"},
            "lsrClass": _CLASS,
            "lsClass": _CLASS,
            "beClass": {**_CLASS, "cpuQOS": {"enable": True, "groupIdentity": -1}},
        }
    },
    "system-config": {"clusterStrategy": {"watermarkScaleFactor": 15}},
    "resource-threshold-config": {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 65}},
}
"""Strategies for all that policies can do on this machine, and for more."""
ANNOTATIONS: Final[Mapping[str, str]] = {
    "koordinator.sh/cpuBurst": '{"policy": "cpuBurstOnly", "cpuBurstPercent": 25}',
    "koordinator.sh/memoryQOS": '{"policy": "auto", "minLimitPercent": 10}',
    "koordinator.sh/cpuQOS": '{"groupIdentity": 1}',
    "koordinator.sh/oom-score-adj": "500",
    "koordinator.sh/oom-score-adj-spec": '{"main": 600}',
}
"""Of each pod, beside those of its kind."""
CREATED_ONLY: Final = frozenset({"memory.memsw.limit_in_bytes"})
"""Files that a runtime writes by a value in the message that creates a container, and that stay with it."""
SETTLED_S: Final = 90.0
"""At most, on a busy machine."""


def specs(folder: Path, of_each: int) -> list[PodSpec]:
    """So many pods of each kind, with the annotations for all policies."""
    return [
        replace(spec, annotations={**ANNOTATIONS, **spec.annotations})
        for kind in KINDS
        for spec in specs_of(kind, folder, of_each)
    ]


@contextmanager
def daemon(mode: Mode, runtime: Containerd, config: str = "") -> Iterator[Node]:
    """The daemon in this mode with all policies on, and strategies for them."""
    own = {"cpu-burst", "cpu-normalization", "group-identity", "memory-qos"}
    more = "".join(
        f"[policies.{name}]\nenabled = true\n" for name in NAMES if name not in (*own, "katalyst-pools")
    )
    more += "[ledger]\nlower_memory_limits = true\n"
    with node(mode, runtime, config=more + config) as here:
        here.objects.strategies(STRATEGIES)
        yield here


def texts(pods: Sequence[RunningPod]) -> dict[str, str]:
    """The raw text of each file that policies write, by `POD[/CONTAINER] FILE`, and the OOM scores."""
    found: dict[str, str] = {}
    for pod in pods:
        places = {pod.spec.name: pod.spec.cgroup_parent}
        places |= {f"{pod.spec.name}/{name}": pod.container_cgroup(name) for name in pod.container_ids}
        for place, cgroup in places.items():
            for path, text in cgroup_v1.texts(cgroup, deep=False).items():
                controller, name = path.split("/", 1)[0], path.rsplit("/", 1)[1]
                if name not in CREATED_ONLY:
                    found[f"{place} {controller}/{name}"] = text.decode()
        for name in pod.container_ids:
            score = Path("/proc", str(pod.main_pid(name)), "oom_score_adj").read_text()
            found[f"{pod.spec.name}/{name} oom_score_adj"] = score
    return found


def unreported(here: Node, pods: Sequence[RunningPod]) -> list[str]:
    """What `explain` shows as other than wanted, or as lost to another owner, without any reason."""
    found: list[str] = []
    with CriClient(here.daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        for pod in pods:
            request = api_pb2.ExplainRequest(pod=pod.spec.uid)
            for target in api.Explain(request, timeout=CALL_TIMEOUT_S).targets:
                place = f"{pod.spec.name}/{target.container or 'pod'}"
                found += [f"{place} {text}" for field in target.fields for text in _silent(field)]
    return found


def _silent(field: api_pb2.ExplainedField) -> Iterator[str]:
    effects = api_pb2.ExplainedClaim
    for claim in field.claims:
        without = (effects.EFFECT_LOST, effects.EFFECT_VOID, effects.EFFECT_CLAMPED)
        if claim.effect in without and not claim.effect_reason:
            yield f"{field.name}: {claim.owner} has no effect, and no reason"
    told = field.problem or field.unapplied or field.HasField("yielded") or field.is_observed_only
    if field.is_different and not told:
        yield f"{field.name}: {field.observed.strip()}, not {field.applied}, without a reason"
    has_both = field.HasField("resolved") and field.HasField("observed_value")
    if has_both and field.resolved != field.observed_value and not told:
        yield f"{field.name}: {field.observed_value} in the file, {field.resolved} resolved, without a reason"


def different(now: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    changed = [place for place, text in before.items() if now.get(place) != text]
    return [f"{place}: {now.get(place)!r}, not {before[place]!r}" for place in changed]


def without_daemon(runtime: Containerd, folder: Path, of_each: int) -> dict[str, str]:
    """The texts of these pods where no daemon runs."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    with (
        CriClient(runtime.socket) as client,
        running(client, specs(folder / "out", of_each), logs) as pods,
    ):
        return texts(pods)


def faults(
    mode: Mode, runtime: Containerd, kubelets: Mapping[str, str], folder: Path, of_each: int
) -> list[str]:
    """What is not reported, or not given back, of pods with all policies on.

    `kubelets`: the texts of `without_daemon`.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True)
    with (
        CriClient(runtime.socket) as direct,
        daemon(mode, runtime) as here,
        running(here.client, specs(folder / "out", of_each), logs, remover=direct) as pods,
    ):
        # Stand-alone, a pod that has just started may not have been looked at.
        wait_until(lambda: _have_scores(texts(pods), kubelets), "the OOM scores of all containers")
        found = [f"not reported: {each}" for each in _settled(lambda: unreported(here, pods))]
        with_policies = texts(pods)
        if not different(with_policies, kubelets):
            found.append("the policies have changed nothing")
        _command(here, "off")
        left = _settled(lambda: different(texts(pods), kubelets))
        found += [f"not given back by switching off: {each}" for each in left]
        _command(here, "reset")
        left = _settled(lambda: different(texts(pods), with_policies))
        found += [f"not as before, on again: {each}" for each in left]
        here.daemon.terminate()
        done = here.daemon.run("restore")
        if done.returncode != 0:
            found.append(f"restore: {done.stdout}{done.stderr}")
        return found + [f"not restored: {each}" for each in different(texts(pods), kubelets)]


def _have_scores(now: Mapping[str, str], kubelets: Mapping[str, str]) -> bool:
    """Whether each container has another score: that of its annotation, or of the policy `lab`."""
    return all(now[place] != text for place, text in kubelets.items() if place.endswith("oom_score_adj"))


def _command(here: Node, mode: str) -> None:
    """Gives all policies this mode by command."""
    for name in (*NAMES, "lab"):
        done = here.daemon.run("policy", name, mode)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)


def _settled(differences: Callable[[], list[str]]) -> list[str]:
    """What still differs when the values have had their time."""
    with suppress(TimeoutError):
        wait_until(lambda: not differences(), "the values", SETTLED_S)
    return differences()
