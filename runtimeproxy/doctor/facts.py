"""The facts that the checks of `doctor` are functions of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from runtimeproxy.config.settings import Settings
from runtimeproxy.doctor.modes import ModeFacts
from runtimeproxy.kubelet_endpoints import KubeletSetting, RunningKubelet
from runtimeproxy.node.koordlet import Koordlet
from runtimeproxy.node.snapshot import Node


class SocketState(StrEnum):
    """The result of connecting to a socket."""

    ANSWERS = "answers"
    MISSING = "missing"
    REFUSED = "refused"
    """There is a socket, but no process listens."""
    DENIED = "denied"
    """This user may not connect."""


class PolicyFacts(NamedTuple):
    """A policy that is on."""

    name: str
    features: frozenset[str] = frozenset()
    """Kernel features without which it does nothing."""
    is_configured: bool = False
    """Whether the configuration has settings for it."""
    undone: tuple[str, ...] = ()
    """What it sets and the chosen mode never applies."""


class RuntimeFacts(NamedTuple):
    """The container runtime, asked directly."""

    name: str = ""
    """Name and version; empty if it did not answer."""
    cgroup_driver: str = ""
    """systemd or cgroupfs; empty if it does not say."""
    error: str = ""
    is_denied: bool = False
    """Whether this user may not connect."""


class HookServerFacts(NamedTuple):
    """A registered hook server."""

    name: str
    """Name of its file."""
    endpoint: str
    state: SocketState
    is_asked: bool = True
    """Whether the mode of the configuration asks it at any of its hooks."""


class QosManagerFacts(NamedTuple):
    """The QoS manager, by the daemon."""

    is_running: bool = False
    is_missing: bool = False
    """Whether strategies ask for what nothing does."""
    note: str = ""
    """Why plugins that strategies ask for do not run; empty if all of them do."""


class FolderFacts(NamedTuple):
    """The state folder."""

    exists: bool = True
    is_denied: bool = False
    """Whether this user may not see if it is there."""
    mode: int = 0o700
    free_bytes: int = 2**40


class InputFile(NamedTuple):
    """A file with Kubernetes objects."""

    path: str
    kinds: tuple[str, ...]
    age_s: float
    """Since it was written; negative if that is in the future."""


class ApiServerFacts(NamedTuple):
    """The API server, asked with the daemon's credentials."""

    server: str = ""
    """Empty if that is not known."""
    error: str = ""
    """Why nothing can be asked; empty if it answers."""
    refused: Mapping[str, str] = {}
    """Kinds that cannot be listed, with the reason."""
    absent: tuple[str, ...] = ()
    """Kinds that it does not have."""
    node_name: str = ""
    has_node: bool = True
    """Whether there is a Node of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All facts; the defaults are those of a node on which nothing runs."""

    settings: Settings = field(default_factory=Settings)
    user_id: int = 0
    configuration_problems: tuple[str, ...] = ()
    configuration_warnings: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    """Files and folders that this user may not read."""
    configuration_denied: tuple[str, ...] = ()
    """What is wrong by this user's rights: the daemon's may be others."""
    is_file_denied: bool = False
    """Whether this user may not read the configuration file: defaults are in place of its settings."""
    policies: tuple[PolicyFacts, ...] = ()
    endpoint: SocketState = SocketState.MISSING
    is_served: bool = False
    """Whether a process holds the lock of the endpoint."""
    version: str = ""
    """Of the daemon, by its API; empty if it did not answer."""
    api_error: str = ""
    daemon_problems: tuple[str, ...] = ()
    """As the daemon reports them."""
    qos_manager: QosManagerFacts = field(default_factory=QosManagerFacts)
    kubelets: tuple[RunningKubelet, ...] = ()
    kubelet_files: tuple[KubeletSetting, ...] = ()
    """Endpoints in files, whether a kubelet runs or not."""
    runtime: RuntimeFacts = field(default_factory=RuntimeFacts)
    kubelet_cgroup_driver: str = ""
    """In its configuration file; empty if that is not known."""
    tree_cgroup_driver: str = ""
    """By the names of the kubelet's cgroups; empty if there are none."""
    node: Node = field(default_factory=Node)
    hook_servers: tuple[HookServerFacts, ...] = ()
    koordlets: tuple[Koordlet, ...] = ()
    has_nri_socket: bool = False
    mode: ModeFacts = field(default_factory=ModeFacts)
    """What decides on the mode."""
    unit: Mapping[str, str] | None = None
    """Properties of the service by `systemctl show`; None without systemd."""
    manager_unit: Mapping[str, str] | None = None
    """As `unit`, of the QoS manager's service."""
    state_folder: FolderFacts = field(default_factory=FolderFacts)
    input_files: tuple[InputFile, ...] = ()
    api_server: ApiServerFacts | None = None
    """None if it is not configured."""
