"""Records as rows, and back; rows that are none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtimeproxy.hooks.algebra import Claim, Role
from runtimeproxy.hooks.changes import CLEAR
from runtimeproxy.hooks.claimants import Claimant, ClaimantKind
from runtimeproxy.hooks.views import Resources
from runtimeproxy.pods.checkpoint.codec import (
    BadRowError,
    Rank,
    RowKind,
    decode,
    encode,
    rank_of,
)
from runtimeproxy.pods.records import (
    Book,
    CgroupRecord,
    ContainerRecord,
    Entry,
    Level,
    Lifecycle,
    ManagedValue,
    Original,
    PodRecord,
    Record,
)
from runtimeproxy.pods.resources import NO_ENTRIES, NO_RESOURCES

ASKED = Resources(
    cpu_period_us=100_000,
    cpu_quota_us=-1,
    cpu_shares=1024,
    memory_limit_bytes=1 << 40,
    memory_swap_limit_bytes=-1,
    oom_score_adj=-997,
    cpuset_cpus="0-3,8",
    cpuset_mems="0",
    hugepage_limits_bytes=(("2MB", 4 << 20), ("1GB", 0)),
    unified={"memory.high": "max"},
)
POD = PodRecord(
    id="pod",
    name="web",
    namespace="shop",
    uid="u1",
    attempt=3,
    priority=9500,
    addresses=("10.0.0.2", "fd00::2"),
    is_host_network=True,
    labels={"a": "ü", "b": ""},
    annotations={"c": "x" * 1000},
    label_changes={"a": "ü", "gone": None},
    annotation_changes={"c": None},
    runtime_handler="runc",
    cgroup_parent="/kubepods/podu1",
    overhead=Resources(cpu_shares=2),
    requested=ASKED,
    booked=replace(ASKED, cpu_shares=2),
    owners={"resources.cpu_shares": (Claimant("batch"),)},
    state=Lifecycle.STOPPED,
    detailed=False,
    recovered=True,
    trimmed=True,
    created_s=1_700_000_000.25,
)
CONTAINER = ContainerRecord(
    id="box",
    pod_id="pod",
    name="main",
    attempt=1,
    labels={"a": "b"},
    annotations={"c": "d"},
    requested=ASKED,
    booked=replace(ASKED, cpu_quota_us=5000),
    owners={"resources.cpu_quota_us": (Claimant("batch"),), "cgroup[cpu.idle]": (Claimant("other"),)},
    cpu_claims=("dra.k8s.io/cpu=claim-u", "dra.k8s.io/cpu=claim-v"),
    pending_cgroup={"cpu.idle": 1, "cpuset.cpus": "0-1"},
    state=Lifecycle.RUNNING,
    detailed=False,
    recovered=True,
    trimmed=True,
    created_s=1_700_000_001.5,
)
CGROUP = CgroupRecord(
    "/kubepods/podu1",
    {"cpu.shares": ManagedValue(512, 2), "cpuset.cpus": ManagedValue("0-1", None, reapply=False)},
)

BOOK = Book(
    "/kubepods/podu1/box",
    Level.CONTAINER,
    {
        "cpu.shares": Entry((Claim(Claimant("batch"), Role.SET, 512, 100, "BE"),), 512, 1024, 512),
        "cpu.cfs_quota_us": Entry(
            (
                Claim(Claimant("n"), Role.SCALE, 1.5),
                Claim(Claimant("b"), Role.ADD, 5, ceiling=9),
                Claim(Claimant("c"), Role.SET, CLEAR),
            ),
            -1,
        ),
        "cpuset.cpus": Entry(
            (Claim(Claimant("x", ClaimantKind.SERVER), Role.AT_MOST, "0-1"),),
            "0-1",
            is_once=True,
            is_settling=True,
        ),
        "cpu.idle": Entry(),
    },
    {"cpu.shares": Original("1024\n", 5), "cpu.max": Original(None)},
    "boot",
)


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        pytest.param(RowKind.POD, POD, id="pod"),
        pytest.param(RowKind.POD, PodRecord(id="pod"), id="empty-pod"),
        pytest.param(RowKind.CONTAINER, CONTAINER, id="container"),
        pytest.param(RowKind.CONTAINER, ContainerRecord(id="box"), id="empty-container"),
        pytest.param(RowKind.CONTAINER, ContainerRecord(id="box", requested=ASKED), id="nothing-applied"),
        pytest.param(RowKind.CONTAINER, ContainerRecord(id="box", booked=ASKED), id="nothing-requested"),
        pytest.param(RowKind.CGROUP, CGROUP, id="cgroup-of-0.1"),
        pytest.param(RowKind.BOOK, BOOK, id="book"),
        pytest.param(RowKind.BOOK, Book("/a"), id="empty-book"),
    ],
)
def test_a_record_comes_back_as_it_was(kind: RowKind, record: Record) -> None:
    assert decode(kind, record.id, encode(record)) == record


def test_the_evaluations_of_a_process_are_its_own() -> None:
    assert encode(replace(CONTAINER, evaluation=3)) == encode(CONTAINER)


def test_all_fields_have_a_value_in_these_tests() -> None:
    blank = {PodRecord: PodRecord(id=""), ContainerRecord: ContainerRecord(id="")}
    for record in (POD, CONTAINER):
        for name in set(type(record).__slots__) - {"evaluation", "katalyst"}:
            assert getattr(record, name) != getattr(blank[type(record)], name), name


def test_what_is_shared_in_memory_is_shared_again() -> None:
    found = decode(
        RowKind.CONTAINER, "box", encode(ContainerRecord(id="box", requested=ASKED, booked=replace(ASKED)))
    )
    assert isinstance(found, ContainerRecord)
    assert found.booked is found.requested
    empty = decode(RowKind.CONTAINER, "box", encode(ContainerRecord(id="box")))
    assert isinstance(empty, ContainerRecord)
    assert empty.booked is NO_RESOURCES
    assert empty.labels is NO_ENTRIES
    one, two = (decode(RowKind.POD, name, encode(POD)) for name in ("one", "two"))
    assert isinstance(one, PodRecord)
    assert isinstance(two, PodRecord)
    assert one.labels["a"] is two.labels["a"]


def test_the_name_of_a_field_in_the_file_is_that_of_version_0_1() -> None:
    document = json.loads(encode(CONTAINER))
    assert document["applied"]["cpu_quota_us"] == 5000
    assert "booked" not in document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(("version",), 2, id="newer"),
        pytest.param(("level",), 9, id="unknown-level"),
        pytest.param(("boot",), None, id="no-boot"),
        pytest.param(("originals", "cpu.max"), ["x"], id="no-inode"),
        pytest.param(("originals", "cpu.max"), [1, 2], id="number-for-a-text"),
        pytest.param(("entries", "cpu.idle"), [], id="no-entry"),
        pytest.param(
            ("entries", "cpu.idle"),
            [[["a", "no-role", 1, 0, "", None]]] + [None] * 3 + [False] * 2,
            id="no-role",
        ),
        pytest.param(("entries", "cpu.idle"), [[], None, None, None, 0, False], id="number-for-truth"),
    ],
)
def test_bad_books(path: tuple[str, ...], value: object) -> None:
    document = json.loads(encode(BOOK))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(BadRowError):
        decode(RowKind.BOOK, BOOK.id, json.dumps(document))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut-off"),
        pytest.param("[]", id="list"),
        pytest.param('"text"', id="text"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"name":1}', id="number-for-a-text"),
        pytest.param('{"attempt":"1"}', id="text-for-a-number"),
        pytest.param('{"attempt":true}', id="truth-for-a-number"),
        pytest.param('{"detailed":1}', id="number-for-truth"),
        pytest.param('{"labels":{"a":1}}', id="number-for-a-label"),
        pytest.param('{"labels":[]}', id="list-for-labels"),
        pytest.param('{"state":9}', id="unknown-state"),
        pytest.param('{"requested":{"cpu_shares":"9"}}', id="text-for-shares"),
        pytest.param('{"requested":{"cpuset_cpus":9}}', id="number-for-cpus"),
        pytest.param('{"requested":{"hugepage_limits_bytes":{"2MB":"x"}}}', id="text-for-a-limit"),
        pytest.param('{"pending_cgroup":{"cpu.idle":null}}', id="nothing-for-a-value"),
        pytest.param('{"created_s":1e300}', id="after-the-last-year"),
        pytest.param('{"created_s":-1e300}', id="before-the-first-year"),
        pytest.param('{"created_s":1e999}', id="infinite-time"),
        pytest.param('{"created_s":NaN}', id="no-time"),
        pytest.param('{"attempt":4294967296}', id="33-bits"),
        pytest.param('{"attempt":-1}', id="negative-attempt"),
        pytest.param(f'{{"requested":{{"cpu_shares":{10**30}}}}}', id="more-than-64-bits"),
        pytest.param('{"name":"\\ud800"}', id="half-of-a-surrogate-pair"),
        pytest.param('{"labels":{"\\udfff":""}}', id="half-of-a-surrogate-pair-in-a-key"),
    ],
)
def test_bad_rows(body: str) -> None:
    with pytest.raises(BadRowError):
        decode(RowKind.CONTAINER, "box", body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('{"cpu.shares":1}', id="no-list"),
        pytest.param('{"cpu.shares":[1,2]}', id="too-few"),
        pytest.param('{"cpu.shares":[1,2,3]}', id="no-truth"),
        pytest.param('{"cpu.shares":[null,2,true]}', id="no-value"),
    ],
)
def test_bad_cgroup_rows(body: str) -> None:
    with pytest.raises(BadRowError):
        decode(RowKind.CGROUP, "/a", body)


def test_a_field_of_the_other_kind_is_refused() -> None:
    with pytest.raises(BadRowError):
        decode(RowKind.POD, "pod", '{"pod_id":"x"}')


def test_unknown_fields_are_left_out() -> None:
    assert decode(RowKind.POD, "pod", '{"later":[1],"name":"web"}') == PodRecord(id="pod", name="web")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from([*PodRecord.__slots__, *ContainerRecord.__slots__, "same"])


# How long examples take says how busy the machine is.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, json_values, max_size=4))
def test_any_document_is_a_record_or_a_bad_row(document: dict[str, object]) -> None:
    for kind in RowKind:
        try:
            decode(kind, "id", json.dumps(document))
        except BadRowError:
            continue


@pytest.mark.parametrize(
    ("record", "rank"),
    [
        pytest.param(ContainerRecord(id="c"), Rank.SEEN, id="of-a-call"),
        pytest.param(ContainerRecord(id="c", recovered=True), Rank.ASKED, id="of-a-status"),
        pytest.param(PodRecord(id="p", recovered=True, detailed=False), Rank.LISTED, id="of-a-list"),
        pytest.param(CGROUP, Rank.SEEN, id="cgroup"),
    ],
)
def test_ranks(record: Record, rank: Rank) -> None:
    assert rank_of(record) is rank
