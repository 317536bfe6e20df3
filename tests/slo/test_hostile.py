"""Whatever a ConfigMap or NodeSLO holds: there are strategies, and each bad key stays what it was."""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.slo.keys import MAX_STRATEGIES, SECTIONS
from runtimeproxy.slo.loading import NodeSlo, Text, load
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


def test_the_largest_config_map_takes_a_bounded_time() -> None:
    keys = [{"key": f"k{number}", "operator": "Exists"} for number in range(92)]
    many = [
        {
            "name": f"n{number}",
            "nodeSelector": {"matchExpressions": [*keys, {"key": f"n{number}", "operator": "Exists"}]},
        }
        for number in range(MAX_STRATEGIES)
    ]
    text = json.dumps({"nodeStrategies": many})
    assert 900_000 < len(text) <= MAX_TEXT_LENGTH
    start = time.process_time()
    result = load({"resource-qos-config": Text("f", text)})
    assert time.process_time() - start < 5
    assert result.problems == ()
