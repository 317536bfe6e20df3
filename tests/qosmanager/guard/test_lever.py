"""How a bound becomes CPUs and quota."""

from __future__ import annotations

import pytest

from runtimeproxy.qosmanager.guard.lever import Position, held_bound, is_by_cpus, moved

NONE = Position()


@pytest.mark.parametrize(
    ("millicores", "cpus", "policy", "expected"),
    [
        (2_000, 8, "none", True),
        (1_999, 8, "none", False),
        (2_000, 7, "none", False),
        (9_000, 64, "static", False),
        (9_000, 64, "", False),
    ],
)
def test_which_one(millicores: int, cpus: int, policy: str, expected: bool) -> None:
    assert is_by_cpus(millicores, cpus, policy) is expected


@pytest.mark.parametrize(
    ("now", "bound", "by_cpus", "now_s", "expected"),
    [
        pytest.param(NONE, None, False, 0.0, (-1, 0), id="nothing"),
        pytest.param(NONE, 1_500, False, 0.0, (150_000, 0), id="quota"),
        pytest.param(Position(150_000), 1_513, False, 0.0, (150_000, 0), id="less-than-one-percent"),
        pytest.param(Position(150_000), 1_515, False, 0.0, (151_500, 0), id="one-percent"),
        pytest.param(Position(150_000), None, False, 0.0, (-1, 0), id="no-quota"),
        pytest.param(NONE, 6_700, True, 0.0, (-1, 6), id="cpus"),
        pytest.param(Position(-1, 6, 10.0), 5_200, True, 14.9, (-1, 6), id="cpus-held"),
        pytest.param(Position(-1, 6, 10.0), 5_200, True, 15.0, (-1, 5), id="cpus-after-five-seconds"),
        pytest.param(Position(-1, 6, 10.0), None, True, 11.0, (-1, 0), id="no-cpus-at-once"),
        pytest.param(Position(-1, 3, 0.0), 1_500, False, 9.0, (-1, 2), id="to-a-quota-cpus-first"),
        pytest.param(Position(-1, 3, 6.0), 1_500, False, 9.0, (150_000, 3), id="to-a-quota-cpus-held"),
        pytest.param(Position(-1, 2, 0.0), 1_500, False, 9.0, (150_000, 2), id="then-the-quota"),
        pytest.param(Position(150_000, 0), 2_400, True, 9.0, (150_000, 2), id="to-cpus-quota-stays"),
        pytest.param(Position(150_000, 2, 9.0), 2_400, True, 10.0, (-1, 2), id="then-no-quota"),
        pytest.param(Position(150_000, 0, 9.0), 2_400, True, 10.0, (150_000, 0), id="never-unbounded"),
        pytest.param(Position(150_000, 2), None, False, 9.0, (-1, 2), id="release-one-by-one"),
        pytest.param(Position(-1, 9, 8.0), 5_000, False, 9.0, (500_000, 9), id="no-more-by-cpus-quota-first"),
        pytest.param(Position(500_000, 9, 8.0), 5_000, False, 9.0, (500_000, 0), id="then-no-cpus"),
        pytest.param(Position(150_000, 2, 8.0), 5_000, False, 9.0, (150_000, 0), id="a-larger-quota-last"),
    ],
)
def test_moves(
    now: Position, bound: int | None, by_cpus: bool, now_s: float, expected: tuple[int, int]
) -> None:
    after = moved(now, bound, by_cpus=by_cpus, now_s=now_s)
    assert (after.quota_us, after.cpus) == expected


def test_never_both_in_one_second() -> None:
    position = NONE
    bounds = [None, 1_500, 2_400, 5_000, 9_000, 1_000, 800, 3_000, None, 1_200, None]
    for number in range(len(bounds) * 7):
        bound = bounds[number // 7]
        by_cpus = is_by_cpus(bound or 0, 16, "none")
        after = moved(position, bound, by_cpus=by_cpus, now_s=float(number))
        assert after.quota_us == position.quota_us or after.cpus == position.cpus
        position = after
    assert (position.quota_us, position.cpus) == (-1, 0)


@pytest.mark.parametrize(
    ("quota_us", "cpus", "expected"),
    [(-1, 0, None), (150_000, 0, 1_500), (-1, 3, 3_000), (150_000, 2, 1_500), (400_000, 3, 3_000)],
)
def test_held(quota_us: int, cpus: int, expected: int | None) -> None:
    assert held_bound(quota_us, cpus) == expected
