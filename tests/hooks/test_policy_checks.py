"""Each way to write a policy that would silently not work is an error that names the place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks import ContainerChange, ContainerView, PodChange, PodSelector, PodView, Policy
from runtimeproxy.hooks.loaded import bind, overridden_methods
from runtimeproxy.hooks.policy_checks import check_policy_class
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.node.snapshot import Input, Node


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

    def container(self, container: ContainerView, node: Node, extra: int = 0) -> ContainerChange | None:
        return self._helper()

    def _helper(self) -> ContainerChange | None:
        return None


def method(self: Policy, container: ContainerView, node: Node) -> None:
    """A method that is right."""


def policy(**attributes: Any) -> type[Policy]:
    """A policy that is right but for these attributes."""
    return type("Bad", (Policy,), {"name": "bad", "container": method, **attributes})


async def asynchronous(self: Policy, container: ContainerView, node: Node) -> None:
    """No plain function."""


def generator(self: Policy, container: ContainerView, node: Node) -> Any:
    yield None


def without_node(self: Policy, container: ContainerView) -> None: ...


def with_three(self: Policy, container: ContainerView, node: Node, other: object) -> None: ...


def by_keyword(self: Policy, *, container: ContainerView, node: Node) -> None: ...


def of_a_pod(self: Policy, pod: PodView, node: Node) -> PodChange | None: ...


def swapped(self: Policy, node: Node, container: ContainerView) -> None: ...


def needs_more(self: Policy, more: int) -> None: ...


def test_a_policy_that_uses_all_that_is_allowed() -> None:
    assert check_policy_class(Good) is Good
    assert overridden_methods(Good) == ("container",)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        pytest.param({"contaner": method}, "did you mean container", id="misspelled"),
        pytest.param({"on_create": method}, "on_create: no such method", id="public-method"),
        pytest.param({"helper": staticmethod(method)}, "helper: no such method", id="static-helper"),
        pytest.param({"container": None}, "container: must be a plain method", id="method-is-none"),
        pytest.param({"container": staticmethod(method)}, "plain method", id="method-is-static"),
        pytest.param({"container": Options}, "plain method", id="method-is-a-class"),
        pytest.param({"container": asynchronous}, "neither async", id="method-is-async"),
        pytest.param({"container": generator}, "generator", id="method-is-a-generator"),
        pytest.param({"container": without_node}, "must be", id="no-node"),
        pytest.param({"container": with_three}, "must be", id="three-arguments"),
        pytest.param({"container": by_keyword}, "must be", id="keyword-only"),
        pytest.param({"container": of_a_pod}, "container is a ContainerView", id="another-view"),
        pytest.param({"container": swapped}, "container is a ContainerView", id="swapped"),
        pytest.param(
            {"container": lambda self, node, container: None},
            r"must be container\(self, container: 'ContainerView', node: 'Node'\)",
            id="swapped-without-types",
        ),
        pytest.param({"inputs": {Input.POOLS}}, "inputs .* is not a frozenset of Inputs", id="inputs-a-set"),
        pytest.param({"inputs": frozenset({"pools"})}, "is not a frozenset of Inputs", id="inputs-of-texts"),
        pytest.param({"optional_inputs": None}, "optional_inputs None", id="optional-inputs-none"),
        pytest.param(
            {"selector_without": {"pools": PodSelector()}},
            "is not a mapping of Inputs",
            id="selector-of-text",
        ),
        pytest.param(
            {"selector_without": {Input.POOLS: None}}, "selector None is not a PodSelector", id="no-selector"
        ),
        pytest.param({"features": "bvt"}, "features 'bvt' is not a frozenset", id="features-a-text"),
        pytest.param({"optional_features": {"bvt"}}, "optional_features .* is not a", id="features-a-set"),
        pytest.param({"features": frozenset({"birst"})}, "'birst'.* of Features, such as", id="no-feature"),
        pytest.param({"sets_fields": {"pod": ("env",)}}, "is not a mapping of", id="fields-a-tuple"),
        pytest.param({"sets_fields": {"pod": frozenset({"env"})}}, "pod cannot set env", id="env-of-a-pod"),
        pytest.param(
            {"sets_fields": {"container": frozenset({"cpu.share"})}},
            "did you mean cpu.shares",
            id="field-misspelled",
        ),
        pytest.param({"sets_fields": {"pods": frozenset({"env"})}}, "pods cannot set", id="no-method"),
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


@pytest.mark.parametrize(
    ("name", "successor"),
    [
        ("pre_run_pod_sandbox", "pod"),
        ("post_run_pod_sandbox", "pod"),
        ("pre_update_pod_sandbox_resources", "pod"),
        ("post_update_pod_sandbox_resources", "pod"),
        ("pre_create_container", "container"),
        ("post_create_container", "container"),
        ("pre_update_container_resources", "container"),
        ("post_start_container", "container, or on_started for effects of its own"),
        ("post_stop_container", "on_stopped"),
        ("pre_stop_pod_sandbox", "on_stopped"),
        ("post_remove_pod_sandbox", "on_removed"),
        ("pre_creat_container", "container"),
        ("post_everything", "pod, container, qos_class, node, on_started, on_stopped, on_removed"),
    ],
)
def test_a_hook_of_version_0_1_is_refused_and_its_successor_named(name: str, successor: str) -> None:
    with pytest.raises(PolicyLoadError) as caught:
        check_policy_class(policy(**{name: method}))
    reason = f"{name}: policies have no hooks any more; its successor is {successor}"
    assert str(caught.value) == f"{__name__}:Bad: {reason}"


def test_attributes_may_begin_as_the_hooks_of_version_0_1_did() -> None:
    check_policy_class(policy(pre_scale=2.0, post_office="none"))


def test_the_attribute_concern_is_refused_and_its_successor_named() -> None:
    with pytest.raises(PolicyLoadError, match="Bad: concern: is called selector now"):
        check_policy_class(policy(concern=PodSelector()))


def test_a_misspelled_method_of_a_base_class_is_found() -> None:
    base = policy(containr=method)
    with pytest.raises(PolicyLoadError, match="containr"):
        check_policy_class(type("Derived", (base,), {"name": "derived"}))


def test_a_policy_without_methods_is_refused() -> None:
    with pytest.raises(PolicyLoadError, match="implements none of pod, container, qos_class"):
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
