"""Fitted trees, written in order to this machine's own cgroup version 1: its kernel takes every step."""

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT
from runtimeproxy.cgroups.order import Key
from runtimeproxy.cgroups.writer import CgroupValues, CgroupWriter, WriteOutcome
from runtimeproxy.fields.formats import Value
from runtimeproxy.fields.tables import PERIOD, QUOTA
from runtimeproxy.ledger.tree import BURST, TreeRules, TreeValue, fit
from runtimeproxy.units import parse_cpu_list
from tests.lab.programs import need_controllers_of_v1

CONTROLLERS = ("cpu", "cpuset")
CPUS = "cpuset.cpus"
PATHS = [("class",), ("class", "pod1"), ("class", "pod2")]
PATHS += [(*pod, name) for pod in PATHS[1:] for name in ("one", "two")]
LISTS = sorted({"0", f"0-{(os.cpu_count() or 1) - 1}", str((os.cpu_count() or 1) - 1)})


@pytest.fixture
def root() -> Iterator[str]:
    """A cgroup with a folder for each path of the tree."""
    need_controllers_of_v1(*CONTROLLERS)
    name = f"koord-test-{uuid.uuid4().hex[:12]}"
    folders = [DEFAULT_ROOT / each / name / "/".join(path) for each in CONTROLLERS for path in ((), *PATHS)]
    try:
        for folder in folders:
            folder.mkdir(parents=True)
            if folder.is_relative_to(DEFAULT_ROOT / "cpuset"):
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((DEFAULT_ROOT / "cpuset" / file).read_text())
        yield name
    finally:
        for folder in reversed(folders):
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()


@st.composite
def trees(draw: st.DrawFn) -> Mapping[Key, Value]:
    tree: dict[Key, TreeValue] = {}
    for path in PATHS:
        period = draw(st.sampled_from([100_000, 20_000]))
        cpus = draw(st.sampled_from([None, 1, 2, 3]))
        quota = -1 if cpus is None else cpus * period
        is_bound = draw(st.integers(0, 4)) == 0
        tree[Key(path, PERIOD)] = TreeValue(period)
        tree[Key(path, QUOTA)] = TreeValue(quota, is_bound=is_bound)
        tree[Key(path, BURST)] = TreeValue(draw(st.sampled_from([0, 15_000, 90_000])))
        tree[Key(path, CPUS)] = TreeValue(draw(st.sampled_from(LISTS)), is_bound=is_bound)
    return fit(tree, TreeRules(cgroup_version=1)).values


def written(writer: CgroupWriter, root: str, tree: Mapping[Key, Value]) -> dict[Key, str]:
    """What the kernel refused."""
    levels: list[list[CgroupValues]] = [[], [], []]
    for path in PATHS:
        values = {key.name: value for key, value in tree.items() if key.path == path}
        levels[len(path) - 1].append(CgroupValues("/" + "/".join((root, *path)), values))
    return {
        Key(tuple(result.cgroup.split("/")[2:]), result.name): result.error
        for result in writer.write_levels(levels)
        if result.outcome not in (WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED)
    }


@given(st.lists(trees(), min_size=2, max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_kernel_takes_every_tree_after_every_other(root: str, wanted: list[Mapping[Key, Value]]) -> None:
    writer = CgroupWriter()
    for tree in wanted:
        assert written(writer, root, tree) == {}
        for key, value in tree.items():
            found = writer.read("/" + "/".join((root, *key.path)), key.name)
            if key.name == CPUS:
                assert parse_cpu_list(str(found)) == parse_cpu_list(str(value))
            else:
                assert found == value
