"""Which pods may be evicted, and what becomes of an eviction by the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runtimeproxy.core.eviction import Bounds, EvictionMethod, Evictor, PodEvictionOutcome, Result, refusal
from runtimeproxy.core.eviction_history import FILE, UNKNOWN_UID, Evicted, EvictionHistory
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.owners import Owner
from runtimeproxy.pods.records import PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.qos import QoSClass

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
        pytest.param(
            QoSClass.BE,
            [(UNKNOWN_UID, 900.0)],
            "which pods were evicted before is not known",
            200.0,
            id="unknown",
        ),
        pytest.param(QoSClass.BE, [(UNKNOWN_UID, 700.0)], None, None, id="unknown-is-long-ago"),
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
        assert found.outcome is PodEvictionOutcome.REFUSED
        assert found.reason.startswith(reason)
        assert found.retry_s == retry_s


def test_a_bound_of_none() -> None:
    found = refusal(QoSClass.BE, "u1", [], Bounds(0, 60.0, 0.0), 1000.0)
    assert found is not None
    assert found.retry_s is None


@pytest.fixture
def history(tmp_path: Path) -> Iterator[EvictionHistory]:
    with ThreadPoolExecutor(1) as thread:
        yield EvictionHistory(tmp_path, "boot", thread)


class NoRuntime:
    async def stop_container(self, identity: str, grace_s: int, timeout_s: float) -> None:
        raise AssertionError(identity)


@pytest.mark.parametrize(
    ("outcome", "kind", "is_counted"),
    [
        (PodEvictionOutcome.EVICTED, AuditKind.CHANGED, True),
        (PodEvictionOutcome.REFUSED, AuditKind.LEFT_OUT, False),
        (PodEvictionOutcome.FAILED, AuditKind.FAILED, True),
    ],
)
async def test_by_the_api_server(
    history: EvictionHistory, outcome: PodEvictionOutcome, kind: AuditKind, is_counted: bool
) -> None:
    audit: list[AuditEntry] = []
    store = PodStore()
    pod = PodRecord(id="s1", uid="u1", namespace="shop", name="web")
    store.pods.put(pod)
    evictor = Evictor(store, NoRuntime(), audit.append, BOUNDS, history)
    asked: list[str] = []

    async def by_api(found: PodRecord, reason: str) -> Result:
        asked.append(f"{found.uid} {reason}")
        return Result(outcome, "", method=EvictionMethod.EVICTION_API)

    evictor.by_api = by_api
    result = await evictor.evict(pod, OWNER, "3 GiB too much", is_dry_run=False)
    assert (result.outcome, asked) == (outcome, ["u1 3 GiB too much"])
    assert [(each.kind, each.policy, each.reason) for each in audit] == [
        (kind, "plugin:memory-evict", "3 GiB too much")
    ]
    again = await evictor.evict(pod, OWNER, "", is_dry_run=False)
    assert (again.outcome is PodEvictionOutcome.REFUSED and len(asked) == 1) is is_counted
    assert evictor.counts.read()["memory-evict", outcome] >= 1


async def test_an_eviction_whose_client_goes_away_is_carried_out_and_noted(history: EvictionHistory) -> None:
    audit: list[AuditEntry] = []
    pod = PodRecord(id="s1", uid="u1", namespace="shop", name="web")
    evictor = Evictor(PodStore(), NoRuntime(), audit.append, BOUNDS, history)
    begun, free, noted = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def by_api(found: PodRecord, reason: str) -> Result:
        begun.set()
        await free.wait()
        asyncio.get_running_loop().call_soon(noted.set)
        return Result(PodEvictionOutcome.EVICTED)

    evictor.by_api = by_api
    call = asyncio.get_running_loop().create_task(evictor.evict(pod, OWNER, "3 GiB", is_dry_run=False))
    async with asyncio.timeout(30):
        await begun.wait()
        call.cancel()
        await asyncio.wait({call})
        free.set()
        await noted.wait()
    assert [(each.kind, each.reason) for each in audit] == [(AuditKind.CHANGED, "3 GiB")]
    assert evictor.counts.read() == {("memory-evict", PodEvictionOutcome.EVICTED): 1}
    assert [each.uid for each in evictor.recent] == ["u1"]


async def test_bounds_count_while_another_eviction_goes_on_and_for_the_next_process(
    tmp_path: Path, history: EvictionHistory
) -> None:
    store = PodStore()
    pods = [PodRecord(id=f"s{number}", uid=f"u{number}", namespace="shop") for number in range(3)]
    for pod in pods:
        store.pods.put(pod)
    evictor = Evictor(store, NoRuntime(), lambda entry: None, BOUNDS, history)
    saved: list[str] = []

    async def by_api(found: PodRecord, reason: str) -> Result:
        saved.append((tmp_path / FILE).read_text())
        return Result(PodEvictionOutcome.EVICTED)

    evictor.by_api = by_api
    results = await asyncio.gather(*(evictor.evict(pod, OWNER, "", is_dry_run=False) for pod in pods))
    assert [each.outcome for each in results] == [
        PodEvictionOutcome.EVICTED,
        PodEvictionOutcome.EVICTED,
        PodEvictionOutcome.REFUSED,
    ]
    # What is done is on disk before.
    assert [uid in text for uid, text in zip(("u0", "u1"), saved, strict=True)] == [True, True]
    with ThreadPoolExecutor(1) as thread:
        next_one = EvictionHistory(tmp_path, "boot", thread)
        await next_one.load()
        assert next_one.evictions == history.evictions
        history.is_handed_over = True
        refused = await evictor.evict(pods[2], OWNER, "", is_dry_run=True)
        assert (refused.outcome, refused.reason) == (PodEvictionOutcome.REFUSED, "another process takes over")
