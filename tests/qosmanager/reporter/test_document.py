"""Fields of reporters: their check, and one document of them."""

from __future__ import annotations

from typing import Any

import pytest

from runtimeproxy.qosmanager.reporter.document import MOST_TEXT, MOST_VALUES, FieldError, merged, read_field
from runtimeproxy.qosmanager.reporter.fields import ObjectSection, ReportedField

ZONE = {"type": "Socket", "name": "0"}
DEEP: dict[str, Any] = {"type": "GPU", "name": "0"}
for _ in range(10):
    DEEP = {"type": "GPU", "name": "0", "children": [DEEP]}


def zones(*value: dict[str, Any]) -> ReportedField:
    return ReportedField(ObjectSection.STATUS, "topologyZone", list(value))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"name": "x"}, "it has given dict, not ReportedField"),
        (ReportedField(ObjectSection.SPEC, "taints", []), "spec.taints: there is no such field"),
        (ReportedField("state", "resources", {}), "state.resources: there is no such field"),  # type: ignore[arg-type]
        (ReportedField(ObjectSection.STATUS, [], {}), "status.[]: there is no such field"),  # type: ignore[arg-type]
        (ReportedField(ObjectSection.STATUS, "resources", []), "status.resources: is list, not a mapping"),
        (
            ReportedField(ObjectSection.STATUS, "resources", {"used": {}}),
            "status.resources.used: there is no such field",
        ),
        (
            ReportedField(ObjectSection.STATUS, "resources", {"capacity": {"cpu": 4}}),
            "status.resources.capacity.cpu: 4 is not a printable text of at most 16384 characters",
        ),
        (
            ReportedField(ObjectSection.STATUS, "resources", {"capacity": {"cpu": "four"}}),
            "status.resources.capacity.cpu: not a quantity: 'four'",
        ),
        (
            ReportedField(ObjectSection.STATUS, "resources", {"capacity": {"cpu": "-1"}}),
            "status.resources.capacity.cpu: -1 is below 0, or too large",
        ),
        (
            ReportedField(ObjectSection.STATUS, "resources", {"capacity": {"a\nb": "1"}}),
            r"status.resources.capacity: the key 'a\nb' is not a printable text",
        ),
        (
            ReportedField(ObjectSection.STATUS, "resources", {1: {}}),
            "status.resources: the key 1 is not a printable text",
        ),
        (zones({"type": "Numa"}), "status.topologyZone[0]: name is missing"),
        (zones(ZONE, ZONE), "status.topologyZone[1]: Socket 0 is there twice"),
        (
            zones({**ZONE, "attributes": [{"name": "a", "value": "\ud800"}]}),
            "status.topologyZone[0].attributes[0].value: '\\ud800' is not a printable text of at most",
        ),
        (zones(DEEP), "more than 8 lists in each other"),
        (
            ReportedField(ObjectSection.METADATA, "labels", {"a": "x" * (MOST_TEXT + 1)}),
            "metadata.labels.a: 'xxx",
        ),
        (
            ReportedField(ObjectSection.METADATA, "labels", {str(n): "" for n in range(MOST_VALUES + 1)}),
            f"metadata.labels: more than {MOST_VALUES} values",
        ),
        (
            ReportedField(
                ObjectSection.STATUS,
                "nodeMetricStatus",
                {"updateTime": "", "nodeMetric": {"numaUsage": [{"numaId": True}]}},
            ),
            "status.nodeMetricStatus.nodeMetric.numaUsage[0].numaId: True is not a whole number",
        ),
    ],
)
def test_a_field_that_cannot_be_used(given: object, reason: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_field(given)

    assert reason in str(caught.value)


def test_a_field_is_a_copy_with_lists_in_order() -> None:
    value = [{"type": "Numa", "name": name} for name in ("10", "9", "0")]

    read = read_field(ReportedField(ObjectSection.STATUS, "topologyZone", tuple(value)))

    assert [each["name"] for each in read.value] == ["0", "9", "10"]
    assert read.value[0] is not value[2]


def test_parts_of_several_reporters_are_one_tree() -> None:
    parts = [
        zones({**ZONE, "children": [{"type": "Numa", "name": "1"}]}),
        zones({**ZONE, "children": [{"type": "Numa", "name": "0", "resources": {"capacity": {"cpu": "4"}}}]}),
        zones({**ZONE, "children": [{"type": "Numa", "name": "0", "resources": {"capacity": {"gpu": "1"}}}]}),
        zones({"type": "GPU", "name": "a"}),
        ReportedField(ObjectSection.METADATA, "labels", {"b": "1"}),
        ReportedField(ObjectSection.METADATA, "labels", {"a": "2"}),
    ]

    document, conflicts = merged([("r", read_field(part)) for part in parts], "node-1")

    assert not conflicts
    assert document == {
        "apiVersion": "node.katalyst.kubewharf.io/v1alpha1",
        "kind": "CustomNodeResource",
        "metadata": {"name": "node-1", "labels": {"a": "2", "b": "1"}},
        "spec": {},
        "status": {
            "resources": {},
            "topologyPolicy": "None",
            "topologyZone": [
                {"type": "GPU", "name": "a", "resources": {}},
                {
                    **ZONE,
                    "resources": {},
                    "children": [
                        {"type": "Numa", "name": "0", "resources": {"capacity": {"cpu": "4", "gpu": "1"}}},
                        {"type": "Numa", "name": "1", "resources": {}},
                    ],
                },
            ],
        },
    }
    assert list(document["metadata"]["labels"]) == ["a", "b"]


def test_the_first_of_two_values_stays_and_the_conflict_is_told() -> None:
    def capacity(cpu: str) -> ReportedField:
        return read_field(zones({**ZONE, "resources": {"capacity": {"cpu": cpu}}}))

    def policy(name: str) -> ReportedField:
        return read_field(ReportedField(ObjectSection.STATUS, "topologyPolicy", name))

    given = [("own", capacity("4")), ("gpu", capacity("8")), ("nic", capacity("4000m"))]
    given += [("own", policy("None")), ("nic", policy("RestrictedPodLevel"))]

    document, conflicts = merged(given, "n")

    assert document["status"]["topologyZone"][0]["resources"]["capacity"] == {"cpu": "4"}
    assert document["status"]["topologyPolicy"] == "None"
    assert list(map(str, conflicts)) == [
        "status.topologyZone[Socket 0].resources.capacity.cpu: 4 of own stays, not 8 of gpu",
        "status.topologyPolicy: None of own stays, not RestrictedPodLevel of nic",
    ]
