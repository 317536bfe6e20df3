"""What the pools see of the records: what has changed alone leads to the same as all of them."""

from __future__ import annotations

from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.hooks.views import PodView, Resources
from runtimeproxy.katalyst.levels import LevelRules
from runtimeproxy.katalyst.placement import PodFacts
from runtimeproxy.ledger.pool_records import ObservedPods
from runtimeproxy.ledger.pools import pod_facts
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore

EVENTS: Final = ("sandbox", "stopped", "removed", "container", "ended", "deleted", "look", "all")


def facts_of(pod: PodView) -> PodFacts:
    return pod_facts(pod, LevelRules(), {})


def observed(store: PodStore) -> ObservedPods:
    return ObservedPods(store, facts_of)


@given(events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3), st.integers(0, 2)), max_size=40))
@settings(max_examples=60, derandomize=True)
def test_what_has_changed_leads_to_the_same_as_all(events: list[tuple[str, int, int]]) -> None:
    store = PodStore()
    pods = observed(store)
    store.on_change = lambda _, identity, __: pods.on_record(identity)
    pods.follow()
    before = dict(pods.live)
    for kind, number, other in events:
        # A pod may have several sandboxes, and an id may begin another one.
        sandbox, uid, box = f"p{number}" * (other + 1), f"u{number}", f"c{number}-{other}"
        state = Lifecycle.STOPPED if kind in ("stopped", "ended") else Lifecycle.RUNNING
        if kind in ("sandbox", "stopped"):
            store.pods.put(PodRecord(id=sandbox, uid=uid, state=state))
        elif kind in ("container", "ended"):
            requested = Resources(cpu_shares=1024 * (other + 1))
            record = ContainerRecord(id=box, pod_id=sandbox, name=box, requested=requested, state=state)
            store.containers.put(record)
        elif kind == "removed":
            store.remove_pod(sandbox)
        elif kind == "deleted":
            store.containers.remove(box)
        else:
            if kind == "all":
                pods.look_again()
            changed = pods.follow()
            anew = observed(store)
            anew.follow()
            assert pods.live == anew.live
            uids = pods.live.keys() | before.keys()
            assert {uid for uid in uids if pods.live.get(uid) != before.get(uid)} <= changed
            assert not pods.has_changed
            before = dict(pods.live)


def test_more_changes_than_are_kept_are_all_looked_at() -> None:
    store = PodStore()
    pods = observed(store)
    pods.follow()
    store.pods.put(PodRecord(id="p", uid="u"))
    for number in range(10_000):
        pods.on_record(f"gone-{number}")
    assert pods.follow() == {"u"}
    assert pods.live.keys() == {"u"}
