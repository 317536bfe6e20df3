"""Which behaviour the next call gets."""

from runtimeproxy.testing.behaviours import NORMAL, Behaviour, Behaviours


def test_nothing_set_is_normal() -> None:
    assert Behaviours().take("Version") is NORMAL


def test_the_last_one_set_holds_until_it_is_used_up() -> None:
    behaviours = Behaviours()
    always, twice = Behaviour(delay_s=1), Behaviour(hang=True, times=2)
    behaviours.set("Version", always)
    behaviours.set("Version", twice)
    assert [behaviours.take("Version") for _ in range(3)] == [twice, twice, always]


def test_equal_behaviours_are_used_up_one_by_one() -> None:
    behaviours = Behaviours()
    for _ in range(2):
        behaviours.set("Version", Behaviour(hang=True, times=1))
    taken = [behaviours.take("Version").hang for _ in range(3)]
    assert taken == [True, True, False]


def test_clearing_one_method_leaves_the_others() -> None:
    behaviours = Behaviours()
    hang = Behaviour(hang=True)
    for method in ("Version", "Status"):
        behaviours.set(method, hang)
    behaviours.clear("Version")
    assert behaviours.take("Version") is NORMAL
    assert behaviours.take("Status") is hang
    behaviours.clear()
    assert behaviours.take("Status") is NORMAL
