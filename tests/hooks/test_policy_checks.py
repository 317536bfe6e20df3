"""Each way to write a policy that would silently not work is an error that names the place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks import ContainerChange, ContainerView, PodChange, PodView, Policy
from runtimeproxy.hooks.loaded import bind, overridden_hooks
from runtimeproxy.hooks.policy_checks import check_policy_class
from runtimeproxy.hooks.settings import PolicySettings


@dataclass(frozen=True)
class Options:
    level: int = 1


@dataclass
class Thawed:
    level: int = 1


@dataclass(frozen=True)
class Needy:
    level: int


class Good(Policy):
    """A policy that uses all that is allowed."""

    name: ClassVar[str] = "good-1"
    options_type: ClassVar[type[object] | None] = Options
    table: ClassVar[dict[str, int]] = {}

    class Detail:
        """A nested class."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options

    @property
    def level(self) -> int:
        return 1

    def pre_create_container(self, container: ContainerView, extra: int = 0) -> ContainerChange | None:
        return self._helper()

    def _helper(self) -> ContainerChange | None:
        return None


def hook(self: Policy, container: ContainerView) -> None:
    """A hook that is right."""


def policy(**attributes: Any) -> type[Policy]:
    """A policy that is right but for these attributes."""
    return type("Bad", (Policy,), {"name": "bad", "pre_create_container": hook, **attributes})


async def asynchronous(self: Policy, container: ContainerView) -> None:
    """No plain function."""


def generator(self: Policy, container: ContainerView) -> Any:
    yield None


def without_view(self: Policy) -> None: ...


def with_two(self: Policy, container: ContainerView, other: object) -> None: ...


def by_keyword(self: Policy, *, container: ContainerView) -> None: ...


def of_a_pod(self: Policy, pod: PodView) -> PodChange | None: ...


def needs_more(self: Policy, more: int) -> None: ...


def test_a_policy_that_uses_all_that_is_allowed() -> None:
    assert check_policy_class(Good) is Good
    assert overridden_hooks(Good) == ("pre_create_container",)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        pytest.param({"pre_create_contaner": hook}, "did you mean pre_create_container", id="misspelled-pre"),
        pytest.param(
            {"post_started_container": hook}, "post_started_container: no such hook", id="misspelled-post"
        ),
        pytest.param({"on_create": hook}, "on_create: no such hook", id="public-method"),
        pytest.param({"helper": staticmethod(hook)}, "helper: no such hook", id="static-method"),
        pytest.param(
            {"pre_create_container": None}, "pre_create_container: a hook is a plain", id="hook-is-none"
        ),
        pytest.param({"pre_create_container": staticmethod(hook)}, "plain method", id="hook-is-static"),
        pytest.param({"pre_create_container": Options}, "plain method", id="hook-is-a-class"),
        pytest.param({"pre_create_container": asynchronous}, "neither async", id="hook-is-async"),
        pytest.param({"pre_create_container": generator}, "generator", id="hook-is-a-generator"),
        pytest.param({"pre_create_container": without_view}, "must be", id="no-view"),
        pytest.param({"pre_create_container": with_two}, "must be", id="two-arguments"),
        pytest.param({"pre_create_container": by_keyword}, "must be", id="keyword-only"),
        pytest.param({"pre_create_container": of_a_pod}, "is given a ContainerView", id="another-view"),
        pytest.param({"name": None}, "name None", id="name-none"),
        pytest.param({"name": "Bad_Name"}, "kebab-case", id="name-not-kebab"),
        pytest.param({"name": "x" * 64}, "kebab-case", id="name-too-long"),
        pytest.param({"priority": 100}, "priority 100", id="priority-too-high"),
        pytest.param({"priority": -1}, "priority -1", id="priority-too-low"),
        pytest.param({"priority": "9"}, "priority '9'", id="priority-no-number"),
        pytest.param({"timeout_s": 0}, "timeout_s 0", id="timeout-0"),
        pytest.param({"timeout_s": "1"}, "timeout_s '1'", id="timeout-no-number"),
        pytest.param({"options_type": dict}, "not a dataclass", id="options-no-dataclass"),
        pytest.param({"options_type": Thawed}, "not frozen", id="options-not-frozen"),
        pytest.param({"options_type": Needy}, "level has no default", id="options-without-default"),
        pytest.param({"options_type": Options}, r"__init__\(self, options\)", id="init-takes-no-options"),
        pytest.param({"__init__": needs_more}, r"__init__\(self\)", id="init-needs-more"),
    ],
)
def test_each_mistake_is_named(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PolicyLoadError, match=reason) as caught:
        check_policy_class(policy(**attributes))
    assert f"{__name__}:Bad" in str(caught.value)


def test_a_misspelled_hook_of_a_base_class_is_found() -> None:
    base = policy(pre_crate_container=hook)
    with pytest.raises(PolicyLoadError, match="pre_crate_container"):
        check_policy_class(type("Derived", (base,), {"name": "derived"}))


def test_a_policy_without_hooks_is_refused() -> None:
    with pytest.raises(PolicyLoadError, match="implements no hook"):
        check_policy_class(type("Idle", (Policy,), {"name": "idle"}))


@pytest.mark.parametrize("thing", [Policy, object, Options, Good(), None, "policies:X"])
def test_what_is_no_policy_class_is_refused(thing: object) -> None:
    with pytest.raises(PolicyLoadError, match="not a class derived from"):
        check_policy_class(thing)


@pytest.mark.parametrize(
    "settings",
    [PolicySettings(priority=100), PolicySettings(timeout_s=0.0), PolicySettings(timeout_s=float("inf"))],
    ids=["priority", "timeout-0", "timeout-infinite"],
)
def test_settings_out_of_range_are_refused(settings: PolicySettings) -> None:
    with pytest.raises(PolicyLoadError, match=r"test_policy_checks:Good"):
        bind(Good(), settings)
