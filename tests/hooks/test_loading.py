"""Policies are found, checked, configured and ordered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks import ContainerChange, ContainerView, FailurePolicy, Hook, Mode, Policy
from runtimeproxy.hooks.loading import checked, discover, import_class, load, make_options
from runtimeproxy.hooks.settings import PolicySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    level: int = 1
    names: tuple[str, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        if self.level < 0:
            raise ValueError("level is below 0")


class First(Policy):
    """Has options."""

    name: ClassVar[str] = "first"
    priority: ClassVar[int] = 60
    options_type: ClassVar[type[object] | None] = Options

    def __init__(self, options: Options) -> None:
        self.options = options

    def pre_create_container(self, container: ContainerView) -> ContainerChange | None:
        return None


class Second(Policy):
    """Has none."""

    name: ClassVar[str] = "second"
    timeout_s: ClassVar[float] = 0.5

    def post_stop_container(self, container: ContainerView) -> None:
        return None


class Third(Second):
    """Comes before the second by its name."""

    name: ClassVar[str] = "a-third"


class Impostor(Second):
    """Has the name of another."""


class Broken(Second):
    """Cannot be made."""

    name: ClassVar[str] = "broken"

    def __init__(self) -> None:
        raise OSError("no such device")


def test_order_is_by_priority_then_name() -> None:
    assert [policy.name for policy in load(checked([First, Second, Third]))] == ["a-third", "second", "first"]


def test_a_loaded_policy_has_the_classes_defaults() -> None:
    (policy,) = load([Second])
    assert (policy.priority, policy.timeout_s) == (50, 0.5)
    assert (policy.mode, policy.failure_policy) == (Mode.ENFORCE, FailurePolicy.IGNORE)
    assert set(policy.methods) == {Hook.POST_STOP_CONTAINER}
    assert policy.origin == f"{__name__}:Second"
    assert not policy.policy.dry_run


def test_settings_replace_the_defaults() -> None:
    settings = PolicySettings(
        mode=Mode.DRY_RUN,
        failure_policy=FailurePolicy.FAIL,
        timeout_s=3,
        priority=7,
        options={"level": 4, "names": ["a"], "strict": True},
    )
    (policy,) = load([First], {"first": settings})
    assert (policy.priority, policy.timeout_s, policy.mode) == (7, 3, Mode.DRY_RUN)
    assert isinstance(policy.policy, First)
    assert policy.policy.options == Options(level=4, names=("a",), strict=True)
    assert policy.policy.dry_run
    assert not policy.refuses_on_failure


def test_a_disabled_policy_is_not_made() -> None:
    assert load([Broken], {"broken": PolicySettings(enabled=False)}) == ()


@pytest.mark.parametrize(
    ("policies", "settings", "reason"),
    [
        pytest.param(
            [Second], {"secnd": PolicySettings()}, "no policy named secnd; there are: second", id="unknown"
        ),
        pytest.param(
            [Second], {"second": PolicySettings(options={"a": 1})}, "second has no options: a", id="none"
        ),
        pytest.param([Broken], {}, "Broken: cannot be made: OSError", id="raises"),
    ],
)
def test_what_cannot_be_loaded_is_an_error(
    policies: list[type[Policy]], settings: dict[str, PolicySettings], reason: str
) -> None:
    with pytest.raises(PolicyLoadError, match=reason):
        load(policies, settings)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"levl": 1}, "policy first: unknown option levl; there are: level, names, strict"),
        ({"level": "high"}, "policy first: level: "),
        ({"strict": 5}, "policy first: strict: "),
        ({"level": -1}, "level is below 0"),
    ],
)
def test_bad_options_are_errors_that_name_the_key(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(PolicyLoadError, match=reason):
        make_options("first", Options, values)


def test_duplicate_names_are_refused_and_both_classes_named() -> None:
    with pytest.raises(PolicyLoadError, match=r"Impostor: name second is taken by .*Second"):
        checked([Second, Impostor])


def test_the_same_class_twice_is_loaded_once() -> None:
    assert checked([Second, Second]) == (Second,)


@pytest.mark.parametrize("reference", ["no.such.module:X", "policies:NoSuch", "policies.cpuset", ":X", ""])
def test_what_cannot_be_imported_is_an_error(reference: str) -> None:
    with pytest.raises(PolicyLoadError, match="cannot be imported"):
        import_class(reference)


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed distribution with one policy."""
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[runtimeproxy.policies]\nx = third_party_policy:Policed\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "third_party_policy.py"
    sys.modules.pop("third_party_policy", None)


def test_policies_of_other_distributions_are_found(distribution: Path) -> None:
    distribution.write_text(
        "from runtimeproxy.hooks import Policy\n"
        "class Policed(Policy):\n"
        "    name = 'policed'\n"
        "    def post_stop_container(self, container): pass\n"
    )
    assert "policed" in {policy.name for policy in discover()}
    assert "policed" not in {policy.name for policy in discover(third_party=False)}


def test_a_broken_policy_of_another_distribution_is_named(distribution: Path) -> None:
    distribution.write_text("import no_such_thing\n")
    with pytest.raises(
        PolicyLoadError, match="third_party_policy:Policed: cannot be imported: ModuleNotFound"
    ):
        discover()
