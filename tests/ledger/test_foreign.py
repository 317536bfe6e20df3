import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.ledger.foreign import (
    FIRST_YIELD_S,
    MAX_YIELD_S,
    WINDOW_S,
    Contest,
    ForeignWriters,
    Yielded,
    is_yielding,
    overwritten,
)

POD = ("kubepods", "besteffort", "pod1")
QUOTA = "cpu.cfs_quota_us"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def fight(clock: Clock, writers: ForeignWriters, every_s: float = 10.0) -> float:
    """Lets another program overwrite each repair; returns how long the field is then left to it."""
    for _ in range(20):
        if not writers.on_overwrite(POD, QUOTA, 50_000, 20_000):
            return writers.yielded()[0].left_s
        clock.now_s += every_s
    return 0.0


def test_the_third_overwrite_in_five_minutes_is_not_repaired() -> None:
    clock = Clock()
    writers = ForeignWriters(clock)
    assert writers.on_overwrite(POD, QUOTA, 50_000, 20_000)
    clock.now_s += 149
    assert writers.on_overwrite(POD, QUOTA, 50_000, 20_001)
    clock.now_s += 150
    assert not writers.on_overwrite(POD, QUOTA, 50_000, 20_002)
    assert writers.yielded() == (Yielded(POD, QUOTA, 50_000, 20_002, 600.0),)
    assert writers.is_yielding(POD, QUOTA)
    assert not writers.is_yielding(POD, "cpu.shares")


def test_overwrites_further_apart_are_repaired_for_ever() -> None:
    clock = Clock()
    assert fight(clock, ForeignWriters(clock), every_s=WINDOW_S / 2) == 0


def test_after_ten_minutes_the_value_is_written_again() -> None:
    clock = Clock()
    writers = ForeignWriters(clock)
    fight(clock, writers)
    clock.now_s += FIRST_YIELD_S - 1
    assert not writers.on_overwrite(POD, QUOTA, 50_000, 20_000)
    clock.now_s += 1
    assert not writers.is_yielding(POD, QUOTA)
    assert writers.yielded() == ()
    assert writers.on_overwrite(POD, QUOTA, 50_000, 20_000)


def test_what_it_left_behind_is_not_an_overwrite() -> None:
    clock = Clock()
    writers = ForeignWriters(clock)
    fight(clock, writers)
    clock.now_s += FIRST_YIELD_S
    repaired = 0
    while writers.on_overwrite(POD, QUOTA, 50_000, 20_000):
        repaired += 1
        clock.now_s += 10
    assert repaired == 3


def test_it_is_left_twice_as_long_each_time_up_to_a_day() -> None:
    clock = Clock()
    writers = ForeignWriters(clock)
    left = []
    for _ in range(10):
        left.append(fight(clock, writers))
        clock.now_s += left[-1]
    assert left[:3] == [600.0, 1_200.0, 2_400.0]
    assert left[-3:] == [76_800.0, MAX_YIELD_S, MAX_YIELD_S]


def test_a_quiet_time_as_long_as_the_last_one_begins_again_at_ten_minutes() -> None:
    clock = Clock()
    writers = ForeignWriters(clock)
    fight(clock, writers)
    clock.now_s += FIRST_YIELD_S
    assert fight(clock, writers) == 1_200.0
    clock.now_s += 1_200.0
    assert writers.on_overwrite(POD, QUOTA, 50_000, 20_000)
    clock.now_s += 1_300.0
    assert fight(clock, writers) == FIRST_YIELD_S


@pytest.mark.parametrize("name", [None, QUOTA])
def test_a_released_field_is_forgotten(name: str | None) -> None:
    clock = Clock()
    writers = ForeignWriters(clock)
    fight(clock, writers)
    writers.on_overwrite(("other",), QUOTA, 1, 2)
    writers.forget(POD, name)
    assert not writers.is_yielding(POD, QUOTA)
    assert len(writers) == 1


@given(st.lists(st.floats(0, 1_000), max_size=60))
def test_there_are_at_most_three_repairs_in_five_minutes(pauses: list[float]) -> None:
    contest, now_s, repairs = Contest(), 0.0, list[float]()
    for pause_s in pauses:
        now_s += pause_s
        contest = overwritten(contest, now_s)
        if not is_yielding(contest, now_s):
            repairs.append(now_s)
    for first, _, _, fourth in zip(repairs, repairs[1:], repairs[2:], repairs[3:], strict=False):
        assert fourth - first >= WINDOW_S
