"""Policies are found, checked, configured and ordered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks import ContainerChange, ContainerView, FailurePolicy, Hook, Mode, Policy
from runtimeproxy.hooks.loading import (
    LoadResult,
    PolicyLoader,
    PolicySources,
    checked,
    import_class,
    load,
    make_options,
)
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.node.snapshot import Node


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

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        return None


class Second(Policy):
    """Has none."""

    name: ClassVar[str] = "second"
    timeout_s: ClassVar[float] = 0.5

    def on_stopped(self, container: ContainerView, node: Node) -> None:
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


class Optional(Second):
    """Is used where the configuration says so."""

    name: ClassVar[str] = "optional"
    is_default: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("policy", "enabled", "expected"),
    [
        (Second, None, True),
        (Second, False, False),
        (Optional, None, False),
        (Optional, True, True),
    ],
)
def test_the_configuration_says_which_policies_are_used(
    policy: type[Policy], enabled: bool | None, expected: bool
) -> None:
    assert bool(load([policy], {policy.name: PolicySettings(enabled=enabled)})) is expected


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
            [Second], {"secnd": PolicySettings()}, "no policy named secnd; did you mean second?", id="unknown"
        ),
        pytest.param(
            [Second], {"second": PolicySettings(options={"a": 1})}, "second has no options: a", id="none"
        ),
        pytest.param([Broken], {}, "Broken: cannot be created: OSError", id="raises"),
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
        ({"strict": 5}, "policy first: strict: must be a valid boolean"),
        ({"strict": "yes"}, "policy first: strict: must be a valid boolean"),
        ({"level": "4"}, "policy first: level: must be a valid integer"),
        ({"level": True, "names": "a"}, "level: must be a valid integer; names: must be a valid"),
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


THIRD_PARTY = """
from runtimeproxy.hooks import Policy

class Policed(Policy):
    name = "policed"

    def on_stopped(self, container, node): pass
"""

OPTIONS = """
from dataclasses import dataclass
from runtimeproxy.hooks import Policy

@dataclass(frozen=True)
class Options:
    level: int = 0
    def __post_init__(self):
        if self.level > 9:
            raise SystemExit("level")

class Policed(Policy):
    name = "policed"
    options_type = Options

    def __init__(self, options):
        self.level = options.level
        if options.level > 8:
            raise SystemExit("level")

    def on_stopped(self, container, node): pass
"""


class Installed:
    """A distribution with one policy, installed in a folder of `sys.path`."""

    def __init__(self, folder: Path) -> None:
        self.module = folder / "third_party_policy.py"
        self._info = folder / "third_party-1.0.dist-info"
        self._info.mkdir()
        self.version("1.0")
        self.name_entry("policed")

    def name_entry(self, name: str) -> None:
        entry = f"[runtimeproxy.policies]\n{name} = third_party_policy:Policed\n"
        (self._info / "entry_points.txt").write_text(entry)

    def version(self, number: str) -> None:
        (self._info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: third-party\nVersion: {number}\n")

    def record(self, text: str) -> None:
        (self._info / "RECORD").write_text(text)

    def remove(self) -> None:
        shutil.rmtree(self._info)


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    monkeypatch.syspath_prepend(tmp_path)
    yield Installed(tmp_path)
    sys.modules.pop("third_party_policy", None)


BUILT_IN = {"batch-resource", "cpu-burst", "cpuset", "gpu-env", "group-identity"}


def names(result: LoadResult) -> set[str]:
    return {policy.name for policy in result.policies}


def loaded(
    loader: PolicyLoader, settings: Mapping[str, PolicySettings] | None = None, timeout_s: float = 60
) -> LoadResult:
    """Loads, and takes what came of it into use."""
    result = loader.load(PolicySources(timeout_s=timeout_s), settings or {})
    loader.use(result)
    return result


def test_policies_of_other_distributions_are_found(distribution: Installed) -> None:
    distribution.module.write_text(THIRD_PARTY)
    assert names(loaded(PolicyLoader())) == BUILT_IN | {"policed"}
    assert names(PolicyLoader().load(PolicySources(third_party=False), {})) == BUILT_IN


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        pytest.param(
            "import no_such_thing\n", "cannot be imported: ModuleNotFoundError: No mod", id="import"
        ),
        pytest.param("class Other: pass\n", "cannot be imported: AttributeError", id="no such class"),
        pytest.param("Policed = 5\n", "Policed: is not a class", id="no class"),
        pytest.param("def\n", "cannot be imported: SyntaxError", id="syntax"),
        pytest.param("raise SystemExit(3)\n", "cannot be imported: SystemExit: 3", id="SystemExit"),
        pytest.param("raise BaseException\n", "cannot be imported: BaseException", id="BaseException"),
        pytest.param(
            "class Odd(Exception):\n  def __str__(self): raise self\nraise Odd\n",
            "imported: Odd",
            id="odd error",
        ),
        pytest.param(
            THIRD_PARTY.replace("on_stopped", "on_stoped"),
            "on_stoped: no such method; did you mean on_stopped?",
            id="misspelled method",
        ),
        pytest.param(
            THIRD_PARTY + "    def pre_create_container(self, container): pass\n",
            "pre_create_container: policies have no hooks any more; its successor is container",
            id="hook of version 0.1",
        ),
        pytest.param(THIRD_PARTY + "    concern = None\n", "concern: is called selector now", id="concern"),
        pytest.param(
            THIRD_PARTY.replace('"policed"', '"cpuset"'), "name cpuset is taken by", id="name taken"
        ),
        pytest.param(
            THIRD_PARTY + "    def __init__(self): raise SystemExit(4)\n",
            "cannot be created: SystemExit: 4",
            id="constructor",
        ),
        pytest.param(
            THIRD_PARTY + "    timeout_s = float('inf')\n", "timeout_s inf is not a time above 0", id="time"
        ),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_left_out(
    distribution: Installed, module: str, reason: str
) -> None:
    distribution.module.write_text(module)
    result = loaded(PolicyLoader())
    assert names(result) == BUILT_IN
    (problem,) = result.problems
    assert "third_party_policy:Policed" in problem.text
    assert reason in problem.text
    assert "\n" not in problem.text


def test_bad_options_leave_a_policy_out(distribution: Installed) -> None:
    distribution.module.write_text(OPTIONS)
    result = loaded(PolicyLoader(), {"policed": PolicySettings(options={"levl": 1})})
    assert names(result) == BUILT_IN
    assert [problem.text for problem in result.problems] == [
        "policy policed: unknown option levl; there are: level"
    ]


def test_settings_of_a_policy_that_is_left_out_are_no_other_problem(distribution: Installed) -> None:
    distribution.module.write_text("import no_such_thing\n")
    settings = {"policed": PolicySettings(), "cpusett": PolicySettings()}
    first, second = loaded(PolicyLoader(), settings).problems
    assert first.name == "policed"
    assert second.text == "settings: no policy named cpusett; did you mean cpuset?"


def test_a_policy_that_hangs_keeps_no_other_from_being_used_and_counts_once_it_is_there(
    distribution: Installed,
) -> None:
    gate = threading.Event()
    sys.third_party_gate = gate  # type: ignore[attr-defined]
    distribution.module.write_text("import sys\nsys.third_party_gate.wait()\n" + THIRD_PARTY)
    loader, is_late = PolicyLoader(), threading.Event()
    loader.on_late = is_late.set
    try:
        result = loaded(loader, timeout_s=0.05)
        assert names(result) == BUILT_IN
        assert "has not returned within 0.05 s" in result.problems[0].text
        assert "has not returned since an earlier load" in loaded(loader).problems[0].text
        assert not is_late.is_set()
    finally:
        gate.set()
    assert is_late.wait(60)
    assert names(loaded(loader)) == BUILT_IN | {"policed"}


def test_a_policy_that_is_made_too_late_is_not_made_again(distribution: Installed) -> None:
    gate = threading.Event()
    sys.third_party_gate = gate  # type: ignore[attr-defined]
    slow = "    def __init__(self):\n        import sys\n        sys.third_party_gate.wait()\n"
    distribution.module.write_text(THIRD_PARTY + slow)
    loader, is_late = PolicyLoader(), threading.Event()
    loader.on_late = is_late.set
    # It is imported in time, also on a busy machine, and not made.
    assert names(loaded(loader, timeout_s=1.0)) == BUILT_IN
    gate.set()
    assert is_late.wait(60)
    gate.clear()
    assert names(loaded(loader, timeout_s=30.0)) == BUILT_IN | {"policed"}
    gate.set()


def test_a_policy_in_use_that_cannot_be_loaded_again_stays(distribution: Installed) -> None:
    distribution.module.write_text(OPTIONS)
    loader = PolicyLoader()
    first = loaded(loader, {"policed": PolicySettings(options={"level": 1})})
    second = loaded(loader, {"policed": PolicySettings(options={"level": 9})})
    (problem,) = second.problems
    assert str(problem).endswith("cannot be created: SystemExit: level; it stays as it was loaded before")
    assert [policy for policy in first.policies if policy.name == "policed"] == [
        policy for policy in second.policies if policy.name == "policed"
    ]
    disabled = loaded(loader, {"policed": PolicySettings(enabled=False, options={"level": 9})})
    assert names(disabled) == BUILT_IN


def test_a_policy_whose_entry_point_has_another_name_stays_too(distribution: Installed) -> None:
    distribution.name_entry("of-the-third-party")
    distribution.module.write_text(THIRD_PARTY)
    loader = PolicyLoader()
    loaded(loader)
    del sys.modules["third_party_policy"].Policed
    result = loaded(loader, {"policed": PolicySettings(priority=70)})
    (problem,) = result.problems
    assert (problem.name, problem.is_kept) == ("policed", True)
    assert names(result) == BUILT_IN | {"policed"}


def test_a_policy_whose_distribution_is_gone_goes(distribution: Installed) -> None:
    distribution.module.write_text(THIRD_PARTY)
    loader = PolicyLoader()
    loaded(loader)
    distribution.remove()
    assert names(loaded(loader)) == BUILT_IN


def test_a_policy_that_is_installed_later_is_found(distribution: Installed) -> None:
    distribution.module.write_text("import no_such_thing\n")
    loader = PolicyLoader()
    assert names(loaded(loader)) == BUILT_IN
    distribution.module.write_text(THIRD_PARTY)
    assert names(loaded(loader)) == BUILT_IN | {"policed"}


def test_code_that_has_changed_since_it_was_imported_is_named(distribution: Installed) -> None:
    distribution.module.write_text(THIRD_PARTY)
    distribution.record("third_party_policy.py,sha256=1,1\n")
    loader = PolicyLoader()
    assert loaded(loader).changed_code == ()
    assert loaded(loader).changed_code == ()
    distribution.module.write_text(THIRD_PARTY + "# new\n")
    assert loaded(loader).changed_code == (f"third-party: {distribution.module} has changed",)
    distribution.record("third_party_policy.py,sha256=2,1\n")
    assert loaded(loader).changed_code == ("third-party: was installed again",)
    distribution.version("1.1")
    assert loaded(loader).changed_code == ("third-party: 1.0 is now 1.1",)
    distribution.remove()
    assert loaded(loader).changed_code == ("third-party: 1.0 is now not installed",)


def test_entry_points_that_cannot_be_read_are_a_problem_of_their_own(
    distribution: Installed, tmp_path: Path
) -> None:
    distribution.module.write_text(THIRD_PARTY)
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_bytes(b"[runtimeproxy.policies]\nx = \xff\n")
    result = loaded(PolicyLoader())
    assert names(result) == BUILT_IN | {"policed"}
    (problem,) = result.problems
    text = f"entry points of the distribution broken in {tmp_path}: cannot be read: UnicodeDecodeError"
    assert text in problem.text


def test_a_distribution_whose_name_cannot_be_read_has_policies_all_the_same(
    distribution: Installed, tmp_path: Path
) -> None:
    distribution.module.write_text(THIRD_PARTY)
    (about,) = tmp_path.glob("**/*.dist-info/METADATA")
    about.write_bytes(about.read_bytes() + b"Summary: \xff\n")
    result = loaded(PolicyLoader())
    assert (names(result), result.problems) == (BUILT_IN | {"policed"}, ())


UPGRADED = """
import pathlib, sys
from runtimeproxy.hooks.loading import PolicyLoader, PolicySources
loader = PolicyLoader()
print(loader.load(PolicySources(), {}).changed_code)
module = pathlib.Path(sys.modules["policies.cpuset"].__file__)
module.write_text(module.read_text() + "# new")
print(*loader.load(PolicySources(), {}).changed_code)
about = pathlib.Path(sys.argv[1])
about.write_text(about.read_text().replace("0.1.0", "0.2.0"))
print(*loader.load(PolicySources(), {}).changed_code)
"""


def test_the_proxys_own_wheel_is_watched_too(tmp_path: Path) -> None:
    for package in ("runtimeproxy", "policies"):
        shutil.copytree(Path(__file__).parents[2] / package, tmp_path / package)
    about = tmp_path / "koord_runtime_proxy-0.1.0.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: koord-runtime-proxy\nVersion: 0.1.0\n")
    done = subprocess.run(
        [sys.executable, "-c", UPGRADED, str(about)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "()",
        f"koord-runtime-proxy: {tmp_path}/policies/cpuset.py has changed",
        "koord-runtime-proxy: 0.1.0 is now 0.2.0",
    ]


LEAN = """
import sys
from runtimeproxy.hooks.loading import PolicyLoader, PolicySources
assert PolicyLoader().load(PolicySources(), {}).policies
print(*({"importlib.metadata", "email", "zipfile", "yaml", "pydantic_core"} & sys.modules.keys()))
"""


def test_without_other_distributions_with_policies_no_metadata_is_parsed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAN], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


SHOW = """
from runtimeproxy.hooks.loading import PolicyLoader, PolicySources
result = PolicyLoader().load(PolicySources(), {})
print([policy.name for policy in result.policies])
print(*result.problems, sep="\\n")
"""


@pytest.mark.parametrize("is_installed", [True, False])
def test_another_package_in_the_place_of_the_built_in_policies_is_named(
    tmp_path: Path, is_installed: bool
) -> None:
    package = tmp_path / "policies"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('not ours')\n")
    if is_installed:
        info = tmp_path / "firewall-2.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: firewall\nVersion: 2.5\n")
        (info / "RECORD").write_text("policies/__init__.py,,\n")
    unreadable = tmp_path / "unreadable-1.0.dist-info"
    unreadable.mkdir()
    (unreadable / "METADATA").write_bytes(b"Name: \xff\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    policies, problem = done.stdout.splitlines()
    assert policies == "[]"
    whose = "of the distribution firewall 2.5" if is_installed else "of no installed distribution"
    assert f"the package policies in {package}, {whose}, hides the proxy's own in " in problem
    assert ("uninstall it" if is_installed else f"take {tmp_path} out of PYTHONPATH") in problem
