"""Checks across keys, and the one form in which endpoints go on; the same for flags, environment and file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from runtimeproxy.config.endpoints import TEMPORARY_SUFFIX_BYTES, is_same_socket, parse_endpoint
from runtimeproxy.config.settings import ProxySettings, Settings
from runtimeproxy.hooks.selector import LabelSelector, selector_problems
from runtimeproxy.hooks.settings import PolicySettings

Problem = tuple[tuple[str, ...], str]

_MAX_ID: Final = 2**32 - 2
"""Source: chown(2): ids have 32 bits, and -1 among them means to leave the owner as it is."""
_MODE: Final = re.compile(r"0?[0-7]{3}")


def checked(settings: Settings) -> tuple[Settings, list[Problem]]:
    """The settings with endpoints as plain absolute paths, and all that is wrong with them."""
    problems: list[Problem] = []
    proxy = _with_paths(settings.proxy, problems)
    if not problems:
        problems += _own_socket_problems(proxy)
    problems += _proxy_problems(proxy)
    problems += _folder_problems(settings)
    for name, policy in settings.policies.items():
        problems += ((("policies", name, *key), reason) for key, reason in _policy_problems(policy))
    return replace(settings, proxy=proxy), problems


def socket_mode_bits(text: str) -> int:
    """The permissions in `0660` or `660`.

    Raises:
        ValueError: the text is no such number.
    """
    if not _MODE.fullmatch(text):
        raise ValueError(f"{text!r} is no octal mode such as 0660")
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
            yield ("proxy", key), f"{path} is the proxy's own socket: calls would go round in circles"


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
        reason = f"is less than one message may have (proxy.max_message_bytes is {proxy.max_message_bytes})"
        yield ("proxy", "held_budget_bytes"), reason


def _folder_problems(settings: Settings) -> Iterator[Problem]:
    for key, path in (
        (("hooks", "server_config_dir"), settings.hooks.server_config_dir),
        (("hooks", "policies_dir"), settings.hooks.policies_dir or "/"),
        (("cgroups", "root"), settings.cgroups.root),
        (("node", "sysfs_root"), settings.node.sysfs_root),
        (("state", "dir"), settings.state.dir),
    ):
        if not path.startswith("/") or "\0" in path:
            yield key, f"{path!r} is no absolute path"


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
        raise ValueError(f"{digits} is no user or group: they end at {_MAX_ID}")
    return number
