"""Checks of settings: across keys, the same for flags, environment and file, and against the node."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.cgroups.parameters import PARAMETERS
from runtimeproxy.config.settings import (
    BUILT_IN_PLUGINS,
    FEATURE_GATES,
    KubernetesSettings,
    OwnerSettings,
    PluginSettings,
    ProxySettings,
    Settings,
)
from runtimeproxy.errors import ConfigError
from runtimeproxy.hooks.selector import selector_problems
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.labels import LabelSelector, node_name_problem

if TYPE_CHECKING:
    from runtimeproxy.config.sources import Reading
    from runtimeproxy.hooks.loading import LoadProblem, LoadResult
    from runtimeproxy.hooks.owners import Owner
    from runtimeproxy.node.inputs import Places

Problem = tuple[tuple[str, ...], str]
"""The parts of the key (none for the whole table), and the reason."""

MAX_SOCKET_PATH_BYTES: Final = 107
"""Longest path of a Unix socket. Source: unix(7): sun_path has 108 bytes with its NUL."""
TEMPORARY_SUFFIX_BYTES: Final = 4
"""The proxy's own socket is bound under a temporary name (`.new` is appended), so its path must be that much
shorter. Source: runtimeproxy.relay.listener."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MAX_ID: Final = 2**32 - 2
"""Source: chown(2): ids have 32 bits, and -1 among them means to leave the owner as it is."""
_MODE: Final = re.compile(r"0?[0-7]{3}")
_COLLECTOR: Final = re.compile(r"(https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]))(?::([0-9]{1,5}))?/?")
_OTLP_PORT: Final = 4317
"""Source: the OTLP specification, "OTLP/gRPC Default Port"."""
_OTLP_MODULE: Final = "opentelemetry.exporter.otlp.proto.grpc"
"""Its distribution needs the SDK; the packages around it have no code."""
_HTTP_MODULE: Final = "urllib3"
_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""A namespace's name. Source: RFC 1123, section 2.1; Kubernetes, "Object Names and IDs"."""


class CombinedConfigError(ConfigError):
    """All problems of a configuration; the text has one line for each.

    Attributes:
        errors: each of them, never empty. Source, key and reason are the first one's.
    """

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        super().__init__(first.source, first.key, first.reason)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


def combined_message(error: ConfigError) -> str:
    """The error that ends a start, for people: one line, or one for each problem."""
    if not isinstance(error, CombinedConfigError) or len(error.errors) == 1:
        return f"configuration error: {error}"
    return "\n  ".join(("configuration errors:", *map(str, error.errors)))


def checked(settings: Settings) -> tuple[Settings, list[Problem]]:
    """The settings with endpoints as plain absolute paths, and every problem."""
    problems: list[Problem] = []
    proxy = _with_paths(settings.proxy, problems)
    if not problems:
        problems += _own_socket_problems(proxy)
        try:
            admin_socket(settings)
        except ValueError as error:
            problems.append((("api", "admin_socket"), str(error)))
    try:
        parse_listen(settings.metrics.listen)
    except ValueError as error:
        problems.append((("metrics", "listen"), str(error)))
    if settings.metrics.page and not settings.metrics.listen:
        problems.append((("metrics", "page"), "needs metrics.listen: the page is served there"))
    tracing = settings.tracing
    try:
        tracing = replace(tracing, endpoint=parse_collector(tracing.endpoint))
    except ValueError as error:
        problems.append((("tracing", "endpoint"), str(error)))
    problems += _proxy_problems(proxy)
    problems += _folder_problems(settings)
    if settings.node.name and (reason := node_name_problem(settings.node.name)):
        problems.append((("node", "name"), reason))
    problems += _kubernetes_problems(settings.kubernetes)
    taken = enumerate(settings.ledger.take_from_koordlet)
    problems += (
        (("ledger", "take_from_koordlet", str(index)), f"{name!r} is not a cgroup parameter")
        for index, name in taken
        if name not in PARAMETERS
    )
    for name, policy in settings.policies.items():
        problems += ((("policies", name, *key), reason) for key, reason in _policy_problems(policy))
    for index, gate in enumerate(settings.qosmanager.feature_gates):
        if reason := _gate_problem(gate):
            problems.append((("qosmanager", "feature_gates", str(index)), reason))
    plugins = {name: _with_endpoint(name, each, problems) for name, each in settings.plugins.items()}
    problems += _owner_problems(settings)
    return replace(settings, proxy=proxy, tracing=tracing, plugins=plugins), problems


def owners_of(settings: Settings) -> dict[str, Owner]:
    """Returns the owners of claims by name: the built-in ones, and those that the settings name.

    Raises:
        ValueError: a rule cannot be used, which `checked` has found.
    """
    from runtimeproxy.hooks.algebra import Role
    from runtimeproxy.hooks.owners import BUILT_IN, BuiltIn, Owner, parse_rule

    found: dict[str, Owner] = {}
    for name in sorted({*BUILT_IN, *settings.owners}):
        own, built_in = settings.owners.get(name, OwnerSettings()), BUILT_IN.get(name, BuiltIn())
        allow = built_in.allow if own.allow is None else own.allow
        found[name] = Owner(
            name,
            tuple(map(parse_rule, allow)),
            own.priority,
            own.mode,
            frozenset(map(Role, own.hold_roles)),
            own.hold_s,
            own.most_claims,
            own.most_bytes,
            built_in.may_evict if own.may_evict is None else own.may_evict,
        )
    return found


_OWNER_NAME: Final = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""Source: RFC 1123, as names of Kubernetes' objects."""


def _owner_problems(settings: Settings) -> Iterator[Problem]:
    if not settings.owners:
        return
    from runtimeproxy.hooks.owners import parse_rule

    for name, owner in settings.owners.items():
        if not _OWNER_NAME.fullmatch(name):
            yield ("owners", name), "is not a name of lower-case letters, digits and dashes"
        for index, text in enumerate(owner.allow or ()):
            try:
                parse_rule(text)
            except ValueError as error:
                yield ("owners", name, "allow", str(index)), str(error)


def parse_endpoint(text: str, *, spare_bytes: int = 0) -> str:
    """Returns the absolute path in `/path`, `unix:/path` or `unix:///path`.

    Args:
        text: the endpoint as given.
        spare_bytes: how much shorter than the longest socket path it has to be.

    Raises:
        ValueError: it is none of the three, or too long; says which.
    """
    path = text
    if text.startswith("unix://"):
        path = text.removeprefix("unix://")
    elif text.startswith("unix:"):
        path = text.removeprefix("unix:")
    elif _SCHEME.match(text):
        raise ValueError(f"{text!r} is not a Unix socket: write /path, unix:/path or unix:///path")
    if not path.startswith("/"):
        raise ValueError(f"{text!r} has no absolute path: write /path, unix:/path or unix:///path")
    if path.endswith("/") or "\0" in path or any(0xD800 <= ord(letter) <= 0xDBFF for letter in path):
        raise ValueError(f"{text!r} does not name a file")
    path = "/" + path.lstrip("/")
    size, most = len(os.fsencode(path)), MAX_SOCKET_PATH_BYTES - spare_bytes
    if size > most:
        raise ValueError(f"the socket path has {size} bytes, at most {most} are possible: {path}")
    return path


def feature_gates(texts: Sequence[str]) -> dict[str, bool]:
    """All feature gates by name.

    Args:
        texts: those that differ from the defaults, `NAME=true` or `NAME=false`; of two of one name the last.
    """
    named = (text.partition("=") for text in texts)
    return {**FEATURE_GATES, **{name: value == "true" for name, _, value in named}}


def _with_endpoint(name: str, plugin: PluginSettings, problems: list[Problem]) -> PluginSettings:
    path = ("plugins", name)
    if name in BUILT_IN_PLUGINS:
        reason = "this plugin is one of koord-qos-manager's own"
        problems += (((*path, key), reason) for key in ("endpoint", "reference") if getattr(plugin, key))
    elif plugin.endpoint and plugin.reference:
        problems.append((path, "has an endpoint and a reference; it is one or the other"))
    elif plugin.reference:
        if not _REFERENCE.fullmatch(plugin.reference):
            problems.append(((*path, "reference"), f"{plugin.reference!r} is not of the form module:Class"))
    elif not plugin.endpoint:
        own = ", ".join(BUILT_IN_PLUGINS)
        problems.append((path, f"needs an endpoint or a reference: it is none of {own}"))
    else:
        try:
            return replace(plugin, endpoint=parse_endpoint(plugin.endpoint))
        except ValueError as error:
            problems.append((("plugins", name, "endpoint"), str(error)))
    return plugin


def _gate_problem(text: str) -> str:
    name, _, value = text.partition("=")
    if name not in FEATURE_GATES:
        return f"{name!r} is not a feature gate; there are {', '.join(FEATURE_GATES)}"
    return "" if value in ("true", "false") else f"write {name}=true or {name}=false"


class TcpAddress(NamedTuple):
    """An address to listen on."""

    host: str
    """An IP address."""
    port: int


def parse_listen(text: str) -> TcpAddress | str | None:
    """Returns the address in a port, `address:port`, or the path in `/path`, `unix:///path`; None for none.

    Raises:
        ValueError: it is none of them; says which.
    """
    if not text:
        return None
    if text.startswith(("/", "unix:")):
        return parse_endpoint(text, spare_bytes=TEMPORARY_SUFFIX_BYTES)
    host, has_host, digits = text.rpartition(":")
    if not digits.isascii() or not digits.isdecimal() or not 0 < int(digits) < 65536:
        raise ValueError(f"{text!r} is not a port, an address with a port, or a path")
    if not has_host:
        return TcpAddress("127.0.0.1", int(digits))
    if host == "localhost":
        host = "127.0.0.1"
    import ipaddress

    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise ValueError(f"{host!r} is not an IP address") from None
    if (address.version == 6) is not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, and no other one")
    return TcpAddress(str(address), int(digits))


def admin_socket(settings: Settings) -> str:
    """The absolute path of the admin socket; empty for none.

    Raises:
        ValueError: it cannot be one; says why.
    """
    text = settings.api.admin_socket
    if not text:
        return ""
    if ":" in text.partition("/")[0] or text.startswith("/"):
        return parse_endpoint(text, spare_bytes=TEMPORARY_SUFFIX_BYTES)
    folder = os.path.dirname(settings.proxy.endpoint.removeprefix("unix://").removeprefix("unix:"))  # noqa: PTH120
    return parse_endpoint(f"{folder}/{text}", spare_bytes=TEMPORARY_SUFFIX_BYTES)


def parse_collector(text: str) -> str:
    """Returns the endpoint `http://host:port` or `https://host:port`, or a socket's path; empty for none.

    Raises:
        ValueError: it is none of them, or OpenTelemetry is not installed; says which.
    """
    if not text:
        return ""
    if text.startswith(("/", "unix:")):
        endpoint = parse_endpoint(text)
    elif match := _COLLECTOR.fullmatch(text):
        endpoint = f"{match[1]}:{match[2] or _OTLP_PORT}"
        if int(match[2] or _OTLP_PORT) not in range(1, 65536):
            raise ValueError(f"{match[2]} is not a port")
    else:
        raise ValueError(f"{text!r} is not a collector: write http://host:port, https://host:port or /path")
    if not _is_installed(_OTLP_MODULE):
        raise ValueError("needs the extra otel: pip install 'koord-runtime-proxy[otel]'")
    return endpoint


def _kubernetes_problems(kubernetes: KubernetesSettings) -> Iterator[Problem]:
    if kubernetes.enabled and not _is_installed(_HTTP_MODULE):
        extra = "needs the extra kubernetes: pip install 'koord-runtime-proxy[kubernetes]'"
        yield ("kubernetes", "enabled"), extra
    if kubernetes.kubeconfig and not kubernetes.kubeconfig.startswith("/"):
        yield ("kubernetes", "kubeconfig"), f"{kubernetes.kubeconfig!r} is not an absolute path"
    if not _DNS_LABEL.fullmatch(kubernetes.config_namespace):
        yield ("kubernetes", "config_namespace"), f"{kubernetes.config_namespace!r} is not a namespace"


def _is_installed(module: str) -> bool:
    """Whether a module can be found; the packages around it are imported."""
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def is_same_socket(one: str, other: str) -> bool:
    """Whether two paths lead to one socket, through links and hard links too."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)  # noqa: PTH121 - both are text here
    except OSError:
        return False


def socket_mode_bits(text: str) -> int:
    """The permissions in `0660` or `660`.

    Raises:
        ValueError: the text is not such a number.
    """
    if not _MODE.fullmatch(text):
        raise ValueError(f"{text!r} is not an octal mode such as 0660")
    return int(text, 8)


def owner_ids(proxy: ProxySettings) -> tuple[int, int]:
    """User and group of the own socket as numbers; -1 where it stays the daemon's own.

    Raises:
        ValueError: no such user or group.
    """
    return _user_id(proxy.socket_owner), _group_id(proxy.socket_group)


def _with_paths(proxy: ProxySettings, problems: list[Problem]) -> ProxySettings:
    def path(key: str, text: str, spare_bytes: int = 0) -> str:
        try:
            return parse_endpoint(text, spare_bytes=spare_bytes)
        except ValueError as error:
            problems.append((("proxy", key), str(error)))
            return text

    return replace(
        proxy,
        endpoint=path("endpoint", proxy.endpoint, TEMPORARY_SUFFIX_BYTES),
        runtime_endpoint=path("runtime_endpoint", proxy.runtime_endpoint),
        image_endpoint=path("image_endpoint", proxy.image_endpoint) if proxy.image_endpoint else "",
    )


def _own_socket_problems(proxy: ProxySettings) -> Iterator[Problem]:
    for key in ("runtime_endpoint", "image_endpoint"):
        path = getattr(proxy, key)
        if path and is_same_socket(path, proxy.endpoint):
            yield ("proxy", key), f"{path} is the proxy's own socket: the proxy would forward to itself"


def _proxy_problems(proxy: ProxySettings) -> Iterator[Problem]:
    for key, check in (
        ("socket_mode", socket_mode_bits),
        ("socket_owner", _user_id),
        ("socket_group", _group_id),
    ):
        try:
            check(getattr(proxy, key))
        except ValueError as error:
            yield ("proxy", key), str(error)
    if proxy.held_budget_bytes < proxy.max_message_bytes:
        reason = f"is less than the largest message (proxy.max_message_bytes is {proxy.max_message_bytes})"
        yield ("proxy", "held_budget_bytes"), reason


def _folder_problems(settings: Settings) -> Iterator[Problem]:
    for key, path in (
        (("hooks", "server_config_dir"), settings.hooks.server_config_dir),
        (("hooks", "policies_dir"), settings.hooks.policies_dir or "/"),
        (("cgroups", "root"), settings.cgroups.root),
        (("node", "sysfs_root"), settings.node.sysfs_root),
        (("node", "objects_dir"), settings.node.objects_dir or "/"),
        (("node", "kubelet_dir"), settings.node.kubelet_dir or "/"),
        (("state", "dir"), settings.state.dir),
        (("audit", "file"), settings.audit.file or "/"),
        (("audit", "file"), settings.audit.file or "/"),
    ):
        if not path.startswith("/") or "\0" in path:
            yield key, f"{path!r} is not an absolute path"


def _policy_problems(policy: PolicySettings) -> Iterator[Problem]:
    if policy.timeout_s is not None and not 0 < policy.timeout_s <= 600:
        yield ("timeout_s",), "must be more than 0 and at most 600"
    if policy.priority is not None and not 0 <= policy.priority <= 99:
        yield ("priority",), "must be in 0 to 99"
    for place, reason in selector_problems(policy.namespaces, policy.selector or LabelSelector()):
        yield place if place[0] == "namespaces" else ("selector", *place), reason


def _user_id(name: str) -> int:
    import pwd

    if not name or name.isdecimal():
        return _id(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ValueError(f"there is no user {name!r}") from None


def _group_id(name: str) -> int:
    import grp

    if not name or name.isdecimal():
        return _id(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"there is no group {name!r}") from None


def _id(digits: str) -> int:
    number = int(digits or -1)
    if number > _MAX_ID:
        raise ValueError(f"{digits} is not a valid id: the largest is {_MAX_ID}")
    return number


# --- on the node -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Findings:
    """A problem: a setting has no effect. A warning: it has less effect than it seems, or may have none."""

    problems: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigError] = field(default_factory=list)


def check_on_node(reading: Reading, policies: LoadResult) -> Findings:
    """Returns every problem and warning, beginning with those of the reading.

    Args:
        reading: the settings and their problems.
        policies: the result of loading policies with these settings.
    """
    findings = Findings(list(reading.errors))
    findings.problems += (_policy_problem(reading, each) for each in policies.problems)
    _check_folders(reading, findings)
    _check_registrations(reading, findings)
    _check_node(reading, findings)
    _check_kubernetes(reading, findings)
    findings.warnings += _late(reading, policies)
    return findings


def _policy_problem(reading: Reading, problem: LoadProblem) -> ConfigError:
    """Names the source of the policy's settings, if it has any; the text names its file or module."""
    if problem.name in reading.settings.policies:
        return reading.error(("policies", problem.name), str(problem))
    return ConfigError("policies", "", str(problem))


def _check_folders(reading: Reading, findings: Findings) -> None:
    settings = reading.settings
    state, servers = Path(settings.state.dir), Path(settings.hooks.server_config_dir)
    endpoint = Path(settings.proxy.endpoint)
    wrong = {
        ("state", "dir"): _folder_problem(state, os.R_OK | os.W_OK | os.X_OK),
        ("hooks", "server_config_dir"): _folder_problem(servers, os.R_OK | os.X_OK),
        ("proxy", "endpoint"): _folder_problem(endpoint.parent, os.X_OK) or _socket_problem(endpoint),
    }
    node = {name: getattr(settings.node, name) for name in ("sysfs_root", "objects_dir", "kubelet_dir")}
    wrong |= {("node", name): _folder_problem(Path(path), 0) for name, path in node.items() if path}
    findings.problems += (reading.error(key, reason) for key, reason in wrong.items() if reason)
    if settings.cgroups.enabled and not Path(settings.cgroups.root).is_dir():
        reason = f"{settings.cgroups.root} is not a folder: no cgroup value can be written"
        findings.warnings.append(reading.error(("cgroups", "root"), reason))
    defaults = Settings()
    for group, name, what in (
        ("hooks", "server_config_dir", "no hook server"),
        ("hooks", "policies_dir", "no policy"),
        ("node", "objects_dir", "no object"),
        ("node", "kubelet_dir", "nothing"),
    ):
        named = getattr(getattr(settings, group), name)
        if named not in ("", getattr(getattr(defaults, group), name)) and not os.path.lexists(named):
            reason = f"{named} does not exist: {what} is loaded from it"
            findings.warnings.append(reading.error((group, name), reason))
    objects = Path(settings.node.objects_dir or os.devnull)
    for key, folder in (
        (("state", "dir"), state),
        (("hooks", "server_config_dir"), servers),
        (("node", "objects_dir"), objects),
    ):
        if reason := _others_write(folder):
            findings.warnings.append(reading.error(key, reason))


def _folder_problem(folder: Path, access: int) -> str:
    """Why a folder cannot be used; empty if it can, or can be made when it is needed."""
    there = folder
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            return f"{there} is not a folder"
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    if there == folder and not os.access(folder, access):
        missing = [name for name, bit in (("read", os.R_OK), ("write", os.W_OK)) if access & bit]
        return f"user {os.geteuid()} cannot {' and '.join(missing) or 'enter'} {folder}"
    return ""


def _socket_problem(path: Path) -> str:
    try:
        is_other = path.exists() and not path.is_socket()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return f"{path} exists and is not a socket" if is_other else ""


def _others_write(folder: Path) -> str:
    """Why a folder is not safe; empty if only the proxy's user or root may write to it."""
    try:
        status = folder.stat()
    except OSError:
        return ""
    if status.st_uid not in (0, os.geteuid()):
        return f"{folder} belongs to user {status.st_uid}, who can thus change pods of this node"
    if status.st_mode & _OTHERS_WRITE:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        return f"{folder} has mode {mode}: everyone who can write to it can change pods of this node"
    return ""


def _check_node(reading: Reading, findings: Findings) -> None:
    """Reads the node's inputs; their problems are warnings, as the daemon keeps the last good ones."""
    from runtimeproxy.node.facts import NodeReader
    from runtimeproxy.node.inputs import NodeInputs

    places = places_of(reading.settings)._replace(state_dir=None)
    inputs = NodeInputs(places, NodeReader(places.sysfs, places.cgroup_root))
    problems = inputs.look(0, is_first=True).problems
    findings.warnings += (ConfigError("node", "", problem) for problem in problems)


def _check_kubernetes(reading: Reading, findings: Findings) -> None:
    """Reads the kubeconfig; a problem is a warning, as the daemon serves without the API server."""
    kubernetes = reading.settings.kubernetes
    if not kubernetes.enabled or not kubernetes.kubeconfig:
        return
    from runtimeproxy.kubernetes.access import AccessError, load_access

    try:
        load_access(Path(kubernetes.kubeconfig)).token()
    except AccessError as error:
        findings.warnings.append(reading.error(("kubernetes", "kubeconfig"), str(error)))


def places_of(settings: Settings) -> Places:
    """Where the inputs of the node are."""
    from runtimeproxy.node.inputs import Places

    node = settings.node
    return Places(
        sysfs=Path(node.sysfs_root),
        cgroup_root=Path(settings.cgroups.root),
        kubelet_dir=Path(node.kubelet_dir) if node.kubelet_dir else None,
        objects_dir=Path(node.objects_dir) if node.objects_dir else None,
        state_dir=Path(settings.state.dir),
        node_name=node.name,
        pools=node.shared_pools,
    )


def _check_registrations(reading: Reading, findings: Findings) -> None:
    from runtimeproxy.hooks.remote.registrations import (
        UnreadableFileError,
        parse_registration,
        read_registration,
        registration_names,
    )

    hooks = reading.settings.hooks
    folder = Path(hooks.server_config_dir)
    try:
        names = registration_names(folder)
    except OSError:
        # It does not exist yet, or was reported above.
        return
    for name in names:
        source = str(folder / name)
        try:
            parsed = parse_registration(name, read_registration(folder / name).data, hooks.server_timeout_s)
        except FileNotFoundError:
            continue
        except UnreadableFileError as error:
            findings.problems.append(ConfigError(source, "", str(error)))
            continue
        # A file that is used nevertheless has only unknown keys.
        into = findings.problems if parsed.registration is None else findings.warnings
        into += (ConfigError(source, "", problem) for problem in parsed.problems)
        if parsed.registration is not None and parsed.registration.timeout_s > hooks.budget_s:
            reason = _more_than_budget(parsed.registration.timeout_s, hooks.budget_s)
            findings.warnings.append(ConfigError(source, "timeout-seconds", reason))


def _late(reading: Reading, policies: LoadResult) -> Iterator[ConfigError]:
    """Time limits that are never reached, because another one comes first."""
    settings = reading.settings
    budget_s = settings.hooks.budget_s
    if settings.hooks.server_timeout_s > budget_s:
        reason = _more_than_budget(settings.hooks.server_timeout_s, budget_s)
        yield reading.error(("hooks", "server_timeout_s"), reason)
    for policy in policies.policies:
        if policy.timeout_s > budget_s:
            reason = _more_than_budget(policy.timeout_s, budget_s)
            yield reading.error(("policies", policy.name, "timeout_s"), reason)
    if settings.hooks.load_timeout_s > settings.proxy.upgrade_start_s:
        reason = (
            f"{settings.hooks.load_timeout_s:g} s is more than proxy.upgrade_start_s has for all policies"
        )
        yield reading.error(("hooks", "load_timeout_s"), reason)


def _more_than_budget(timeout_s: float, budget_s: float) -> str:
    return f"{timeout_s:g} s is more than hooks.budget_s ({budget_s:g} s), after which the call goes on"
