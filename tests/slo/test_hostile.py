"""Whatever a ConfigMap or NodeSLO holds: there are strategies, and each bad key stays what it was."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.slo.keys import MAX_STRATEGIES, SECTIONS
from runtimeproxy.slo.loading import NodeSlo, Text, load
from runtimeproxy.slo.names import BLKIO_QOS, MAX_ANNOTATION_LENGTH, MEMORY_QOS, RESCTRL
from runtimeproxy.slo.reading import MAX_TEXT_LENGTH
from tests.slo.configs import good, loaded, pod

KEYS = [section.key for section in SECTIONS]
WORDS = [
    "clusterStrategy nodeStrategies nodeConfigs podStrategies name namespace podSelector nodeSelector",
    "matchLabels matchExpressions key operator values overridePod strategy cpuBurstConfig policy",
    "cpuBurstPercent enable lsClass beClass cpuQOS memoryQOS blkioQOS resctrlQOS networkQOS blocks ioCfg",
    "groupIdentity egressLimit applications cgroupPath base ratioModel schedFeatures totalNetworkBandwidth",
]
NAMES = [word for line in WORDS for word in line.split()]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 500)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["auto", "none", "In", "Exists", "prod", "10M", "5m", "LS", ""])
    | st.text(max_size=6)
)
JSON = st.recursive(
    LEAVES,
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), below, max_size=5)
    ),
    max_leaves=25,
)
BEFORE = good(
    {
        "cpu-burst-config": {"clusterStrategy": {"policy": "auto"}},
        "resource-qos-config": {"clusterStrategy": {"lsClass": {"cpuQOS": {"enable": True}}}},
        "resource-threshold-config": {"clusterStrategy": {"enable": True}},
        "system-config": {"clusterStrategy": {"minFreeKbytesFactor": 88}},
        "host-application-config": {"applications": [{"name": "nginx"}]},
        "colocation-config": {"enable": True},
        "cpu-normalization-config": {"enable": True},
        "cpu-guard-config": {"clusterStrategy": {"enable": True}},
        "startup-boost-config": {"clusterStrategy": {"limitPercent": 200}},
    }
)


@given(st.sampled_from(KEYS), JSON | st.text(max_size=30))
def test_any_key(key: str, value: Any) -> None:
    keys = {each: BEFORE.good[each] for each in KEYS}
    result = loaded({key: value}, previous=BEFORE)
    errors = [each for each in result.problems if not each.is_warning]
    assert all(each.key == key and each.reason for each in result.problems)
    if errors:
        assert result.good[key] is keys[key]
    assert result.strategies.for_pod(pod("LS")) is result.strategies.for_pod(pod("LS"))


@given(st.dictionaries(st.sampled_from([section.node_slo for section in SECTIONS] + ["x"]), JSON))
def test_any_node_slo(spec: dict[str, Any]) -> None:
    result = load({}, node_slo=NodeSlo("nodeslo.yaml", spec))
    assert all(each.file == "nodeslo.yaml" for each in result.problems)
    result.strategies.for_pod(pod("BE"))


@given(st.text(), st.sampled_from(KEYS), st.integers(0, 400))
def test_a_half_written_key_keeps_the_last_good_one(tail: str, key: str, cut: int) -> None:
    text = json.dumps({"clusterStrategy": {"enable": True}, "enable": True, "podStrategies": []}, indent=1)
    text = text[: min(cut, len(text) - 1)]
    result = load({key: Text("f", text)}, previous=BEFORE)
    assert result.good[key] is BEFORE.good[key]
    assert [each.is_warning for each in result.problems] == [False]


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _filled(start: str, item: str, end: str, length: int) -> str:
    """A list of as many items as fit the length."""
    return start + ",".join([item] * ((length - len(start) - len(end)) // (len(item) + 1))) + end


_CONDITIONS = [{"key": f"k{number}", "operator": "In", "values": ["a", "b", "c"]} for number in range(30)]
_LARGEST = {
    "blocks": (
        "resource-qos-config",
        _filled('{"clusterStrategy":{"beClass":{"blkioQOS":{"blocks":[', "{}", "]}}}}", MAX_TEXT_LENGTH),
    ),
    "unknown fields": (
        "cpu-burst-config",
        _dumped({"clusterStrategy": {f"cpuBurstPercen{number}": 1 for number in range(32_000)}}),
    ),
    "a mapping in each node strategy": (
        "system-config",
        _dumped(
            {
                "clusterStrategy": {"schedFeatures": {f"F{number}": True for number in range(30_000)}},
                "nodeStrategies": [
                    {"nodeSelector": {"matchLabels": {"pool": f"p{number}"}}}
                    for number in range(MAX_STRATEGIES)
                ],
            }
        ),
    ),
    "selectors": (
        "resource-qos-config",
        _dumped(
            {
                "nodeStrategies": [
                    {
                        "nodeSelector": {
                            "matchExpressions": _CONDITIONS,
                            "matchLabels": {f"n{number}": "x"},
                        }
                    }
                    for number in range(200)
                ]
            }
        ),
    ),
    "a long number": (
        "cpu-burst-config",
        _filled('{"clusterStrategy":{"x":[', "9" * 4_000, "]}}", MAX_TEXT_LENGTH),
    ),
    "a long list in the place of a number": (
        "cpu-burst-config",
        _filled('{"clusterStrategy":{"cpuBurstPercent":[', "1", "]}}", MAX_TEXT_LENGTH),
    ),
}


@pytest.mark.parametrize("name", _LARGEST)
def test_the_largest_config_map_takes_a_bounded_time(name: str) -> None:
    key, text = _LARGEST[name]
    assert len(text) <= MAX_TEXT_LENGTH
    start = time.process_time()
    load({key: Text("f", text)})
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (BLKIO_QOS, _filled('{"blocks":[', "{}", "]}", MAX_ANNOTATION_LENGTH)),
        (RESCTRL, _filled('{"llc":{"schemataPerCache":[', '{"range":[0,1]}', "]}}", MAX_ANNOTATION_LENGTH)),
        (MEMORY_QOS, _dumped({f"wmarkRati{number}": 1 for number in range(900)})),
        (BLKIO_QOS, _filled('{"blocks":[', "{}", "]}", 256 << 10)),
    ],
)
def test_annotations_of_a_pod_take_a_bounded_time(key: str, text: str) -> None:
    node, one = load({}).strategies, pod("LS", {key: text})
    node.for_pod(pod("LS"))  # imports what is needed
    # A search of this process's whole memory for garbage may take as long.
    gc.disable()
    start = time.thread_time()
    strategy = node.for_pod(one)
    took_s = time.thread_time() - start
    gc.enable()
    assert took_s < 0.05
    assert strategy.problems
    assert node.for_pod(pod("LS")).problems == ()


def test_all_annotations_that_are_remembered_take_bounded_memory() -> None:
    node = load({}).strategies
    node.for_pod(pod("LS", {BLKIO_QOS: "{}"}))
    tracemalloc.start()
    try:
        for number in range(60):
            text = _filled('{"blocks":[', '{"ioCfg":{"readIOPS":1}}', f'],"x":{number}}}', 4_000)
            node.for_pod(pod("LS", {BLKIO_QOS: text}))
        assert tracemalloc.get_traced_memory()[0] < 8_000_000
    finally:
        tracemalloc.stop()
