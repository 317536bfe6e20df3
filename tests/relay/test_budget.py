"""The memory that messages of held calls share."""

from __future__ import annotations

from runtimeproxy.relay.budget import MemoryBudget, Reservation


def reserved(budget: MemoryBudget, size: int, granted: list[int]) -> Reservation:
    """Asks for a share; `granted` notes when it came."""
    reservation = budget.reserve(size, lambda: granted.append(size))
    assert reservation is not None
    return reservation


def test_shares_are_granted_at_once_while_there_is_room() -> None:
    budget, granted = MemoryBudget(100), list[int]()
    reserved(budget, 60, granted)
    reserved(budget, 40, granted)
    assert (granted, budget.used_bytes, budget.waiting_bytes) == ([60, 40], 100, 0)


def test_the_rest_waits_in_its_order_and_nobody_overtakes() -> None:
    budget, granted = MemoryBudget(100), list[int]()
    first = reserved(budget, 90, granted)
    reserved(budget, 50, granted)
    reserved(budget, 1, granted)
    assert granted == [90]
    first.release()
    assert granted == [90, 50, 1]


def test_one_share_over_the_limit_is_granted_when_it_is_alone() -> None:
    budget, granted = MemoryBudget(100), list[int]()
    small = reserved(budget, 1, granted)
    large = reserved(budget, 500, granted)
    assert granted == [1]
    small.release()
    assert granted == [1, 500]
    large.release()
    assert budget.used_bytes == 0


def test_the_queue_is_bounded() -> None:
    budget, granted = MemoryBudget(100), list[int]()
    for _ in range(2):
        reserved(budget, 100, granted)
    assert budget.reserve(1, lambda: None) is None


def test_a_share_that_waits_can_be_given_up() -> None:
    budget, granted = MemoryBudget(100), list[int]()
    first = reserved(budget, 100, granted)
    second = reserved(budget, 60, granted)
    third = reserved(budget, 7, granted)
    second.release()
    first.release()
    assert granted == [100, 7]
    third.release()
    assert (budget.used_bytes, budget.waiting_bytes) == (0, 0)


def test_giving_back_twice_does_nothing() -> None:
    budget, granted = MemoryBudget(100), list[int]()
    first = reserved(budget, 30, granted)
    reserved(budget, 20, granted)
    first.release()
    first.release()
    assert budget.used_bytes == 20


def test_a_waiting_share_over_the_limit_does_not_stop_what_is_behind_it_for_ever() -> None:
    budget, granted = MemoryBudget(100), list[int]()
    first = reserved(budget, 10, granted)
    second = reserved(budget, 200, granted)
    first.release()
    second.release()
    reserved(budget, 5, granted)
    assert granted == [10, 200, 5]


def test_a_grant_may_release_another_share() -> None:
    budget = MemoryBudget(100)
    first = budget.reserve(100, lambda: None)
    assert first is not None
    shares: list[Reservation] = []
    order: list[str] = []

    def second_granted() -> None:
        order.append("second")
        shares[0].release()

    second = budget.reserve(50, second_granted)
    assert second is not None
    shares.append(second)
    budget.reserve(80, lambda: order.append("third"))
    first.release()
    assert order == ["second", "third"]
    assert budget.used_bytes == 80
