"""The memory that messages of intercepted calls share."""

from __future__ import annotations

from runtimeproxy.frontends.cri_proxy.relay.budget import ConnectionMemory, MemoryBudget, Reservation


class Shares:
    """Reservations of several connections, and the order in which they were granted."""

    def __init__(self, limit: int, connection_limit: int = 10_000) -> None:
        self.budget = MemoryBudget(limit, connection_limit)
        self.first = ConnectionMemory(self.budget)
        self.granted: list[int] = []

    def ask(self, size: int, memory: ConnectionMemory | None = None) -> Reservation:
        """The memory for a message, of another connection if none is named."""
        reservation = Reservation(memory or ConnectionMemory(self.budget))
        reservation.ask(size, lambda: self.granted.append(size))
        return reservation

    def grow(self, reservation: Reservation, size: int) -> None:
        """More memory for a message that is here."""
        reservation.ask(size, lambda: self.granted.append(size), is_whole=True)


def test_shares_are_granted_at_once_while_there_is_room() -> None:
    shares = Shares(100)
    shares.ask(60)
    shares.ask(40)
    assert (shares.granted, shares.budget.used_bytes) == ([60, 40], 100)
    assert not shares.budget.has_waiting


def test_the_rest_waits_in_its_order_and_nobody_overtakes() -> None:
    shares = Shares(100)
    first = shares.ask(90)
    shares.ask(50)
    shares.ask(1)
    assert shares.granted == [90]
    first.release()
    assert shares.granted == [90, 50, 1]


def test_one_share_over_the_limit_is_granted_when_it_is_alone() -> None:
    shares = Shares(100)
    small = shares.ask(1)
    large = shares.ask(500)
    assert shares.granted == [1]
    small.release()
    assert shares.granted == [1, 500]
    large.release()
    assert shares.budget.used_bytes == 0


def test_one_connection_waits_for_itself_and_not_others_for_it() -> None:
    shares = Shares(100, connection_limit=50)
    first = shares.ask(40, shares.first)
    for size in (20, 21, 5):
        shares.ask(size, shares.first)
    shares.ask(30)
    assert shares.granted == [40, 30]
    first.release()
    assert shares.granted == [40, 30, 20, 21, 5]
    assert shares.first.used_bytes == 46


def test_a_share_over_its_connections_limit_is_granted_when_that_has_no_other() -> None:
    shares = Shares(100, connection_limit=50)
    shares.ask(20)
    shares.ask(60, shares.first)
    shares.ask(1, shares.first)
    assert shares.granted == [20, 60]


def test_who_came_first_is_first_over_all_connections() -> None:
    shares = Shares(100, connection_limit=60)
    first = shares.ask(60, shares.first)
    second = shares.ask(40)
    shares.ask(50, shares.first)
    shares.ask(50)
    assert shares.granted == [60, 40]
    # The one who came first has reached its own limit: the other one need not wait for it.
    second.release()
    assert shares.granted == [60, 40]
    first.release()
    assert shares.granted == [60, 40, 50, 50]


def test_a_share_that_waits_can_be_given_up() -> None:
    shares = Shares(100)
    first = shares.ask(100)
    second = shares.ask(60)
    third = shares.ask(7)
    second.release()
    first.release()
    assert shares.granted == [100, 7]
    third.release()
    assert shares.budget.used_bytes == 0
    assert not shares.budget.has_waiting


def test_giving_back_twice_does_nothing() -> None:
    shares = Shares(100)
    first = shares.ask(30)
    shares.ask(20)
    first.release()
    first.release()
    assert shares.budget.used_bytes == 20


def test_a_waiting_share_over_the_limit_does_not_stop_what_is_behind_it_for_ever() -> None:
    shares = Shares(100)
    first = shares.ask(10)
    second = shares.ask(200)
    first.release()
    second.release()
    shares.ask(5)
    assert shares.granted == [10, 200, 5]


def test_a_grant_may_release_another_share() -> None:
    shares = Shares(100)
    first = shares.ask(100)
    order: list[str] = []
    second = Reservation(shares.first)

    def second_granted() -> None:
        order.append("second")
        second.release()

    second.ask(50, second_granted)
    third = Reservation(ConnectionMemory(shares.budget))
    third.ask(80, lambda: order.append("third"))
    first.release()
    assert order == ["second", "third"]
    assert shares.budget.used_bytes == 80


def test_less_is_given_back_at_once() -> None:
    shares = Shares(100)
    first = shares.ask(90)
    shares.ask(50)
    shares.grow(first, 30)
    assert shares.granted == [90, 30, 50] or shares.granted == [90, 50, 30]
    assert shares.budget.used_bytes == 80


def test_what_is_held_grows_before_new_messages_come() -> None:
    shares = Shares(100)
    first, second = shares.ask(40), shares.ask(50)
    shares.ask(20)
    shares.grow(first, 45)
    shares.grow(second, 56)
    assert shares.granted == [40, 50, 45, 56]
    first.release()
    assert shares.granted == [40, 50, 45, 56, 20]


def test_calls_that_hold_memory_and_wait_for_more_do_not_wait_for_each_other() -> None:
    shares = Shares(100)
    holding = [shares.ask(25) for _ in range(4)]
    for each in holding:
        shares.grow(each, 50)
    # One at a time is over the limit.
    assert shares.granted == [25] * 4 + [50]
    for number, each in enumerate(holding, 1):
        assert shares.budget.used_bytes <= 100 + 25
        each.release()
        assert shares.granted.count(50) >= min(4, number + 1)
    assert shares.budget.used_bytes == 0
    assert not shares.budget.has_waiting


def test_what_has_grown_over_the_limit_may_grow_again_for_others_wait_for_it() -> None:
    shares = Shares(100)
    first, second = shares.ask(50), shares.ask(50)
    for each, size in ((first, 80), (second, 70), (first, 90)):
        shares.grow(each, size)
    assert shares.granted == [50, 50, 80, 90]
    first.release()
    assert shares.granted == [50, 50, 80, 90, 70]


def test_a_message_that_holds_nothing_grows_within_the_limits_only() -> None:
    shares = Shares(100, connection_limit=50)
    small = [Reservation(shares.first) for _ in range(60)]
    for each in small:
        shares.grow(each, 20)
    assert shares.first.used_bytes == 40
    shares.ask(60)
    assert shares.granted == [20, 20, 60]
    small[7].release()
    small[0].release()
    assert shares.granted == [20, 20, 60, 20]


def test_a_later_size_takes_the_place_of_an_earlier_one() -> None:
    shares = Shares(100)
    first, second = shares.ask(60), Reservation(shares.first)
    shares.grow(second, 70)
    shares.grow(second, 80)
    first.release()
    assert shares.granted == [60, 80]
    assert shares.budget.used_bytes == 80


def test_what_is_in_memory_counts_at_once_and_waits_for_nothing_more() -> None:
    shares = Shares(100)
    first, second = shares.ask(60), Reservation(shares.first)
    shares.grow(second, 70)
    second.hold(90)
    assert (shares.budget.used_bytes, shares.granted) == (150, [60])
    first.release()
    assert (shares.budget.used_bytes, shares.granted) == (90, [60])
