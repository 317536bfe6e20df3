"""Resctrl. Cases Vnnn are those of Koordinator's tests of resctrl_reconcile.go and util/system/resctrl.go."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.resctrl import ResctrlOptions, ResctrlPolicy, bandwidth_value, cache_mask, with_least_bits
from runtimeproxy.cgroups.resctrl import GROUP_FIELD, MONITOR_FIELD, parse_schemata, schemata_text
from runtimeproxy.fields.kernel_settings import RESCTRL_SCHEMATA, kernel_setting
from runtimeproxy.fields.tables import check_value
from runtimeproxy.hooks import NodeChange, PodChange, PodView
from runtimeproxy.hooks.decision import unmet_on
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.node.resctrl import (
    BandwidthAllocation,
    BandwidthUnit,
    CacheAllocation,
    Resctrl,
    read_resctrl,
)
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.names import RESCTRL
from runtimeproxy.slo.schema import ClassQoS, QoSStrategy, ResctrlQoS
from runtimeproxy.slo.strategies import Strategies
from tests.cgroups.resctrl_files import make_resctrl

INTEL = BandwidthAllocation(ids=(0, 1), unit=BandwidthUnit.PERCENT, least=10, step=10)
AMD = BandwidthAllocation(ids=(0, 1), unit=BandwidthUnit.EIGHTHS_OF_GB, least=0, step=1)
MBPS = BandwidthAllocation(ids=(0, 1), unit=BandwidthUnit.MB_PER_S, least=10, step=10)
CACHE = CacheAllocation(mask=0x7FF, ids=(0, 1))
HERE = Resctrl(caches={"L3": CACHE}, bandwidth=INTEL, closids=8, rmids=32, monitors=("llc_occupancy",))
ON = ResctrlQoS(enable=True, cat_range_end_percent=30, mba_percent=15)
ALL = "L3:0=7ff;1=7ff,MB:0=100;1=100"


def node(here: Resctrl | None = HERE, **classes: ResctrlQoS) -> Node:
    parts: dict[str, Any] = {name: ClassQoS(resctrl_qos=each) for name, each in classes.items()}
    strategy = QoSStrategy(**parts)
    features = frozenset({Feature.RESCTRL, *([Feature.RESCTRL_MOUNTED] if here else [])})
    return Node(resctrl=here, features=features, strategies=Strategies(qos=strategy))


def pod(qos: str = "BE", annotation: object = None, **others: Any) -> PodView:
    annotations = {} if annotation is None else {RESCTRL: json.dumps(annotation)}
    return PodView(uid="u-1", qos=QoSClass(qos), annotations=annotations, **others)


def of_pod(view: PodView, on: Node) -> PodChange:
    found = ResctrlPolicy().pod(view, on)
    assert found is not None
    return found


def of_node(on: Node) -> NodeChange:
    found = ResctrlPolicy().node(on)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mask", "start", "end", "expected"),
    [
        pytest.param(0xFF, 0, 100, 0xFF, id="V164"),
        pytest.param(0x7FF, 10, 50, 0x3C, id="V166"),
        pytest.param(0x3FF, 0, 30, 0x7, id="V167"),
        pytest.param(0x3FF, 10, 85, 0x1FE, id="rounded up at both ends"),
        pytest.param(0x7FF, 0, 50, 0x3F, id="V169"),
        pytest.param(0x7FF, 0, 30, 0xF, id="V170"),
        pytest.param(0x7FF, 1, 2, 0, id="no bit"),
        pytest.param(0x7FF, 99, 100, 0, id="none at the end"),
    ],
)
def test_the_mask_of_a_range(mask: int, start: int, end: int, expected: int) -> None:
    assert cache_mask(mask, start, end) == expected


@pytest.mark.parametrize(
    ("mask", "start", "end"),
    [
        pytest.param(0x7FF, -10, 50, id="V172"),
        pytest.param(0x7FF, 30, 30, id="V172 empty"),
        pytest.param(0x7FF, 30, 101, id="V172 above"),
        pytest.param(0, 0, 100, id="no mask"),
        pytest.param(0x7FE, 0, 100, id="not from the first bit"),
    ],
)
def test_what_is_no_range(mask: int, start: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"is not 2|no range"):
        cache_mask(mask, start, end)


@pytest.mark.parametrize(
    ("mask", "start", "least", "expected"),
    [
        (0xF, 0, 2, 0xF),
        (0x1, 0, 2, 0x3),
        (0, 1, 1, 0x2),
        (0, 99, 2, 0x600),
        (0x400, 95, 3, 0x700),
    ],
)
def test_the_kernel_wants_some_bits_at_least(mask: int, start: int, least: int, expected: int) -> None:
    assert with_least_bits(mask, start, CACHE._replace(least_bits=least)) == expected


@pytest.mark.parametrize(
    ("percent", "bandwidth", "expected"),
    [
        pytest.param(80, INTEL, 80, id="V173"),
        pytest.param(85, INTEL, 90, id="V173 rounded up"),
        pytest.param(1, INTEL, 10, id="V173 least"),
        pytest.param(91, INTEL, 100, id="most"),
        pytest.param(33, INTEL._replace(step=5), 35, id="the node's own step"),
        pytest.param(10, INTEL._replace(least=20), 20, id="the node's own least"),
        pytest.param(95, INTEL._replace(step=30), 100, id="never above all"),
        pytest.param(100, AMD, 2048, id="AMD, all"),
        pytest.param(33, AMD, 52, id="AMD"),
        pytest.param(1, AMD, 1, id="AMD, least"),
    ],
)
def test_the_number_of_a_percentage(percent: int, bandwidth: BandwidthAllocation, expected: int) -> None:
    assert bandwidth_value(percent, bandwidth) == expected


@pytest.mark.parametrize(
    ("percent", "bandwidth"),
    [
        pytest.param(0, INTEL, id="V175"),
        pytest.param(101, INTEL, id="V175 above"),
        pytest.param(0, AMD, id="V175 amd"),
        pytest.param(50, MBPS, id="MB/s"),
    ],
)
def test_what_is_no_percentage(percent: int, bandwidth: BandwidthAllocation) -> None:
    with pytest.raises(ValueError, match=r"not in 1 to 100|MB/s"):
        bandwidth_value(percent, bandwidth)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param({"L3": {0: 0x3C, 1: 0x3C}}, "L3:0=3c;1=3c", id="V176"),
        pytest.param({"L3": {8: 0xFFF, 0: 0xFFF}}, "L3:0=fff;8=fff", id="V178"),
        pytest.param(
            {"MB": {0: 90}, "L3DATA": {0: 15}, "L3CODE": {0: 1}}, "L3CODE:0=1,L3DATA:0=f,MB:0=90", id="all"
        ),
        pytest.param({"L3": {}}, "", id="none"),
    ],
)
def test_schemata_as_one_word(lines: dict[str, dict[int, int]], expected: str) -> None:
    assert schemata_text(lines) == expected
    assert not expected or re.fullmatch(RESCTRL_SCHEMATA, expected)


@pytest.mark.parametrize(
    "text", ["L3:0=7,", ",L3:0=7", "L3:0=7;", "L2:0=7", "L3:0=7 MB:0=5", "L3:0=7\n", "", "L3:=7"]
)
def test_what_is_no_schemata(text: str) -> None:
    setting = kernel_setting("resctrl.BE")
    assert setting is not None
    assert setting.problem_of(text)
    assert check_value(GROUP_FIELD, f"pod-u,{text}")


@pytest.mark.parametrize(
    "name", ["resctrl.", "resctrl.BE/..", "resctrl.koordlet-u", "resctrl.pod-u", "resctrl.be"]
)
def test_only_classes_are_settings(name: str) -> None:
    assert kernel_setting(name) is None


# --- classes -----------------------------------------------------------------------------------------------


def test_the_groups_of_the_enabled_classes() -> None:
    change = of_node(node(be_class=ON, ls_class=ResctrlQoS(cat_range_end_percent=10)))
    assert change.kernel_settings == {"resctrl.BE": "L3:0=f;1=f,MB:0=20;1=20"}
    assert change.problems == ()
    assert str(change.reasons["resctrl.BE"]) == (
        "BE pods: L3 0-30 % of 11 bits -> f (4 bits); MB 15 % -> 20 % (default) = L3:0=f;1=f,MB:0=20;1=20"
    )


def test_without_an_enabled_class_there_are_no_groups() -> None:
    assert ResctrlPolicy().node(node()) is None
    assert ResctrlPolicy().pod(pod(), node()) is None


@pytest.mark.parametrize(
    ("qos", "kube_qos", "group"),
    [
        ("LSE", KubeQoSClass.GUARANTEED, "LSR"),
        ("LSR", KubeQoSClass.GUARANTEED, "LSR"),
        ("LS", KubeQoSClass.BURSTABLE, "LS"),
        ("BE", KubeQoSClass.BEST_EFFORT, "BE"),
        ("", KubeQoSClass.GUARANTEED, "LSR"),
        ("", KubeQoSClass.BURSTABLE, "LS"),
        ("", KubeQoSClass.BEST_EFFORT, "BE"),
        ("SYSTEM", KubeQoSClass.GUARANTEED, ""),
    ],
)
def test_the_group_of_a_pod(qos: str, kube_qos: KubeQoSClass, group: str) -> None:
    change = ResctrlPolicy().pod(pod(qos, kube_qos=kube_qos), node(lsr_class=ON, ls_class=ON, be_class=ON))
    expected = {GROUP_FIELD: group, MONITOR_FIELD: "pod-u-1"} if group else {}
    assert (change.cgroup if change is not None else {}) == expected


def test_the_reason_names_the_class_and_its_share() -> None:
    reason = of_pod(pod(), node(be_class=ON)).reasons[GROUP_FIELD]
    assert str(reason).startswith("BE's group, L3 0-30 % of 11 bits -> f (4 bits); MB 15 % -> 20 % (")
    assert str(reason).endswith("= BE")


def test_monitoring_is_an_option_and_needs_the_processor() -> None:
    on = node(be_class=ON)
    without = ResctrlPolicy(ResctrlOptions(monitor=False)).pod(pod(), on)
    assert without is not None
    assert without.cgroup == {GROUP_FIELD: "BE"}
    lacking = node(HERE._replace(monitors=()), be_class=ON)
    assert of_pod(pod(), lacking).cgroup == {GROUP_FIELD: "BE"}
    assert of_node(lacking).problems == (
        "pods have no counters: the kernel or the processor has no monitoring of the cache",
    )


@pytest.mark.parametrize(
    ("here", "schemata", "problem"),
    [
        pytest.param(
            HERE._replace(caches={"L3CODE": CACHE, "L3DATA": CACHE}),
            "L3CODE:0=f;1=f,L3DATA:0=f;1=f,MB:0=20;1=20",
            "",
            id="code and data apart",
        ),
        pytest.param(HERE._replace(bandwidth=AMD), "L3:0=f;1=f,MB:0=24;1=24", "", id="AMD"),
        pytest.param(
            HERE._replace(bandwidth=None),
            "L3:0=f;1=f",
            "cannot limit the memory bandwidth",
            id="no bandwidth",
        ),
        pytest.param(
            HERE._replace(caches={}), "MB:0=20;1=20", "cannot divide the last-level cache", id="no cache"
        ),
        pytest.param(HERE._replace(bandwidth=MBPS), "L3:0=f;1=f", "mba_MBps", id="MB/s"),
        pytest.param(
            HERE._replace(caches={"L3": CACHE._replace(mask=0x7FE)}),
            "L3:0=7fe;1=7fe,MB:0=20;1=20",
            "L3 is left without a limit: its mask 7fe is not 2^n - 1",
            id="a mask with a gap",
        ),
        pytest.param(
            HERE._replace(caches={"L3": CACHE._replace(ids=(0, 8), least_bits=5)}),
            "L3:0=1f;8=1f,MB:0=20;1=20",
            "",
            id="ids of caches, and bits at least",
        ),
    ],
)
def test_what_the_node_has(here: Resctrl, schemata: str, problem: str) -> None:
    change = of_node(node(here, be_class=ON))
    assert change.kernel_settings == {"resctrl.BE": schemata}
    assert problem in "".join(change.problems)
    assert bool(problem) == bool(change.problems)


def test_a_percentage_of_zero_leaves_the_bandwidth_without_a_limit() -> None:
    change = of_node(node(be_class=ResctrlQoS(enable=True, mba_percent=0)))
    assert change.kernel_settings == {"resctrl.BE": ALL}
    assert change.problems == ("resctrlQOS of BE: MB is left without a limit: 0 percent is not in 1 to 100",)


def test_bits_that_devices_use_are_named() -> None:
    here = HERE._replace(caches={"L3": CACHE._replace(shared_mask=0x603)})
    assert "-> f (4 bits), 2 of them shared with devices;" in str(
        of_node(node(here, be_class=ON)).reasons["resctrl.BE"]
    )


# --- pods --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "schemata"),
    [
        ({"llc": {"schemata": {"range": [0, 30]}}}, "L3:0=f;1=f,MB:0=100;1=100"),
        ({"mb": {"schemata": {"percent": 20}}}, "L3:0=7ff;1=7ff,MB:0=20;1=20"),
        (
            {
                "llc": {
                    "schemata": {"range": [0, 30]},
                    "schemataPerCache": [{"cacheID": 1, "range": [50, 100]}],
                },
                "mb": {"schemata": {"percent": 20}, "schemataPerCache": [{"cacheID": 0, "percent": 15}]},
            },
            "L3:0=f;1=7c0,MB:0=20;1=20",
        ),
        ({"mb": {"schemataPerCache": [{"cacheid": 0, "percent": 10}]}}, "L3:0=7ff;1=7ff,MB:0=10;1=100"),
    ],
)
def test_a_pods_own_group(annotation: object, schemata: str) -> None:
    change = of_pod(pod("LS", annotation), node(ls_class=ON))
    assert change.cgroup == {GROUP_FIELD: f"pod-u-1,{schemata}", MONITOR_FIELD: "pod-u-1"}
    assert change.problems == ()
    assert check_value(GROUP_FIELD, f"pod-u-1,{schemata}") == ""


def test_a_cache_that_is_not_here_is_a_problem() -> None:
    own = {"llc": {"schemataPerCache": [{"cacheID": 7, "range": [0, 10]}]}}
    change = of_pod(pod("LS", own), node())
    assert change.cgroup[GROUP_FIELD] == f"pod-u-1,{ALL}"
    assert change.problems == (f"annotation {RESCTRL}: llc: this node has no cache with the id 7, but 0, 1",)


def test_an_invalid_annotation_leaves_the_class() -> None:
    change = of_pod(pod("BE", {"llc": {"schemata": {"range": [30, 30]}}}), node(be_class=ON))
    assert change.cgroup[GROUP_FIELD] == "BE"
    (problem,) = change.problems
    assert "not a start and a larger end" in problem


def test_a_uid_that_is_none_gets_no_folder() -> None:
    change = of_pod(PodView(uid="../x", qos=QoSClass.BE), node(be_class=ON))
    assert change.cgroup == {}
    assert change.problems == ("the pod's uid '../x' is none",)


def test_where_nothing_is_mounted_the_policy_is_off_and_says_how_to_mount_it() -> None:
    states = {Input.CGROUPS: InputState.KNOWN, Input.STRATEGIES: InputState.KNOWN}
    off = Node(features=frozenset({Feature.RESCTRL}), states=states)
    assert str(unmet_on(bind(ResctrlPolicy()), off)) == (
        "the kernel lacks resctrl-mounted (mount -t resctrl resctrl /sys/fs/resctrl)"
    )


# --- the node's files --------------------------------------------------------------------------------------


def test_what_is_mounted_is_read(tmp_path: Path) -> None:
    assert read_resctrl(tmp_path) is None
    make_resctrl(tmp_path, L3__shareable_bits="600", L3__sparse_masks="1")
    assert read_resctrl(tmp_path) == Resctrl(
        caches={"L3": CacheAllocation(0x7FF, (0, 1), 1, is_sparse=True, shared_mask=0x600)},
        bandwidth=INTEL,
        closids=8,
        rmids=32,
        monitors=("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"),
    )


@pytest.mark.parametrize(
    ("schemata", "info", "unit"),
    [
        ("L3:0=7ff\nMB:0=2048\n", {"MB__min_bandwidth": "0", "MB__bandwidth_gran": "1"}, AMD.unit),
        ("L3:0=7ff\nMB:0=4294967295\n", {}, MBPS.unit),
        ("L3:0=7ff\nMB:0= 50\n", {}, INTEL.unit),
    ],
)
def test_the_unit_of_the_bandwidth(
    tmp_path: Path, schemata: str, info: dict[str, str], unit: BandwidthUnit
) -> None:
    make_resctrl(tmp_path, schemata, **info)
    found = read_resctrl(tmp_path)
    assert found is not None
    assert found.bandwidth is not None
    assert found.bandwidth.unit is unit


def test_a_machine_without_monitoring_or_with_strange_files(tmp_path: Path) -> None:
    make_resctrl(
        tmp_path,
        "L2:0=3\nL3:0\nMB:a=b\n",
        L3_MON__num_rmids="",
        L3_MON__mon_features="",
        L3__num_closids="many",
    )
    assert read_resctrl(tmp_path) == Resctrl(caches={}, closids=8)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.dictionaries(
        st.sampled_from(("L3", "L3CODE", "L3DATA", "MB")),
        st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1), min_size=1, max_size=4),
    ),
    st.integers(0, 12),
)
def test_schemata_are_read_as_they_are_written(lines: dict[str, dict[int, int]], width: int) -> None:
    """Also as kernels before 6.14 pad them, and beside lines of other resources."""
    text = schemata_text(lines)
    assert parse_schemata(text.replace(",", "\n")) == lines
    padded = "".join(
        f"{name:>8}:"
        + ";".join(
            f"{each}={value:{width or 1}d}" if name == "MB" else f"{each}={value:0{width or 1}x}"
            for each, value in its.items()
        )
        + "\n"
        for name, its in lines.items()
    )
    assert parse_schemata(f"    L2:0=ff\n{padded}SMBA:0=2048\nnone\n") == lines
    assert schemata_text(parse_schemata(padded)) == text
