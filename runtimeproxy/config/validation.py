"""Checks of settings across keys, the same for flags, environment and file; what the daemon makes of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from runtimeproxy.config.parsing import (
    TEMPORARY_SUFFIX_BYTES,
    group_id,
    is_installed,
    is_same_socket,
    parse_collector,
    parse_endpoint,
    parse_http_url,
    parse_listen,
    socket_mode_bits,
    user_id,
)
from runtimeproxy.config.settings import (
    BUILT_IN_PLUGINS,
    FEATURE_GATES,
    KatalystSettings,
    KubernetesSettings,
    NriSettings,
    OwnerSettings,
    PluginSettings,
    ProxySettings,
    Settings,
)
from runtimeproxy.errors import ConfigError
from runtimeproxy.fields.tables import PARAMETERS
from runtimeproxy.hooks.selector import selector_problems
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.labels import LabelSelector, node_name_problem
from runtimeproxy.spelling import did_you_mean, nearest
from runtimeproxy.vocabulary import Mode, Role

if TYPE_CHECKING:
    from runtimeproxy.hooks.owners import Owner
    from runtimeproxy.katalyst.levels import LevelRules
    from runtimeproxy.node.inputs import InputPlaces

ValueT = TypeVar("ValueT")
ParsedT = TypeVar("ParsedT")

Problem = tuple[tuple[str, ...], str]
"""The parts of the key (none for the whole table), and the reason."""


_HTTP_MODULE: Final = "urllib3"
_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LINK: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
"""Source: Linux net/core/dev.c, dev_valid_name; without what means something to `tc` and nftables."""
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
    proxy = _with_paths(settings, problems)
    if not problems:
        problems += _own_socket_problems(proxy)
        _parsed(("api", "admin_socket"), settings, admin_socket, problems)
    _parsed(("metrics", "listen"), settings.metrics.listen, parse_listen, problems)
    if settings.metrics.page and not settings.metrics.listen:
        problems.append((("metrics", "page"), "needs metrics.listen: the page is served there"))
    endpoint = _parsed(("tracing", "endpoint"), settings.tracing.endpoint, parse_collector, problems)
    tracing = settings.tracing if endpoint is None else replace(settings.tracing, endpoint=endpoint)
    problems += _proxy_problems(proxy)
    problems += _daemon_problems(settings)
    problems += _nri_problems(settings.nri)
    problems += _folder_problems(settings)
    if settings.node.name and (reason := node_name_problem(settings.node.name)):
        problems.append((("node", "name"), reason))
    links = (
        (("link",), settings.network.link),
        *((("tunnels", str(at)), name) for at, name in enumerate(settings.network.tunnels)),
    )
    problems += (
        (("network", *key), f"{name!r} is not the name of a link")
        for key, name in links
        if not _LINK.fullmatch(name) and (name or key != ("link",))
    )
    problems += _kubernetes_problems(settings.kubernetes)
    problems += _katalyst_problems(settings.katalyst)
    problems += _pool_problems(settings)
    taken = enumerate(settings.ledger.take_from_koordlet)
    problems += (
        (("ledger", "take_from_koordlet", str(index)), f"{name!r} is not a cgroup parameter")
        for index, name in taken
        if name not in PARAMETERS
    )
    for name, policy in settings.policies.items():
        problems += ((("policies", name, *key), reason) for key, reason in _policy_problems(policy))
    url = _parsed(
        ("qosmanager", "malachite_url"), settings.qosmanager.malachite_url, parse_http_url, problems
    )
    qosmanager = settings.qosmanager if url is None else replace(settings.qosmanager, malachite_url=url)
    for index, gate in enumerate(settings.qosmanager.feature_gates):
        if reason := _gate_problem(gate):
            problems.append((("qosmanager", "feature_gates", str(index)), reason))
    plugins = {name: _with_endpoint(name, each, problems) for name, each in settings.plugins.items()}
    problems += _owner_problems(settings)
    return (
        replace(settings, proxy=proxy, tracing=tracing, qosmanager=qosmanager, plugins=plugins),
        problems,
    )


def _parsed(
    key: tuple[str, ...], value: ValueT, parse: Callable[[ValueT], ParsedT], problems: list[Problem]
) -> ParsedT | None:
    try:
        return parse(value)
    except ValueError as error:
        problems.append((key, str(error)))
        return None


def owners_of(settings: Settings) -> dict[str, Owner]:
    """Returns the owners of claims by name: the built-in ones, and those that the settings name.

    Raises:
        ValueError: a rule cannot be used, which `checked` has found.
    """
    from runtimeproxy.hooks.owners import BUILT_IN, BuiltIn, Owner, parse_rule

    found: dict[str, Owner] = {}
    for name in sorted({*BUILT_IN, *settings.owners}):
        own, built_in = settings.owners.get(name, OwnerSettings()), BUILT_IN.get(name, BuiltIn())
        allow = built_in.allow if own.allow is None else own.allow
        found[name] = Owner(
            name,
            tuple(map(parse_rule, allow)),
            own.priority,
            Mode(own.mode),
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
        wrong: list[Problem] = []
        for index, text in enumerate(owner.allow or ()):
            _parsed(("owners", name, "allow", str(index)), text, parse_rule, wrong)
        yield from wrong


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
        guess = did_you_mean(nearest(name, BUILT_IN_PLUGINS))
        own = guess or f": it is none of {', '.join(BUILT_IN_PLUGINS)}"
        problems.append((path, f"needs an endpoint or a reference{own}"))
    else:
        endpoint = _parsed((*path, "endpoint"), plugin.endpoint, parse_endpoint, problems)
        return plugin if endpoint is None else replace(plugin, endpoint=endpoint)
    return plugin


def _gate_problem(text: str) -> str:
    name, _, value = text.partition("=")
    if name not in FEATURE_GATES:
        return f"{name!r} is not a feature gate; there are {', '.join(FEATURE_GATES)}"
    return "" if value in ("true", "false") else f"write {name}=true or {name}=false"


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


def _kubernetes_problems(kubernetes: KubernetesSettings) -> Iterator[Problem]:
    if kubernetes.enabled and not is_installed(_HTTP_MODULE):
        extra = "needs the extra kubernetes: pip install 'koord-runtime-proxy[kubernetes]'"
        yield ("kubernetes", "enabled"), extra
    if kubernetes.kubeconfig and not kubernetes.kubeconfig.startswith("/"):
        yield ("kubernetes", "kubeconfig"), f"{kubernetes.kubeconfig!r} is not an absolute path"
    if not _DNS_LABEL.fullmatch(kubernetes.config_namespace):
        yield ("kubernetes", "config_namespace"), f"{kubernetes.config_namespace!r} is not a namespace"


def owner_ids(proxy: ProxySettings) -> tuple[int, int]:
    """User and group of the own socket as numbers; -1 where it stays the daemon's own.

    Raises:
        ValueError: no such user or group.
    """
    return user_id(proxy.socket_owner), group_id(proxy.socket_group)


def _with_paths(settings: Settings, problems: list[Problem]) -> ProxySettings:
    proxy, may_be_alone = settings.proxy, settings.daemon.mode == "standalone"

    def path(key: str, text: str, spare_bytes: int = 0) -> str:
        parse = partial(parse_endpoint, spare_bytes=spare_bytes)
        return _parsed(("proxy", key), text, parse, problems) or text

    return replace(
        proxy,
        endpoint=path("endpoint", proxy.endpoint, TEMPORARY_SUFFIX_BYTES),
        runtime_endpoint=""
        if may_be_alone and not proxy.runtime_endpoint
        else path("runtime_endpoint", proxy.runtime_endpoint),
        image_endpoint=path("image_endpoint", proxy.image_endpoint) if proxy.image_endpoint else "",
    )


def _own_socket_problems(proxy: ProxySettings) -> Iterator[Problem]:
    for key in ("runtime_endpoint", "image_endpoint"):
        path = getattr(proxy, key)
        if path and is_same_socket(path, proxy.endpoint):
            yield ("proxy", key), f"{path} is the proxy's own socket: the proxy would forward to itself"


def _proxy_problems(proxy: ProxySettings) -> Iterator[Problem]:
    wrong: list[Problem] = []
    _parsed(("proxy", "socket_mode"), proxy.socket_mode, socket_mode_bits, wrong)
    _parsed(("proxy", "socket_owner"), proxy.socket_owner, user_id, wrong)
    _parsed(("proxy", "socket_group"), proxy.socket_group, group_id, wrong)
    yield from wrong
    if proxy.held_budget_bytes < proxy.max_message_bytes:
        reason = f"is less than the largest message (proxy.max_message_bytes is {proxy.max_message_bytes})"
        yield ("proxy", "held_budget_bytes"), reason


def _daemon_problems(settings: Settings) -> Iterator[Problem]:
    if settings.daemon.mode == "standalone" and not settings.cgroups.enabled:
        yield ("daemon", "mode"), "standalone writes cgroup files only, and cgroups.enabled is false"


def _nri_problems(nri: NriSettings) -> Iterator[Problem]:
    if not re.fullmatch("[0-9]{2}", nri.plugin_index):
        yield ("nri", "plugin_index"), f"{nri.plugin_index!r} is not two digits"
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", nri.plugin_name):
        yield (
            ("nri", "plugin_name"),
            f"{nri.plugin_name!r} is not a name of letters, digits, '_', '.' and '-'",
        )


def _folder_problems(settings: Settings) -> Iterator[Problem]:
    for key, path in (
        (("daemon", "lock"), settings.daemon.lock),
        (("nri", "socket"), settings.nri.socket),
        (("hooks", "server_config_dir"), settings.hooks.server_config_dir),
        (("hooks", "policies_dir"), settings.hooks.policies_dir or "/"),
        (("cgroups", "root"), settings.cgroups.root),
        (("node", "sysfs_root"), settings.node.sysfs_root),
        (("node", "procfs_root"), settings.node.procfs_root),
        (("node", "objects_dir"), settings.node.objects_dir or "/"),
        (("node", "kubelet_dir"), settings.node.kubelet_dir or "/"),
        (("node", "cdi_dir"), settings.node.cdi_dir or "/"),
        (("state", "dir"), settings.state.dir),
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


def level_rules(katalyst: KatalystSettings) -> LevelRules:
    """The rules about levels.

    Raises:
        ValueError: an item is not of the form `KEY=VALUE`, which `checked` has found.
    """
    from runtimeproxy.katalyst.levels import LevelRules, OnError, Vocabulary
    from runtimeproxy.katalyst.names import QosLevel

    selectors = {
        QosLevel.DEDICATED: katalyst.dedicated_selector,
        QosLevel.SHARED: katalyst.shared_selector,
        QosLevel.RECLAIMED: katalyst.reclaimed_selector,
        QosLevel.SYSTEM: katalyst.system_selector,
    }
    return LevelRules(
        selectors={level: dict(map(_pair, texts)) for level, texts in selectors.items() if texts},
        aliases={other: usual for usual, other in map(_alias, katalyst.enhancement_aliases)},
        default_values=dict(map(_pair, katalyst.enhancement_defaults)),
        default_level=QosLevel(katalyst.default_level) if katalyst.default_level else None,
        order=tuple(map(Vocabulary, katalyst.order)),
        on_error=OnError(katalyst.on_error),
        allow_unbound_dedicated=katalyst.allow_unbound_dedicated,
    )


def _pool_problems(settings: Settings) -> Iterator[Problem]:
    """Two policies that both give pods their CPUs: one would take what the other one gives."""
    pools, cpuset = settings.policies.get(_POOLS), settings.policies.get(_CPUSET)
    if pools is None or not pools.enabled:
        return
    if cpuset is None or cpuset.enabled is not False:
        reason = f"and {_CPUSET} both set the CPUs of pods: write [policies.{_CPUSET}] enabled = false"
        yield ("policies", _POOLS, "enabled"), reason
    if settings.node.shared_pools == "computed":
        yield ("node", "shared_pools"), f"is computed for {_CPUSET}: with {_POOLS} the pools are Katalyst's"


_POOLS: Final = "katalyst-pools"
_CPUSET: Final = "cpuset"
_PAIRS: Final = (
    *("dedicated_selector", "shared_selector", "reclaimed_selector", "system_selector"),
    "enhancement_defaults",
)


def _katalyst_problems(katalyst: KatalystSettings) -> Iterator[Problem]:
    wrong: list[Problem] = []
    for key in _PAIRS:
        for index, text in enumerate(getattr(katalyst, key)):
            _parsed(("katalyst", key, str(index)), text, _pair, wrong)
    for index, text in enumerate(katalyst.enhancement_aliases):
        _parsed(("katalyst", "enhancement_aliases", str(index)), text, _alias, wrong)
    if sorted(katalyst.order) != ["katalyst", "koordinator"]:
        wrong.append((("katalyst", "order"), "must name katalyst and koordinator, each once"))
    yield from wrong


def _pair(text: str) -> tuple[str, str]:
    """Source: katalyst-core pkg/util/general, ParseMapWithPrefix."""
    key, *values = (each.strip() for each in text.split("="))
    if not key or len(values) != 1:
        raise ValueError(f"{text!r} is not of the form KEY=VALUE")
    return key, values[0]


def _alias(text: str) -> tuple[str, str]:
    from runtimeproxy.katalyst.levels import ENHANCEMENTS

    usual, other = _pair(text)
    if usual not in ENHANCEMENTS or not other:
        raise ValueError(f"{text!r} is not one of {', '.join(ENHANCEMENTS)} with =NAME")
    return usual, other


def places_of(settings: Settings) -> InputPlaces:
    from runtimeproxy.node.inputs import InputPlaces

    node = settings.node
    return InputPlaces(
        sysfs=Path(node.sysfs_root),
        procfs=Path(node.procfs_root),
        cgroup_root=Path(settings.cgroups.root),
        kubelet_dir=Path(node.kubelet_dir) if node.kubelet_dir else None,
        objects_dir=Path(node.objects_dir) if node.objects_dir else None,
        cdi_dir=Path(node.cdi_dir) if node.cdi_dir else None,
        state_dir=Path(settings.state.dir),
        node_name=node.name,
        pools=node.shared_pools,
        levels=level_rules(settings.katalyst),
    )
