import pytest

from runtimeproxy.ledger.fields import VERIFY_S, Application, Base, field_class
from runtimeproxy.pods.records import Level


@pytest.mark.parametrize(
    ("level", "parameter", "base", "application", "verify_s"),
    [
        (Level.CONTAINER, "cpu.cfs_quota_us", Base.REQUESTED, Application.MESSAGE, 60),
        (Level.CONTAINER, "cpuset.cpus", Base.REQUESTED, Application.MESSAGE, 60),
        (Level.CONTAINER, "memory.limit_in_bytes", Base.REQUESTED, Application.MESSAGE, 60),
        (Level.CONTAINER, "cpu.cfs_burst_us", Base.NEUTRAL, Application.FILE, 60),
        (Level.CONTAINER, "memory.high", Base.NEUTRAL, Application.FILE, 60),
        (Level.POD, "cpu.cfs_quota_us", Base.ORIGINAL, Application.FILE, 10),
        (Level.POD, "cpu.bvt_warp_ns", Base.ORIGINAL, Application.FILE, 10),
        (Level.QOS_CLASS, "cpu.shares", Base.NONE, Application.NEVER, None),
        (Level.QOS_CLASS, "memory.min", Base.NEUTRAL, Application.FILE, 1),
        (Level.QOS_CLASS, "cpu.bvt_warp_ns", Base.NEUTRAL, Application.FILE, 1),
        (Level.NODE, "cpu.bvt_warp_ns", Base.ORIGINAL, Application.FILE, 60),
        (Level.CONTAINER, "env[A]", Base.NONE, Application.CREATION, None),
        (Level.POD, "oom_score_adj", Base.NONE, Application.CREATION, None),
    ],
)
def test_the_class_of_a_field(
    level: Level, parameter: str, base: Base, application: Application, verify_s: float | None
) -> None:
    found = field_class(level, parameter)
    assert (found.base, found.application, found.verify_s) == (base, application, verify_s)


def test_every_level_is_compared() -> None:
    assert VERIFY_S == {Level.NODE: 60, Level.QOS_CLASS: 1, Level.POD: 10, Level.CONTAINER: 60}
