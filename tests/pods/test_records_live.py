"""Records of pods brought up to what the API server says."""

from __future__ import annotations

from runtimeproxy.node.snapshot import LivePod
from runtimeproxy.pods.records import PodRecord, with_live

LIVE = LivePod("u", "ns", "web", priority=5500, annotations={"a": "live", "own": "raw"})


def test_live_annotations_and_priority_count() -> None:
    record = PodRecord(
        id="p",
        uid="u",
        annotations={"a": "old", "gone": "x", "own": "of a policy", "kubernetes.io/config.source": "api"},
        annotation_changes={"own": "of a policy", "removed": None},
    )
    found = with_live(record, LIVE)
    assert found.priority == 5500
    assert found.annotations == {
        "a": "live",
        "own": "of a policy",
        "kubernetes.io/config.source": "api",
    }
    assert with_live(found, LIVE) is found
    assert with_live(found, LIVE._replace(priority=None)).priority is None


def test_what_a_policy_removed_stays_away() -> None:
    record = PodRecord(id="p", uid="u", annotation_changes={"a": None})
    assert with_live(record, LIVE).annotations == {"own": "raw"}


def test_of_a_recovered_record_nothing_is_removed() -> None:
    record = PodRecord(id="p", uid="u", annotations={"kept": "x", "a": "old"}, recovered=True)
    assert with_live(record, LIVE).annotations == {"kept": "x", "a": "live", "own": "raw"}
