"""`core-sched` in the daemon: which pods are idle, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.cgroups import core_scheduling
from runtimeproxy.simulate.kubelet import PodCalls
from runtimeproxy.simulate.reading import pod_calls
from tests.cgroups.cookies import Cookies
from tests.lab.deadline import wait_until
from tests.policies.test_reasons import CORE_SCHED, batch, pod, run, stand_with
from tests.simulate.test_agreement import Stand
from tests.simulate.test_explanation import explained


@pytest.fixture
def stand() -> Iterator[Stand]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_scheduling, "is_supported", lambda: True)
        patch.setattr(core_scheduling, "prctl", Cookies())
        yield from stand_with(CORE_SCHED)


def calls_of(stand: Stand, manifest: object) -> PodCalls:
    (calls,) = pod_calls(json.dumps(manifest).encode(), "pod.json", stand.parts.core.node.latest)
    return calls


def idle(stand: Stand, calls: PodCalls) -> str:
    files = stand.proxy.fake_runtime.state.cgroups.files
    assert files is not None
    return files.read(calls.config.linux.cgroup_parent, "cpu.idle").strip()


def test_a_pod_is_idle_once_its_sandbox_runs(stand: Stand) -> None:
    calls = calls_of(stand, pod("grouped", "BE", {}))
    run(stand, calls)
    wait_until(lambda: idle(stand, calls) == "1", "cpu.idle")

    def kinds() -> list[str]:
        return [str(each.kind) for each in stand.proxy.audit if each.field == "cgroup[cpu.idle]"]

    wait_until(lambda: kinds()[:2] == ["pending", "changed"], "the audit")


def test_a_pod_whose_weight_is_set_is_not_idle(stand: Stand) -> None:
    calls = calls_of(stand, pod("batch", "BE", {}, batch("main")))
    pod_id = run(stand, calls)
    why = "batch-resource sets cpu.shares, which the kernel refuses while it is 1"

    def reasons() -> list[str]:
        return [each.reason for each in stand.parts.core.ledger.books.unapplied.values()]

    wait_until(lambda: any(why in each for each in reasons()), "the reason")
    assert idle(stand, calls) == "0"
    (target,) = [each for each in explained(stand, pod_id).targets if each.level == api_pb2.LEVEL_POD]
    fields = {field.name: field for field in target.fields}
    assert fields["cpu.shares"].resolved == "716"
