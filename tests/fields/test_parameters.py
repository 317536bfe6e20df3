import os

import pytest

from runtimeproxy.fields.formats import Value, weight_v2
from runtimeproxy.fields.tables import PARAMETERS, check_value
from runtimeproxy.units import WeightFormula

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu.shares", 2),
        ("cpu.shares", 262_144),
        ("cpu.cfs_quota_us", -1),
        ("cpu.cfs_quota_us", "max"),
        ("cpu.cfs_quota_us", 1_000),
        ("cpu.bvt_warp_ns", -1),
        ("cpu.idle", 1),
        ("cpuset.cpus", "0-3,8"),
        ("cpuset.cpus", ""),
        ("memory.limit_in_bytes", 0),
        ("memory.limit_in_bytes", "4096"),
        ("memory.high", "max"),
        ("memory.wmark_min_adj", -25),
        ("net_cls.classid", 0xFFFF_FFFF),
    ],
)
def test_values_in_range_pass(name: str, value: Value) -> None:
    assert check_value(name, value) == ""


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("cpu.shares", -5, "not in 2 to 262144"),
        ("cpu.shares", 0, "not in"),
        ("cpu.shares", 262_145, "not in"),
        ("cpu.shares", "max", "takes a number"),
        ("cpu.shares", True, "takes a number"),
        ("cpu.shares", 1024.5, "takes a number"),
        ("cpu.cfs_quota_us", float("inf"), "takes a number"),
        ("cpu.cfs_quota_us", -2, "or -1"),
        ("cpu.cfs_quota_us", 999, "not in"),
        ("cpu.cfs_period_us", 999, "not in"),
        ("cpu.bvt_warp_ns", 3, "not in"),
        ("cpu.idle", 2, "not in"),
        ("cpuset.cpus", "3-1", "reversed"),
        ("cpuset.cpus", "zero", "not a CPU list"),
        ("cpuset.cpus", 3, "takes a list"),
        ("memory.limit_in_bytes", -2, "not in"),
        ("memory.limit_in_bytes", 2**63, "not in"),
        ("memory.wmark_scale_factor", 0, "not in"),
        ("memory.usage_in_bytes", 1, "cannot be written"),
        ("cpu.weight", 1, "is cpu.shares here"),
        ("../../etc/passwd", 1, "not a known"),
    ],
)
def test_values_that_no_kernel_takes_are_named(name: str, value: Value, why: str) -> None:
    assert why in check_value(name, value)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cpu.shares", 1024, "39"),
        ("cpu.cfs_quota_us", -1, "max"),
        ("cpu.cfs_quota_us", 5000, "5000"),
        ("cpu.cfs_burst_us", 5000, "5000"),
        ("memory.limit_in_bytes", -1, "max"),
        ("memory.limit_in_bytes", 4096, "4096"),
        ("cpuset.cpus", "0-3", "0-3"),
    ],
)
def test_what_is_written_to_version_2(name: str, value: Value, text: str) -> None:
    file_format = PARAMETERS[name].v2
    assert file_format is not None
    assert file_format.encode(value) == text


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        pytest.param("cpu.cfs_quota_us", "max 100000\n", -1, id="V016"),
        pytest.param("cpu.cfs_quota_us", "100000 100000\n", 100_000, id="V017"),
        pytest.param("cpu.cfs_period_us", "max 50000\n", 50_000, id="period"),
        pytest.param("cpu.shares", "10000\n", 262_144, id="V013"),
        pytest.param("memory.limit_in_bytes", "max\n", -1, id="no-limit"),
        pytest.param("cpuset.cpus", "\n", "", id="empty-cpuset"),
        pytest.param("cpuset.cpus", "0,1,2\n", "0-2", id="cpuset"),
    ],
)
def test_what_version_2_shows(name: str, text: str, value: Value) -> None:
    file_format = PARAMETERS[name].v2
    assert file_format is not None
    assert file_format.decode(text) == value


@pytest.mark.parametrize(
    ("version", "name", "value", "text", "is_same"),
    [
        (1, "cpu.shares", 1024, "1024\n", True),
        (1, "cpu.shares", 1025, "1024\n", False),
        (2, "cpu.shares", 1020, "39\n", True),
        (2, "cpu.shares", 1024, "100\n", True),
        (2, "cpu.shares", 1024, "40\n", False),
        (2, "cpu.cfs_quota_us", -1, "max 100000\n", True),
        (2, "cpu.cfs_quota_us", 1000, "1000 50000\n", True),
        (2, "cpu.cfs_period_us", 50_000, "1000 50000\n", True),
        (1, "memory.limit_in_bytes", -1, "9223372036854771712\n", True),
        (1, "memory.limit_in_bytes", 2**63 - 1, "9223372036854771712\n", True),
        (1, "memory.limit_in_bytes", PAGE_BYTES + 1, f"{PAGE_BYTES}\n", True),
        (2, "memory.limit_in_bytes", PAGE_BYTES * 2, f"{PAGE_BYTES}\n", False),
        (2, "memory.min", PAGE_BYTES * 2 + 1, f"{PAGE_BYTES * 2 + 1}", True),
        (2, "memory.min", PAGE_BYTES * 2 + 1, f"{PAGE_BYTES * 3}", False),
        (2, "memory.limit_in_bytes", -1, "max\n", True),
        (1, "cpuset.cpus", "0,1,2,3", "0-3\n", True),
        (1, "cpuset.cpus", "0-2", "0-3\n", False),
    ],
)
def test_values_are_compared_as_the_kernel_keeps_them(
    version: int, name: str, value: Value, text: str, is_same: bool
) -> None:
    file_format = PARAMETERS[name].format_for(version)
    assert file_format is not None
    assert file_format.matches(value, text) is is_same


def test_every_parameter_has_a_file_somewhere_and_its_own_name() -> None:
    for name, parameter in PARAMETERS.items():
        assert parameter.name == name
        assert parameter.v1 or parameter.v2 or parameter.processes


def test_weights_are_written_by_the_formula_of_the_node() -> None:
    quadratic = weight_v2("cpu.weight", WeightFormula.QUADRATIC)
    assert quadratic.encode(1024) == "100"
    assert quadratic.decode("100\n") == 1024
    assert quadratic.matches(1024, "100\n")
    assert quadratic.matches(1024, "39\n")
    assert not quadratic.matches(1024, "40\n")
