"""Which pods may be evicted, and what becomes of an eviction by the API server."""

from __future__ import annotations

import pytest

from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.owners import Owner
from runtimeproxy.pods.records import PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.qos import QoSClass
from runtimeproxy.service.eviction import Bounds, Evicted, Evictor, Method, Outcome, Result, refusal

BOUNDS = Bounds(2, 60.0, 300.0)
OWNER = Owner("memory-evict", may_evict=True)


@pytest.mark.parametrize(
    ("qos", "history", "reason", "retry_s"),
    [
        pytest.param(QoSClass.BE, [], None, None, id="a-first-one"),
        pytest.param(QoSClass.SYSTEM, [], "pods of class SYSTEM are never evicted", None, id="system"),
        pytest.param(QoSClass.LSE, [], "pods of class LSE are never evicted", None, id="lse"),
        pytest.param(QoSClass.LSR, [], None, None, id="lsr"),
        pytest.param(QoSClass.BE, [("u1", 900.0)], "it was evicted 100 s ago", 200.0, id="the-same-again"),
        pytest.param(QoSClass.BE, [("u1", 700.0)], None, None, id="the-same-later"),
        pytest.param(QoSClass.BE, [("a", 950.0)], None, None, id="one-of-two"),
        pytest.param(
            QoSClass.BE, [("a", 950.0), ("b", 970.0)], "2 pods were evicted just now", 10.0, id="two-of-two"
        ),
        pytest.param(QoSClass.BE, [("a", 940.0), ("b", 970.0)], None, None, id="one-is-long-ago"),
    ],
)
def test_refusals(
    qos: QoSClass, history: list[tuple[str, float]], reason: str | None, retry_s: float | None
) -> None:
    found = refusal(qos, "u1", [Evicted(at_s, uid) for uid, at_s in history], BOUNDS, 1000.0)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert found.outcome is Outcome.REFUSED
        assert found.reason.startswith(reason)
        assert found.retry_s == retry_s


def test_a_bound_of_none() -> None:
    found = refusal(QoSClass.BE, "u1", [], Bounds(0, 60.0, 0.0), 1000.0)
    assert found is not None
    assert found.retry_s is None


class NoRuntime:
    async def stop_container(self, identity: str, grace_s: int, timeout_s: float) -> None:
        raise AssertionError(identity)


@pytest.mark.parametrize(
    ("outcome", "kind", "is_counted"),
    [
        (Outcome.EVICTED, AuditKind.CHANGED, True),
        (Outcome.REFUSED, AuditKind.LEFT_OUT, False),
        (Outcome.FAILED, AuditKind.FAILED, True),
    ],
)
async def test_by_the_api_server(outcome: Outcome, kind: AuditKind, is_counted: bool) -> None:
    audit: list[AuditEntry] = []
    store = PodStore()
    pod = PodRecord(id="s1", uid="u1", namespace="shop", name="web")
    store.pods.put(pod)
    evictor = Evictor(store, NoRuntime(), audit.append, BOUNDS, lambda: 1000.0)
    asked: list[str] = []

    async def by_api(found: PodRecord, reason: str) -> Result:
        asked.append(f"{found.uid} {reason}")
        return Result(outcome, "", method=Method.EVICTION_API)

    evictor.by_api = by_api
    result = await evictor.evict(pod, OWNER, "3 GiB too much", is_dry_run=False)
    assert (result.outcome, asked) == (outcome, ["u1 3 GiB too much"])
    assert [(each.kind, each.policy, each.reason) for each in audit] == [
        (kind, "plugin:memory-evict", "3 GiB too much")
    ]
    again = await evictor.evict(pod, OWNER, "", is_dry_run=False)
    assert (again.outcome is Outcome.REFUSED and len(asked) == 1) is is_counted
    assert evictor.counts.read()["memory-evict", outcome] >= 1
