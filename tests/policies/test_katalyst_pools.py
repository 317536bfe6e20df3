"""What pods have of Katalyst's pools, by the state, and while it changes."""

from __future__ import annotations

import pytest

from policies.katalyst_pools import KatalystPools, KatalystPoolsOptions
from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.hooks import ContainerView, PodView
from runtimeproxy.katalyst.levels import KatalystQos
from runtimeproxy.katalyst.names import QosLevel
from runtimeproxy.katalyst.placement import PodFacts
from runtimeproxy.katalyst.pool_operations import ContainerFacts, admit, create, initial
from runtimeproxy.katalyst.pools import PoolSettings, PoolState, Refusal, RefusalKind
from runtimeproxy.katalyst.topology import Topology
from runtimeproxy.katalyst.transition import (
    PlacedPools,
    Placement,
    after_shrink,
    growing,
    of_state,
    overlaps,
    shrunk,
)
from runtimeproxy.node.snapshot import Cpu, Node

CPUS = tuple(Cpu(cpu, cpu % 8 // 2, cpu % 8 // 4, cpu % 8 // 4, cpu % 8 // 4) for cpu in range(16))
DEDICATED = KatalystQos(level=QosLevel.DEDICATED, pool="dedicated", numa_binding=True)
WEB = PodFacts("web", KatalystQos(), "default", "web", 2000)
OWN = PodFacts("own", DEDICATED, "default", "own", 2000)


def applied(outcome: PoolState | Refusal) -> PoolState:
    assert isinstance(outcome, PoolState)
    return outcome


@pytest.fixture
def with_web() -> PoolState:
    state = initial(Topology.of(CPUS), PoolSettings(reserved_count=2, ramp_up_s=0))
    return applied(create(state, ContainerFacts(WEB, "main", 2000), 1.0))


def view(uid: str, **members: object) -> ContainerView:
    pod = PodView(uid=uid, cgroup_parent=f"/kubepods/pod{uid}", **members)  # type: ignore[arg-type]
    return ContainerView(name="main", pod=pod)


def test_containers_have_what_their_pod_has_now_and_the_reason_says_what_waits(with_web: PoolState) -> None:
    cpus = with_web.pods["web"].cpus
    now = frozenset(sorted(cpus)[:2])
    pools = PlacedPools(with_web, {"web": Placement(now, frozenset({0}))})
    for name in ("main", "sidecar"):
        found = KatalystPools().container(
            ContainerView(name=name, pod=PodView(uid="web")), Node(cpu_pools=pools)
        )
        assert found is not None
        assert found.resources is not None
        assert found.resources.cpuset_mems == "0"
        reason = str(found.reasons["cpuset_cpus"])
        assert reason.startswith("shared_cores ")
        assert "once others have left them" in reason
        assert reason.endswith(f" = {found.resources.cpuset_cpus}")


def test_what_pools_do_not_handle_is_left_alone(with_web: PoolState) -> None:
    node = Node(cpu_pools=PlacedPools(with_web, of_state(with_web)))
    policy = KatalystPools()
    assert policy.container(view("other"), node) is None
    assert policy.container(view("web"), Node()) is None
    claimed = ContainerView(name="main", pod=PodView(uid="web"), cpu_claims=("dra.k8s.io/cpu=1",))
    assert policy.container(claimed, node) is None
    # A pod in a virtual machine has its CPUs in its own cgroup.
    assert policy.pod(view("web").pod, node) is None
    change = policy.pod(view("web", runtime_handler="kata").pod, node)
    assert change is not None
    assert change.cgroup.keys() == {"cpuset.cpus", "cpuset.mems"}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (RefusalKind.INVALID, StatusCode.INVALID_ARGUMENT),
        (RefusalKind.NO_ROOM, StatusCode.RESOURCE_EXHAUSTED),
        (RefusalKind.RESIZE, StatusCode.FAILED_PRECONDITION),
    ],
)
def test_what_pools_refuse_is_refused(with_web: PoolState, kind: RefusalKind, code: StatusCode) -> None:
    refusals = {("own", ""): Refusal(kind, "why"), ("web", "main"): Refusal(kind, "why")}
    node = Node(cpu_pools=PlacedPools(with_web, of_state(with_web), refusals))
    with pytest.raises(RefusalError, match="why") as error:
        KatalystPools().pod(view("own").pod, node)
    assert error.value.code is code
    with pytest.raises(RefusalError, match="why"):
        KatalystPools().container(view("web"), node)


def test_pods_leave_before_others_grow(with_web: PoolState) -> None:
    before = of_state(with_web)
    state = applied(admit(with_web, OWN))
    first = after_shrink(before, state)
    own = state.pods["own"].dedicated
    assert own
    assert first["own"].cpus == own
    assert first["web"].cpus <= before["web"].cpus
    assert first["web"].cpus.isdisjoint(own)
    left_over = {"web": before["web"].cpus - first["web"].cpus}
    (overlap,) = overlaps(left_over, state)
    assert overlap.cpus == left_over["web"] & own
    assert "default/web has not left" in overlap.text(state)
    for uid in growing(first, state):
        first[uid] = of_state(state)[uid]
    assert first == of_state(state)


@pytest.mark.parametrize(
    ("before", "after", "between"),
    [
        ({0, 1}, {0, 1, 2}, {0, 1}),
        ({0, 1}, {1, 2}, {1}),
        ({0, 1}, {2, 3}, {2, 3}),
        ({0, 1}, {0}, {0}),
    ],
)
def test_the_first_step_between_two_placements(before: set[int], after: set[int], between: set[int]) -> None:
    old, new = (Placement(frozenset(each), frozenset({0})) for each in (before, after))
    assert shrunk(old, new).cpus == between


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"reserved_cpus": "9-1"}, "reserved_cpus"),
        ({"reserved_count": -1}, "reserved_count"),
        ({"snb_ratio": 0.5}, "snb_ratio"),
        ({"ramp_up_s": float("nan")}, "ramp_up_s"),
    ],
)
def test_options_out_of_range(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        KatalystPoolsOptions(**options)  # type: ignore[arg-type]
