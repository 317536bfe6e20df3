"""Modes that operators set: which pods get which, and how they are saved."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.modes import (
    Override,
    as_json,
    from_json,
    needed,
    present,
    selector_of,
    with_modes,
    with_override,
    without,
)
from runtimeproxy.hooks.policy import Hook, Mode, Policy
from runtimeproxy.hooks.selector import EVERY_POD
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.hooks.views import PodView
from runtimeproxy.labels import EVERY_LABEL, LabelOperator, LabelRequirement, LabelSelector

SHOP = selector_of(["shop"], EVERY_LABEL)
WEB = selector_of([], LabelSelector(match_labels={"app": "web"}))


class Plain(Policy):
    name = "plain"

    def pod(self, pod: object, node: object) -> None: ...

    def qos_class(self, qos: object, pods: object, node: object) -> None: ...


@pytest.fixture
def policy() -> LoadedPolicy:
    return bind(Plain())


def mode_of(
    policy: LoadedPolicy, overrides: tuple[Override, ...], pod: PodView, *, is_disabled: bool = False
) -> str:
    """The mode for a pod; `off` for none."""
    parts = with_modes([policy], overrides, {policy.name} if is_disabled else set())
    found = [part.mode for part in parts if part.selector.matches(pod)]
    assert len(found) < 2, "a pod has one mode"
    return str(found[0]) if found else "off"


def override(mode: str, selector: object = EVERY_POD, policy: str = "plain") -> Override:
    return Override(policy, Mode(mode), selector)  # type: ignore[arg-type]


IN_SHOP = PodView(namespace="shop", labels={"app": "web"})
IN_BANK = PodView(namespace="bank", labels={"app": "web"})
OTHER = PodView(namespace="bank", labels={"app": "db"})


@pytest.mark.parametrize(
    ("overrides", "modes"),
    [
        ((), ("enforce", "enforce", "enforce")),
        ((override("dry-run"),), ("dry-run", "dry-run", "dry-run")),
        ((override("off"),), ("off", "off", "off")),
        ((override("off", SHOP),), ("off", "enforce", "enforce")),
        ((override("off"), override("enforce", SHOP)), ("enforce", "off", "off")),
        ((override("dry-run", WEB), override("off", SHOP)), ("off", "dry-run", "enforce")),
        ((override("off", SHOP), override("dry-run", WEB)), ("dry-run", "dry-run", "enforce")),
        ((override("off", SHOP), override("dry-run")), ("dry-run", "dry-run", "dry-run")),
        ((override("off", policy="another"),), ("enforce", "enforce", "enforce")),
    ],
)
def test_the_last_one_that_selects_a_pod_counts(
    policy: LoadedPolicy, overrides: tuple[Override, ...], modes: tuple[str, ...]
) -> None:
    assert tuple(mode_of(policy, overrides, pod) for pod in (IN_SHOP, IN_BANK, OTHER)) == modes


def test_a_disabled_policy_runs_for_selected_pods_only(policy: LoadedPolicy) -> None:
    chosen = (override("enforce", SHOP),)
    assert mode_of(policy, chosen, IN_SHOP, is_disabled=True) == "enforce"
    assert mode_of(policy, chosen, OTHER, is_disabled=True) == "off"
    assert needed({}, chosen) == {"plain": PolicySettings(enabled=True)}
    assert needed({}, (override("off"),)) == {}


def test_without_an_override_the_policy_is_the_same_object(policy: LoadedPolicy) -> None:
    assert next(with_modes([policy], ())) is policy


def test_values_of_qos_classes_have_the_mode_of_pods_that_are_not_selected(policy: LoadedPolicy) -> None:
    selected, others = with_modes([policy], (override("dry-run", SHOP),))
    assert Hook.EVALUATE_QOS_CLASS not in selected.methods
    assert Hook.EVALUATE_QOS_CLASS in others.methods
    assert (selected.mode, others.mode) == (Mode.DRY_RUN, Mode.ENFORCE)
    assert not policy.policy.dry_run
    assert [part.mode for part in with_modes([policy], (override("dry-run"),))] == [Mode.DRY_RUN]
    assert policy.policy.dry_run


def test_setting_and_taking_back() -> None:
    overrides = with_override((), override("off"))
    overrides = with_override(overrides, override("dry-run", SHOP))
    overrides = with_override(overrides, override("enforce", policy="another"))
    overrides = with_override(overrides, override("enforce"))
    assert [each.mode for each in overrides] == ["dry-run", "enforce", "enforce"]
    assert [each.mode for each in without(overrides, "plain", SHOP)] == ["enforce", "enforce"]
    assert [each.policy for each in without(overrides, "plain")] == ["another"]


def test_the_end_of_a_time() -> None:
    overrides = (override("off")._replace(until_s=10.0), override("off"))
    assert present(overrides, 9.9) == overrides
    assert present(overrides, 10.0) == overrides[1:]


NAMES = st.text("abc", min_size=1, max_size=4)
REQUIREMENTS = st.builds(
    LabelRequirement,
    key=NAMES,
    operator=st.sampled_from(list(LabelOperator)),
    values=st.lists(NAMES, max_size=2).map(tuple),
)
OVERRIDES = st.builds(
    Override,
    NAMES,
    st.sampled_from(list(Mode)),
    st.builds(
        selector_of,
        st.lists(NAMES, max_size=2),
        st.builds(
            LabelSelector,
            match_labels=st.dictionaries(NAMES, NAMES, max_size=2),
            match_expressions=st.lists(REQUIREMENTS, max_size=2).map(tuple),
        ),
    ),
    st.floats(0, 1e10),
    st.none() | st.floats(0, 1e10),
    NAMES,
)


@pytest.mark.parametrize("name", ["set_s", "until_s"])
@pytest.mark.parametrize("time_s", [1e300, -1e300, 253_402_300_800, float("inf"), float("nan")])
def test_a_time_that_no_message_can_have_is_refused(name: str, time_s: float) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        from_json({**as_json(override("off")), name: time_s})


@given(OVERRIDES)
def test_what_is_saved_is_read_again(each: Override) -> None:
    assert from_json(as_json(each)) == each
    assert dataclasses.is_dataclass(from_json(as_json(each)).selector)
