"""Finds policies, built in and third-party, and creates those that are enabled.

Third-party code may do anything while it is loaded: raise, end the process, never return. So each such
policy is imported and created in a thread of its own with a time limit. A policy that cannot be loaded is
reported as a problem beside the policies that can.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from runtimeproxy.errors import PolicyLoadError, described
from runtimeproxy.hooks.loaded import BUILT_IN_PACKAGE, LoadedPolicy, bind, origin_of
from runtimeproxy.hooks.policy import Policy
from runtimeproxy.hooks.policy_checks import check_policy_class
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.spelling import did_you_mean, nearest

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

    from runtimeproxy.hooks.policy_files import FilePolicies, PolicyFiles

ENTRY_POINT_GROUP: Final = "runtimeproxy.policies"
"""Distributions add policies under this group: `name = "module:Class"`."""


OWN_DISTRIBUTION: Final = "koord-runtime-proxy"

_T = TypeVar("_T")
_PolicyT = TypeVar("_PolicyT", type[Policy], LoadedPolicy)


class LoadProblem(NamedTuple):
    """A policy, or settings of one, that could not be loaded."""

    name: str
    """The policy's name; if unknown, the entry point's or the file's."""
    text: str
    """Origin and reason."""
    is_kept: bool = False
    """Whether the policy that was loaded before stays in use."""

    def __str__(self) -> str:
        return f"{self.text}; it stays as it was loaded before" if self.is_kept else self.text


class PolicySources(NamedTuple):
    """Sources of policies besides the proxy itself."""

    third_party: bool = True
    """Entry points of installed distributions."""
    directory: str = ""
    """Folder with policy files; empty for none."""
    timeout_s: float = 3.0
    """The time limit for importing one policy, and for creating it."""


class LateLoad(NamedTuple):
    """A thread that imports or creates a policy and has not returned in time."""

    name: str
    """The policy's; if unknown, the entry point's or the file's."""
    origin: str
    since_s: float
    """When its time was up, in seconds since the epoch."""


class LoadResult(NamedTuple):
    """The policies to run."""

    policies: tuple[LoadedPolicy, ...]
    """In the order in which they run."""
    problems: tuple[LoadProblem, ...]
    classes: tuple[type[Policy], ...]
    """All classes, disabled ones too."""
    changed_code: tuple[str, ...] = ()
    """Imported code that differs from the installed code."""


def built_in() -> tuple[type[Policy], ...]:
    """Return the proxy's own policy classes, checked, sorted by priority and name.

    Raises:
        PolicyLoadError: another package stands in their place, or one breaks the contract.
    """
    return checked(import_class(reference) for reference in _built_in_references())


def checked(policies: Iterable[object]) -> tuple[type[Policy], ...]:
    """Return the classes, each fulfilling the contract and all names distinct, sorted by priority and name.

    Raises:
        PolicyLoadError: one does not, or two have one name.
    """
    by_name: dict[str, type[Policy]] = {}
    for policy in map(check_policy_class, policies):
        _register(by_name, policy)
    return _in_order(by_name.values())


def load(
    policies: Iterable[type[Policy]], settings: Mapping[str, PolicySettings] | None = None
) -> tuple[LoadedPolicy, ...]:
    """Create the enabled policies, in the order in which they run: by priority, then by name.

    Raises:
        PolicyLoadError: settings without a policy, bad options, or a constructor that raises.
    """
    settings = dict(settings or {})
    policies = tuple(policies)
    for problem in unknown_names(settings, [policy.name for policy in policies]):
        raise PolicyLoadError(str(problem))
    chosen = [(policy, settings.get(policy.name, PolicySettings())) for policy in policies]
    return _in_order(_create(policy, each) for policy, each in chosen if is_enabled(policy, each))


def is_enabled(policy: type[Policy], settings: PolicySettings) -> bool:
    return policy.is_default if settings.enabled is None else settings.enabled


def import_class(reference: str) -> object:
    """Return the class that `module:Class` names. Raises PolicyLoadError if it cannot be imported."""
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except BaseException as error:  # importing runs a third party's code, which may raise anything
        raise PolicyLoadError(f"{reference}: cannot be imported: {described(error)}") from error


class PolicyLoader:
    """Loads all policies, again and again; for one thread at a time.

    Attributes:
        on_late: called, in any thread, when code has returned after its time limit: the next load uses it.
    """

    def __init__(self) -> None:
        self.on_late: Callable[[], None] = lambda: None
        self._attempts: dict[str, _Attempt] = {}
        self._files: PolicyFiles | None = None
        self._code = _ImportedCode()
        self._running: dict[str, LoadedPolicy] = {}
        # By reference, the names of policies of entry points, which may have other names.
        self._names: dict[str, str] = {}

    def load(self, sources: PolicySources, settings: Mapping[str, PolicySettings]) -> LoadResult:
        """Load all policies that can be loaded. One in use that cannot be loaded now stays as it is."""
        changed = self._code.changed()
        problems: list[LoadProblem] = []
        classes = self._find(sources, problems)
        known = {policy.name for policy in classes} | {problem.name for problem in problems}
        loaded: list[LoadedPolicy] = []
        for policy in classes:
            chosen = settings.get(policy.name, PolicySettings())
            try:
                if is_enabled(policy, chosen):
                    loaded.append(self._create(policy, chosen, sources.timeout_s))
            except PolicyLoadError as error:
                problems.append(LoadProblem(policy.name, str(error)))
        failed = {problem.name for problem in problems} - {policy.name for policy in loaded}
        failed -= {name for name, chosen in settings.items() if chosen.enabled is False}
        kept = [policy for name, policy in self._running.items() if name in failed]
        names = {policy.name for policy in kept}
        problems = [each._replace(is_kept=each.is_kept or each.name in names) for each in problems]
        problems += unknown_names(settings, sorted(known))
        return LoadResult(_in_order([*loaded, *kept]), tuple(problems), classes, changed)

    @property
    def late(self) -> list[LateLoad]:
        """The threads that have not returned, also those of policies that are gone; in any thread."""
        attempts = tuple(self._attempts.values())
        return [each.late for each in attempts if each.late is not None and not each.result.done()]

    def use(self, result: LoadResult) -> None:
        # A later load keeps those that it cannot load.
        self._running = {policy.name: policy for policy in result.policies}

    def _find(self, sources: PolicySources, problems: list[LoadProblem]) -> tuple[type[Policy], ...]:
        """Import all policy classes that can be imported: built in, of distributions, of files."""
        by_name: dict[str, type[Policy]] = {}

        def add(name: str, load_class: Callable[[], type[Policy]]) -> None:
            try:
                _register(by_name, load_class())
            except PolicyLoadError as error:
                problems.append(LoadProblem(name, str(error)))

        try:
            references = _built_in_references()
        except PolicyLoadError as error:
            problems.append(LoadProblem(BUILT_IN_PACKAGE, str(error)))
            references = ()
        for reference in references:
            add(reference, partial(self._import_built_in, reference))
        for entry_point in _entry_points(problems) if sources.third_party else ():
            name = self._names.get(entry_point.value, entry_point.name)
            add(name, partial(self._import, entry_point, sources.timeout_s))
        for name, policies, problem in self._in_files(sources):
            if problem:
                problems.append(LoadProblem(name, problem, is_kept=bool(policies)))
            for policy in policies:
                add(name, partial(check_policy_class, policy))
        return _in_order(by_name.values())

    def _import_built_in(self, reference: str) -> type[Policy]:
        policy = check_policy_class(import_class(reference))
        self._code.note(reference, OWN_DISTRIBUTION)
        return policy

    def _import(self, entry_point: EntryPoint, timeout_s: float) -> type[Policy]:
        reference = entry_point.value

        def work() -> type[Policy]:
            policy = import_class(reference)
            if not isinstance(policy, type):
                raise PolicyLoadError(f"{reference}: is not a class")
            return check_policy_class(policy)

        origin = f"{reference}: cannot be imported"
        name = self._names.get(reference, entry_point.name)
        policy = self._run(name, reference, reference, work, timeout_s, origin)
        self._names[reference] = policy.name
        self._code.note(reference, _name_of(entry_point.dist) if entry_point.dist is not None else "")
        return policy

    def _in_files(self, sources: PolicySources) -> Iterable[FilePolicies]:
        if self._files is None and not sources.directory:
            return ()
        from runtimeproxy.hooks.policy_files import PolicyFiles, file_policy_name

        self._files = self._files or PolicyFiles()

        def run(origin: str, version: object, work: Callable[[], _T]) -> _T:
            return self._run(file_policy_name(origin), origin, version, work, sources.timeout_s, origin)

        return self._files.load(sources.directory, run)

    def _create(self, policy: type[Policy], settings: PolicySettings, timeout_s: float) -> LoadedPolicy:
        create = partial(_create, policy, settings)
        if policy.__module__.startswith(f"{BUILT_IN_PACKAGE}."):
            return create()
        key, version = f"make {policy.name}", (policy, settings)
        return self._run(policy.name, key, version, create, timeout_s, origin_of(policy))

    def _run(
        self, name: str, key: str, version: object, work: Callable[[], _T], timeout_s: float, origin: str
    ) -> _T:
        """Run third-party code with a time limit. Code that hangs is not run again until it has returned.

        `version`: a late result is used only for the same version. `work`: runs in a thread of its own;
        raises PolicyLoadError for any problem. `origin`: begins the error's text.
        """
        attempt = self._attempts.get(key)
        is_new = attempt is None or (attempt.result.done() and attempt.version != version)
        if attempt is None or is_new:
            self._attempts[key] = attempt = _Attempt(version)
            run = partial(_run_attempt, work, attempt.result)
            threading.Thread(target=run, name="policy-loading", daemon=True).start()
        # Not result(timeout=...): the work itself may raise TimeoutError.
        if wait([attempt.result], timeout_s if is_new else 0).done:
            del self._attempts[key]
            result: _T = attempt.result.result()
            return result
        if is_new:
            attempt.late = LateLoad(name, origin, time.time())
            attempt.result.add_done_callback(lambda _: self.on_late())
        when = f"within {timeout_s:g} s (hooks.load_timeout_s)" if is_new else "since an earlier load"
        raise PolicyLoadError(f"{origin}: has not returned {when}")


@dataclasses.dataclass(slots=True)
class _Attempt:
    """A run of third-party code, in a thread that may never return."""

    version: object
    result: Future[Any] = dataclasses.field(default_factory=Future)
    late: LateLoad | None = None


def _run_attempt(work: Callable[[], object], result: Future[Any]) -> None:
    try:
        result.set_result(work())
    except PolicyLoadError as error:
        result.set_exception(error)
    except BaseException as error:  # noqa: BLE001 - third-party code may raise anything
        result.set_exception(PolicyLoadError(described(error)))


def _register(by_name: dict[str, type[Policy]], policy: type[Policy]) -> None:
    other = by_name.setdefault(policy.name, policy)
    if other is not policy:
        raise PolicyLoadError(f"{origin_of(policy)}: name {policy.name} is taken by {origin_of(other)}")


def _in_order(policies: Iterable[_PolicyT]) -> tuple[_PolicyT, ...]:
    return tuple(sorted(policies, key=lambda policy: (policy.priority, policy.name)))


def unknown_names(settings: Iterable[str], there: Sequence[str]) -> list[LoadProblem]:
    """Return a problem for each setting without a policy, with the name that was probably meant."""
    known = f"; there are: {', '.join(there) or 'none'}"
    return [
        LoadProblem(name, f"settings: no policy named {name}{did_you_mean(nearest(name, there)) or known}")
        for name in sorted(set(settings) - set(there))
    ]


def _built_in_references() -> tuple[str, ...]:
    own = Path(__file__).parents[2] / BUILT_IN_PACKAGE
    spec = importlib.util.find_spec(BUILT_IN_PACKAGE)
    place = Path(spec.origin).parent if spec is not None and spec.origin else None
    if place is None or not place.exists() or not own.exists() or not place.samefile(own):
        raise PolicyLoadError(_shadowed(place, own))
    references: tuple[str, ...] | None = getattr(importlib.import_module(BUILT_IN_PACKAGE), "BUILT_IN", None)
    if references is None:
        raise PolicyLoadError(_shadowed(place, own))
    return references


def _shadowed(place: Path | None, own: Path) -> str:
    """Return which package hides the built-in policies, and the remedy."""
    if place is None:
        return f"built-in policies: no package {BUILT_IN_PACKAGE} in {own.parent}; install the proxy again"
    owners = sorted(_owners(place))
    whose = f"of the distribution {', '.join(owners)}" if owners else "of no installed distribution"
    what = f"built-in policies: the package {BUILT_IN_PACKAGE} in {place}, {whose},"
    if place == own:
        return f"{what} has overwritten the proxy's own; uninstall it and install the proxy again"
    remedy = "uninstall it" if owners else f"rename it, or take {place.parent} out of PYTHONPATH"
    return f"{what} hides the proxy's own in {own}; {remedy}"


def _owners(place: Path) -> set[str]:
    """Return name and version of the distributions, except the proxy, that have installed this package."""
    from importlib.metadata import distributions

    init = f"{place.name}/__init__.py"
    owners = set()
    for each in distributions():
        name = _name_of(each)
        with suppress(Exception):  # files of any distribution, however broken
            files = [each.locate_file(file) for file in each.files or () if str(file) == init]
            if name != OWN_DISTRIBUTION and any(Path(str(file)).parent == place for file in files):
                owners.add(f"{name} {each.version}")
    return owners


def _name_of(distribution: Distribution) -> str:
    """Return the distribution's name; empty if it cannot be read."""
    with suppress(Exception):  # files of any distribution, however broken
        return distribution.name or ""
    return ""


def _entry_points(problems: list[LoadProblem]) -> list[EntryPoint]:
    """Return the entry points of all installed distributions; add a problem for each unreadable one."""
    if not _may_have_entry_points():
        return []
    from importlib.metadata import entry_points

    # Not before: from Python 3.13 on it imports `importlib.metadata` itself.
    importlib.invalidate_caches()
    try:
        found = list(entry_points(group=ENTRY_POINT_GROUP))
    except Exception:  # noqa: BLE001 - files of any distribution, however broken
        found = _readable_entry_points(problems)
    by_reference = {each.value: each for each in found}
    return [by_reference[reference] for reference in sorted(by_reference)]


def _may_have_entry_points() -> bool:
    """Return whether some distribution may have policies.

    `importlib.metadata`, with the parsers of mails, archives and tables that it imports, costs 40 ms and
    1.4 MB for the life of the daemon.
    """
    if any(hasattr(finder, "find_distributions") for finder in sys.meta_path if finder is not PathFinder):
        return True
    for place in map(Path, sys.path):
        try:
            is_archive = place.is_file()
        except PermissionError:  # so is what it holds
            continue
        if is_archive:
            return True
        for file in (*place.glob("*.dist-info/entry_points.txt"), *place.glob("*.egg-info/entry_points.txt")):
            try:
                if ENTRY_POINT_GROUP.encode() in file.read_bytes():
                    return True
            except OSError:
                return True
    return False


def _readable_entry_points(problems: list[LoadProblem]) -> list[EntryPoint]:
    from importlib.metadata import distributions

    found: list[EntryPoint] = []
    for distribution in distributions():
        try:
            found += distribution.entry_points.select(group=ENTRY_POINT_GROUP)
        except Exception as error:  # noqa: BLE001 - files of any distribution, however broken
            whose = f"the distribution {name}" if (name := _name_of(distribution)) else "a distribution"
            place = distribution.locate_file("")
            text = f"entry points of {whose} in {place}: cannot be read: {described(error)}"
            problems.append(LoadProblem("entry points", text))
    return found


def _create(policy: type[Policy], settings: PolicySettings) -> LoadedPolicy:
    arguments: tuple[object, ...] = ()
    if policy.options_type is not None:
        arguments = (make_options(policy.name, policy.options_type, settings.options),)
    elif settings.options:
        raise PolicyLoadError(f"policy {policy.name} has no options: {', '.join(sorted(settings.options))}")
    try:
        created = policy(*arguments)
    except BaseException as error:  # a third-party constructor may raise anything
        raise PolicyLoadError(f"{origin_of(policy)}: cannot be created: {described(error)}") from error
    return bind(created, settings)


def make_options(name: str, options_type: type[Any], values: Mapping[str, object]) -> object:
    """Return an instance of a policy's options dataclass with these values, the rest being defaults.

    Raises:
        PolicyLoadError: an unknown key, a value of another type, or one that the type itself refuses.
    """
    if not values:
        return options_type()
    known = sorted(field.name for field in dataclasses.fields(options_type))
    unknown = ", ".join(sorted(set(values).difference(known)))
    if unknown:
        raise PolicyLoadError(f"policy {name}: unknown option {unknown}; there are: {', '.join(known)}")
    from pydantic import TypeAdapter, ValidationError  # slow to import, and needed only where options are set

    try:
        # As JSON, because strict Python input would want an instance of the class.
        text = json.dumps(dict(values), default=str)
        return TypeAdapter[object](options_type).validate_json(text, strict=True)
    except ValidationError as error:
        reasons = [
            f"{'.'.join(map(str, each['loc'])) or 'options'}: "
            + each["msg"].replace("Input should", "must").removeprefix("Value error, ")
            for each in error.errors(include_url=False, include_input=False)
        ]
        raise PolicyLoadError(f"policy {name}: {'; '.join(reasons)}") from error


class _State(NamedTuple):
    """The state of a distribution when code of it was imported."""

    version: str = ""
    record: str = ""
    """Digest of the list of the distribution's files."""


class _ImportedCode:
    """Distributions and files that policies were imported from, to notice later changes of them."""

    def __init__(self) -> None:
        self._distributions: dict[str, _State] = {}
        self._files: dict[str, tuple[str, str]] = {}

    def note(self, reference: str, distribution: str) -> None:
        if distribution and distribution not in self._distributions:
            self._distributions[distribution] = _state_of(distribution)
        package = reference.partition(":")[0].partition(".")[0]
        for name, module in list(sys.modules.items()):
            if name == package or name.startswith(f"{package}."):
                path = getattr(module, "__file__", None)
                if isinstance(path, str) and path not in self._files:
                    self._files[path] = (distribution or package, _file_digest(path))

    def changed(self) -> tuple[str, ...]:
        """Return the changes of code since its import, one text for each distribution or package."""
        found: dict[str, str] = {}
        for distribution, before in self._distributions.items():
            now = _state_of(distribution)
            if now.version != before.version:
                found[distribution] = (
                    f"{before.version or 'not installed'} is now {now.version or 'not installed'}"
                )
            elif now.record != before.record:
                found[distribution] = "was installed again"
        for path, (owner, digest) in self._files.items():
            if owner not in found and _file_digest(path) != digest:
                found[owner] = f"{path} has changed"
        return tuple(f"{owner}: {reason}" for owner, reason in sorted(found.items()))


def _state_of(distribution: str) -> _State:
    if distribution == OWN_DISTRIBUTION:
        return _own_state()
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import distribution as find

    try:
        found: Distribution = find(distribution)
        return _State(found.version, _digest((found.read_text("RECORD") or "").encode()))
    except (PackageNotFoundError, OSError, UnicodeDecodeError, KeyError):
        return _State()


def _own_state() -> _State:
    """Return the state of the proxy's own wheel; see `_may_have_entry_points` for what importlib costs."""
    pattern = OWN_DISTRIBUTION.replace("-", "_") + "-*.dist-info"
    for about in Path(__file__).parents[2].glob(pattern):
        with suppress(OSError, UnicodeDecodeError):
            metadata = (about / "METADATA").read_text(encoding="utf-8").splitlines()
            versions = (line.removeprefix("Version: ") for line in metadata if line.startswith("Version: "))
            return _State(next(versions, ""), _file_digest(about / "RECORD"))
    return _State()


def _file_digest(path: str | Path) -> str:
    try:
        return _digest(Path(path).read_bytes())
    except OSError:
        return ""


def _digest(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()
