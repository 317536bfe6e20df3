"""The settings of the daemon: plain frozen dataclasses, so that defaults and flags need no pydantic.

A configuration file is checked against these same classes by pydantic's validator, in its strict mode and
with unknown keys forbidden (`runtimeproxy.config.schema`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from runtimeproxy.hooks.settings import ConflictRule, PolicySettings

DEFAULT_CONFIG_PATH: Final = "/etc/koord-runtime-proxy/config.toml"
"""Read when it is there and no other file is named."""

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number in a type annotation; both are allowed values."""

    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """`[proxy]`: the sockets and the relay."""

    endpoint: str = "/var/run/koord-runtimeproxy/runtimeproxy.sock"
    """The socket for the kubelet: `/path`, `unix:/path` or `unix:///path`. Default: Koordinator's proxy's."""
    runtime_endpoint: str = "/var/run/containerd/containerd.sock"
    """The runtime's socket. Default: containerd's, as Koordinator's proxy has it."""
    image_endpoint: str = ""
    """The image service's socket; empty (default) means that it is the runtime, as it usually is."""
    socket_mode: str = "0660"
    """Permissions of the own socket, octal, as text because TOML's own octal notation is easily forgotten.
    Default: those of containerd's socket, for whoever may write to it is root on this node."""
    socket_owner: str = ""
    """User name or number that owns the own socket; empty (default) means the daemon's own user."""
    socket_group: str = ""
    """Group name or number of the own socket; empty (default) means the daemon's own group."""
    allowed_uids: tuple[Annotated[int, Within(0, 2**32 - 2)], ...] = ()
    """Users besides root and the daemon's own that may connect. Default none: a CRI socket gives root."""
    max_connections_per_process: Annotated[int, Within(1, 1024)] = 64
    """Connections that one client process may have; more are refused. Processes that the daemon does not see,
    as when it runs in a container with a pid namespace of its own, count together by user. Default 64: the
    kubelet has two or three."""
    upstream_wait_s: Annotated[float, Within(0, 600)] = 10.0
    """How long a new connection's first calls wait for a runtime that is not there. Default 10 s: a
    containerd with many containers restarts in that time, and the kubelet calls the node not ready after
    30 s without a Status."""
    max_message_bytes: Annotated[int, Within(64 * 1024, 1024 * _MIB)] = 16 * _MIB
    """Largest request message of a held call. Default 16 MiB: the kubelet's bound for what it receives."""
    held_budget_bytes: Annotated[int, Within(64 * 1024, 16 * 1024 * _MIB)] = 64 * _MIB
    """Memory for the messages of all held calls together. Default: four of the largest."""
    own_services: bool = True
    """Whether the daemon answers gRPC health and reflection (default) or leaves them to the runtime."""
    drain_s: Annotated[float, Within(0, 600)] = 3.0
    """How long held calls may still run after SIGTERM. Default 3 s: under 4 s with the next start."""
    upgrade_start_s: Annotated[float, Within(0.1, 600)] = 30.0
    """How long the successor of an upgrade may take to come up; this process serves meanwhile and, if it does
    not, afterwards. Default 30 s: many times a start on a busy node."""
    upgrade_drain_s: Annotated[float, Within(0, 86_400)] = 300.0
    """How long calls may go on in the old process after an upgrade. Default 300 s: image pulls and commands
    in containers end in that time; event streams do not, and are cut then."""
    runtime_call_timeout_s: Annotated[float, Within(0.1, 600)] = 10.0
    """Timeout of the daemon's own calls to the runtime (recovery, look-ups, health). Default 10 s: a list of
    thousands of containers on a busy node takes a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksSettings:
    """`[hooks]`: the chain of policies and hook servers."""

    enabled: bool = True
    """False lets every call pass unheld, as the switch at run time does. Default true."""
    third_party: bool = True
    """Whether policies of installed distributions (entry points) are loaded. Default true: installing one is
    the decision to use it."""
    policies_dir: str = "/etc/koord-runtime-proxy/policies.d"
    """Folder with policies in files; empty for none. Default: beside the configuration. Files and folder must
    belong to root, and only root may write to them."""
    on_load_error: Literal["skip", "stop"] = "skip"
    """What becomes of a policy that cannot be loaded. Default skip: it is left out, the rest serves; `stop`
    ends the start with exit code 2, and leaves a running daemon as it is on SIGHUP."""
    load_timeout_s: Annotated[float, Within(0.1, 600)] = 3.0
    """How long one policy may take to be imported, and to be made, before the others are used without it.
    Default 3 s: so the first calls, which wait for budget_s, still have the others."""
    budget_s: Annotated[float, Within(0.01, 120)] = 5.0
    """Time of the whole chain for one call; a quarter of the call's own timeout if that is less. Default 5 s:
    far below the kubelet's two minutes."""
    worker_threads: Annotated[int, Within(1, 64)] = 4
    """Threads that run policies. Default 4: enough for a hanging one beside the working, on any node."""
    on_unparsable: Literal["forward", "refuse"] = "forward"
    """What becomes of a held call whose message cannot be understood. Default forward: the kubelet's path is
    sacred."""
    on_failure: Literal["forward", "refuse"] = "forward"
    """What becomes of a held call that the proxy itself cannot decide on: policies that are not loaded in
    time, an error in its own code. Default forward: the kubelet's path is sacred."""
    conflicts: ConflictRule = ConflictRule.LATER
    """Whose value counts when two policies set one field: `later` (default, as the chain runs), `earlier`."""
    skip_label_key: str = "runtimeproxy.koordinator.sh/skip-hookserver"
    """Pods with this label and value are left alone; empty for no such label. Default: Koordinator's."""
    skip_label_value: str = "true"
    """Value of the skip label. Default: Koordinator's."""
    server_config_dir: str = "/etc/runtime/hookserver.d"
    """Folder in which hook servers register themselves. Default: Koordinator's."""
    server_timeout_s: Annotated[float, Within(0.01, 120)] = 2.0
    """Time of one call of a hook server whose file does not say `timeout-seconds`. Default 2 s: two of them
    still fit into the time of the whole chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupsSettings:
    """`[cgroups]`: values that the CRI cannot carry."""

    enabled: bool = True
    """False writes no cgroup file at all. Default true."""
    root: str = "/sys/fs/cgroup"
    """Where cgroups are mounted. Default: where every distribution mounts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """`[node]`: where facts about the node come from."""

    sysfs_root: str = "/sys"
    """Where sysfs is mounted: CPUs and NUMA nodes that it does not call online are given to no container.
    Default: where the kernel's documentation has it; an empty folder means that nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """`[state]`: what survives a restart."""

    dir: str = "/var/lib/koord-runtime-proxy"
    """Folder of the checkpoint. Default: systemd's StateDirectory of the unit."""
    resync_interval_s: Annotated[float, Within(1, 86_400)] = 300.0
    """Time between two comparisons of the records with the runtime. Default 5 min: it only mends what other
    clients did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """`[log]`: what is logged on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. Default info: one line per changed container."""
    format: Literal["auto", "text", "json"] = "auto"
    """`auto` (default) is text on a terminal and JSON elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the daemon."""

    proxy: ProxySettings = field(default_factory=ProxySettings)
    hooks: HooksSettings = field(default_factory=HooksSettings)
    policies: Mapping[str, PolicySettings] = field(default_factory=dict)
    """`[policies.<name>]`: settings of one policy by its name."""
    cgroups: CgroupsSettings = field(default_factory=CgroupsSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    state: StateSettings = field(default_factory=StateSettings)
    log: LogSettings = field(default_factory=LogSettings)
