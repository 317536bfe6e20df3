"""Which mode of the daemon suits a node, and what the chosen one leaves undone."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtimeproxy.documents.files import read_file
from runtimeproxy.documents.reading import InputError

if TYPE_CHECKING:
    from runtimeproxy.hooks.carried import CarriedFields
    from runtimeproxy.hooks.loaded import LoadedPolicy

CONTAINERD_CONFIG: Final = "etc/containerd/config.toml"
MAX_CONFIG_BYTES: Final = 1024 * 1024
_NRI_PLUGIN: Final = "io.containerd.nri.v1.nri"
"""Source: containerd plugins/nri, and its option `disable`."""
_PROVIDERS: Final = {
    "eks.amazonaws.com/": "EKS",
    "cloud.google.com/gke-": "GKE",
    "kubernetes.azure.com/": "AKS",
    "alibabacloud.com/nodepool-id": "ACK",
    "node.openshift.io/": "OpenShift",
}
"""Labels of nodes whose kubelet belongs to somebody else. Source: the providers' documentation."""


NRI_SINCE: Final = {"containerd": (1, 7), "cri-o": (1, 26)}
"""Source: the README of github.com/containerd/nri. containerd 1.7 has it off, containerd 2 on."""


class ModeFacts(NamedTuple):
    """What decides on the mode."""

    runtime: str = ""
    """Name and version; empty if it does not answer."""
    nri_answers: bool = False
    """Whether a process listens on the runtime's socket for plugins."""
    nri_disabled: bool | None = None
    """By containerd's configuration; None if that does not say, or cannot be read."""
    calls_us: bool = False
    """Whether a kubelet's endpoint is the daemon's socket."""
    fixed_kubelet: str = ""
    """Why the kubelet's endpoint cannot well be changed here; empty for nothing known."""


class Suited(NamedTuple):
    """A mode for this node, and why."""

    mode: str
    reason: str
    advice: str = ""


def suited_mode(facts: ModeFacts) -> Suited:
    """The mode that this node is made for."""
    if facts.calls_us:
        return Suited("proxy", "the kubelet calls the daemon's socket")
    if facts.nri_answers:
        return Suited("nri", f"{facts.runtime or 'the runtime'} asks plugins, and the kubelet stays as it is")
    if has_nri(facts.runtime):
        on = switch_on(facts.runtime)
        if facts.fixed_kubelet:
            return Suited("nri", f"{facts.fixed_kubelet}, and {facts.runtime} has NRI, which is off", on)
        return Suited("proxy", f"{facts.runtime} does not ask plugins; mode nri would need no kubelet", on)
    if not facts.runtime:
        return Suited("standalone", "no runtime answers: QoS classes and host applications have values alone")
    if facts.fixed_kubelet:
        return Suited("standalone", f"{facts.fixed_kubelet}, and {facts.runtime} has no NRI")
    return Suited("proxy", f"{facts.runtime} has no NRI")


def switch_on(runtime: str) -> str:
    """How NRI is switched on."""
    if runtime.startswith("cri-o"):
        return "enable_nri = true in [crio.nri] of CRI-O's configuration, and restart it"
    return f"disable = false in [plugins.'{_NRI_PLUGIN}'] of /{CONTAINERD_CONFIG}, and restart containerd"


def has_nri(runtime: str) -> bool:
    """Whether a runtime, by name and version, can have plugins."""
    name, _, version = runtime.partition(" ")
    numbers = version.removeprefix("v").split(".")
    if name not in NRI_SINCE or len(numbers) < 2 or not (numbers[0] + numbers[1]).isdecimal():
        return False
    return (int(numbers[0]), int(numbers[1])) >= NRI_SINCE[name]


def nri_disabled(root: Path) -> bool | None:
    """Whether containerd's configuration has NRI off; None if it does not say, or cannot be read."""
    try:
        data, _ = read_file(root / CONTAINERD_CONFIG, MAX_CONFIG_BYTES)
        document: Any = tomllib.loads(data.decode())
        found = document["plugins"][_NRI_PLUGIN]["disable"]
    except (OSError, InputError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, bool) else None


def fixed_kubelet(labels: Iterable[str], places: Iterable[str], root: Path) -> str:
    """Why a kubelet's endpoint cannot well be changed.

    Args:
        labels: Keys of the Node's labels.
        places: Files that set the kubelet's endpoint, or could.
        root: Of the file system.
    """
    for label in labels:
        for prefix, provider in _PROVIDERS.items():
            if label.startswith(prefix):
                return f"the kubelet belongs to {provider} (label {label})"
    for place in places:
        try:
            if os.statvfs(root / place.lstrip("/")).f_flag & os.ST_RDONLY:
                return f"{place} is on a read-only file system"
        except (OSError, ValueError):
            continue
    return ""


def left_undone_of(policies: Iterable[LoadedPolicy], carried: CarriedFields) -> dict[str, list[str]]:
    """What the policies set and a mode never applies, by policy."""
    from runtimeproxy.hooks.ways import left_undone

    found = {each.name: left_undone(carried, each.policy.sets_fields) for each in policies}
    return {name: fields for name, fields in found.items() if fields}
