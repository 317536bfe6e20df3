"""The contract with plugins."""

from runtimeproxy.config.validation import feature_gates
from runtimeproxy.qosmanager.plugin import (
    BE_CLASS,
    CPUS,
    QUOTA,
    Claim,
    Decision,
    Role,
    Target,
    be_limit_cores,
)
from runtimeproxy.qosmanager.snapshot import NODE_CGROUP, Level, Metric, NoMetrics, Pod, Snapshot


def test_two_claims_of_one_key_differ_in_value_ceiling_or_reason() -> None:
    target = Target(Level.QOS_CLASS, "BestEffort")
    one = Claim(target, "cpu.cfs_quota_us", Role.AT_MOST, 100_000, reason="half of the node")
    assert one.key == one._replace(value=50_000, reason="a quarter").key
    assert one.key != one._replace(role=Role.SET).key
    assert one.key != one._replace(field="cpuset.cpus").key


def test_a_decision_without_claims_releases_all() -> None:
    assert Decision(state=3).claims == ()


def test_the_gates_of_evictions_are_off_by_default() -> None:
    # Source: Koordinator pkg/features/koordlet_features.go.
    gates = feature_gates([])
    assert {name for name, is_on in gates.items() if is_on} == {"BECPUSuppress", "CPUBurst"}
    assert feature_gates(["CPUBurst=false", "BECPUEvict=true"]) == {
        **gates,
        "CPUBurst": False,
        "BECPUEvict": True,
    }


def test_a_snapshot_without_arguments_is_one_of_which_nothing_is_known() -> None:
    snapshot = Snapshot(now_s=1.0)
    assert (snapshot.pods, snapshot.node.cpus, snapshot.node.capacity) == ((), (), {})
    assert not snapshot.strategies.threshold.enable
    assert snapshot.metrics.window(NODE_CGROUP, Metric.CPU_USAGE, 10.0) is None
    assert isinstance(snapshot.metrics, NoMetrics)


def test_a_pod_is_named_as_kubectl_names_it() -> None:
    assert Pod(sandbox_id="1", uid="u", namespace="shop", name="web").full_name == "shop/web"


def test_what_claims_leave_to_be_pods() -> None:
    container, other = Target(Level.CONTAINER, "c"), Target(Level.QOS_CLASS, "Burstable")
    claims = [
        Claim(BE_CLASS, QUOTA, Role.AT_MOST, 250_000),
        Claim(BE_CLASS, CPUS, Role.AT_MOST, "0-7"),
        Claim(container, CPUS, Role.AT_MOST, "0-1"),
        Claim(other, QUOTA, Role.AT_MOST, 1_000),
        Claim(container, QUOTA, Role.ADD, 1_000),
    ]
    assert be_limit_cores(claims) == 2.0
    assert be_limit_cores(claims[:2]) == 2.5
    assert be_limit_cores(claims[1:2]) == 8.0
    assert be_limit_cores(claims[3:]) is None
