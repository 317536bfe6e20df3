"""Fitted trees, written in order: a model of the kernel takes every step."""

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from runtimeproxy.cgroups.order import Key, write_steps
from runtimeproxy.fields.formats import Value
from runtimeproxy.fields.tables import PERIOD, QUOTA
from runtimeproxy.ledger.tree import BURST, TreeRules, TreeValue, fit
from runtimeproxy.units import CPU_PERIOD_US, UNLIMITED, parse_cpu_list

CPUS = "cpuset.cpus"
CLASS = ("kubepods", "besteffort")
PODS = [(*CLASS, "pod1"), (*CLASS, "pod2")]
CONTAINERS = [(*pod, name) for pod in PODS for name in ("one", "two")]
PATHS = [CLASS, *PODS, *CONTAINERS]
RULES = TreeRules(cgroup_version=1)

Values = Mapping[Key, Value]


def share(values: Values, path: tuple[str, ...]) -> float:
    """The quota as a share of a CPU."""
    quota = int(values.get(Key(path, QUOTA), UNLIMITED))
    return float("inf") if quota == UNLIMITED else quota / int(values.get(Key(path, PERIOD), CPU_PERIOD_US))


def refusal(values: Values) -> str:
    """Why the kernel would refuse these values; empty if it takes them.

    Source: Linux kernel/sched/core.c, tg_cfs_schedulable_down (version 1), tg_set_cfs_bandwidth;
    kernel/cgroup/cpuset.c, validate_change.
    """
    for path in PATHS:
        for depth in range(2, len(path)):
            parent = path[:depth]
            if share(values, path) != float("inf") and share(values, path) > share(values, parent):
                return f"{path} has more CPU time than {parent}"
            above, below = (parse_cpu_list(str(values.get(Key(each, CPUS), ""))) for each in (parent, path))
            if above and not below <= above:
                return f"{path} has a CPU that {parent} has not"
        quota = int(values.get(Key(path, QUOTA), UNLIMITED))
        if quota != UNLIMITED and int(values.get(Key(path, BURST), 0)) > quota:
            return f"{path} has a burst above its quota"
    return ""


def walk(now: Values, wanted: Values) -> Values:
    """The values after a batch, every step of which the kernel takes."""
    assert not refusal(now)
    changed = {key: value for key, value in wanted.items() if now[key] != value}
    levels = [{key: changed[key] for key in changed if len(key.path) == depth} for depth in (2, 3, 4)]
    state = dict(now)
    for step in write_steps(levels, now):
        state[step.key] = step.value
        assert not refusal(state), step
    return state


def bounded(values: st.SearchStrategy[Value]) -> st.SearchStrategy[TreeValue]:
    return st.builds(TreeValue, values, is_bound=st.booleans())


QUOTAS = st.one_of(st.just(-1), st.integers(1_000, 10**6))
MEMBERS = st.frozensets(st.integers(0, 5), min_size=1).map(lambda cpus: ",".join(map(str, sorted(cpus))))
VALUES = {QUOTA: bounded(QUOTAS), BURST: bounded(st.integers(0, 10**6)), CPUS: bounded(MEMBERS)}


def trees(names: Mapping[str, st.SearchStrategy[TreeValue]]) -> st.SearchStrategy[Values]:
    values = st.fixed_dictionaries({Key(path, name): each for path in PATHS for name, each in names.items()})
    return values.map(lambda tree: fit(tree, RULES).values)


@settings(max_examples=50)
@given(trees(VALUES), trees(VALUES))
def test_the_kernel_takes_every_step_of_a_batch(now: Values, wanted: Values) -> None:
    state = walk(now, wanted)
    for key, value in wanted.items():
        assert state[key] == value
    assert walk(state, wanted) == state


def with_period(path: tuple[str, ...], cpus: int, period_us: int) -> dict[Key, TreeValue]:
    return {Key(path, QUOTA): TreeValue(cpus * period_us), Key(path, PERIOD): TreeValue(period_us)}


@st.composite
def trees_with_periods(draw: st.DrawFn) -> Values:
    # Few shares of a CPU, so that many children have all that their parents have.
    tree: dict[Key, TreeValue] = {}
    for path in PATHS:
        tree |= with_period(path, draw(st.integers(1, 2)), draw(st.sampled_from([100_000, 10_000, 1_000])))
    return fit(tree, RULES).values


@given(trees_with_periods(), trees_with_periods())
def test_the_kernel_takes_every_step_of_a_batch_that_changes_periods(now: Values, wanted: Values) -> None:
    assert walk(now, wanted) == wanted


@settings(max_examples=50)
@given(trees(VALUES), trees(VALUES))
def test_values_that_were_withdrawn_leave_no_trace(original: Values, wanted: Values) -> None:
    assert walk(walk(original, wanted), original) == original
