"""The settings of the daemon: plain frozen dataclasses, so that defaults and flags do not need pydantic.

Each field has the type of its key with the bounds, the default, and below it the meaning and the reason of
the default. The end of its name is its unit: `_s` seconds, `_bytes` bytes. A configuration file is checked
against these classes (`runtimeproxy.config.schema`), and `systemd/CONFIGURATION.md` is generated from them
(`python -m tests.config.reference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Final, Literal, cast

from runtimeproxy.hooks.settings import ChainRules, ConflictRule, PolicySettings

DEFAULT_CONFIG_PATH: Final = "/etc/koord-runtime-proxy/config.toml"
"""Read when it exists and no other file is named."""

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number in a type annotation; both are allowed values."""

    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """`[daemon]`: how pods and containers come to the daemon."""

    mode: Literal["proxy", "nri", "standalone"] = "proxy"
    """`proxy`: between the kubelet and the runtime. `nri`: a plugin of the runtime's Node Resource Interface,
    see `[nri]`; it cannot change sandboxes (labels, cgroup parent). `standalone`: beside both; the daemon
    follows what runs, and writes values to files once a container has started. What only the message that
    creates a container can carry (environment, mounts, devices, labels) is then not applied, hook servers are
    not asked, and nothing is refused. In the last two modes the kubelet keeps the runtime's socket, and that
    of `proxy.endpoint` serves the daemon's own API only."""
    lock: str = "/run/koord-runtimeproxy/front-end.lock"
    """Lock by which two modes never run at once on a host; mount its folder into a container that runs the
    daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NriSettings:
    """`[nri]`: the connection with the runtime if `daemon.mode` is `nri`."""

    socket: str = "/var/run/nri/nri.sock"
    """The runtime's socket for NRI plugins. The default is that of containerd and CRI-O. A daemon that the
    runtime has launched itself as a plugin has its connection from the runtime, and does not use this."""
    plugin_name: str = "koord-runtime-proxy"
    """The name by which the runtime, its log and other plugins know the daemon."""
    plugin_index: str = "50"
    """Two digits: the runtime calls its plugins in this order. Of two that set the same field of a container
    the runtime accepts neither. The default lets plugins that place containers go first; what they have set
    is visible then."""
    learn_owners: bool = False
    """Whether the runtime tells of each new container which plugin has set which of its fields (NRI's
    ValidateContainerAdjustment, from containerd 2.2 on). A field of another plugin then goes by file from the
    first container on, and status, `explain` and audit name that plugin; without it the runtime refuses the
    first creation of each such container, and the daemon's values go by file at the next. Off by default: a
    plugin that is asked this and is late, or away, fails the creation, whatever its failure policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """`[proxy]`: the sockets and the relay."""

    endpoint: str = "/var/run/koord-runtimeproxy/runtimeproxy.sock"
    """Socket that the kubelet connects to: `/path`, `unix:/path` or `unix:///path`. The default is that of
    Koordinator's proxy."""
    runtime_endpoint: str = "/var/run/containerd/containerd.sock"
    """The container runtime's socket. The default is containerd's, as in Koordinator's proxy; CRI-O's is
    `/run/crio/crio.sock`. Empty, in mode `standalone` only: this node has none, and host applications and QoS
    classes alone get values."""
    image_endpoint: str = ""
    """The image service's socket; empty if the runtime serves images, as it usually does."""
    socket_mode: str = "0660"
    """Permissions of the proxy's socket, octal. The default is that of containerd's socket: write access to
    it is root on this node."""
    socket_owner: str = ""
    """User (name or number) that owns the proxy's socket; empty for the daemon's own user."""
    socket_group: str = ""
    """Group (name or number) that owns the proxy's socket; empty for the daemon's own group."""
    allowed_uids: tuple[Annotated[int, Within(0, 2**32 - 2)], ...] = ()
    """Users besides root and the daemon's own that may connect. None by default: a CRI socket gives root."""
    max_connections_per_process: Annotated[int, Within(1, 1024)] = 64
    """Connections that one client process may have whatever the others do. It may have more while there is
    room, which is for 1,024 in all, or for as many as there are file descriptors for. When a quarter is left,
    idle connections of the process with the most are closed, with GOAWAY; the last eighth is for processes
    with fewer than this. Processes that the daemon cannot see, as in another pid namespace, count together
    by user. The kubelet has two or three."""
    upstream_wait_s: Annotated[float, Within(0, 600)] = 10.0
    """How long the first calls of a new connection wait for a runtime that is not there. A containerd with
    many containers restarts within the default; the kubelet calls the node not ready after 30 s without a
    Status."""
    max_message_bytes: Annotated[int, Within(64 * 1024, 1024 * _MIB)] = 16 * _MIB
    """Largest request message of an intercepted call. The default is the kubelet's bound for responses."""
    held_budget_bytes: Annotated[int, Within(64 * 1024, 16 * 1024 * _MIB)] = 64 * _MIB
    """Memory for the request messages of all intercepted calls together. The default is four of the
    largest."""
    own_services: bool = True
    """Whether the daemon answers gRPC health and reflection; false leaves them to the runtime."""
    drain_s: Annotated[float, Within(0, 600)] = 3.0
    """How long intercepted calls may go on after SIGTERM. With the default, end and next start together take
    less than 4 s."""
    upgrade_start_s: Annotated[float, Within(0.1, 600)] = 30.0
    """How long the successor of an upgrade may take to come up; the old process serves meanwhile, and goes on
    if it does not. The default is many times a start on a busy node."""
    upgrade_drain_s: Annotated[float, Within(0, 86_400)] = 300.0
    """How long calls may go on in the old process after an upgrade. Image pulls and commands in containers
    end within the default; event streams do not, and are cut then."""
    runtime_call_timeout_s: Annotated[float, Within(0.1, 600)] = 10.0
    """Timeout of the daemon's own calls to the runtime (recovery, look-ups, health). A list of thousands of
    containers takes a second on a busy node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksSettings:
    """`[hooks]`: the chain of policies and hook servers."""

    enabled: bool = True
    """Whether calls go through policies and hook servers; false is the bypass: all calls pass without
    them."""
    third_party: bool = True
    """Whether policies of other installed Python distributions (entry points) are loaded. True by default:
    installing one is the decision to use it."""
    policies_dir: str = "/etc/koord-runtime-proxy/policies.d"
    """Folder with policies in files; empty for none. Files and folder must belong to root, and only root may
    write to them."""
    on_load_error: Literal["skip", "stop"] = "skip"
    """What happens to a policy that cannot be loaded: `skip` leaves it out and serves with the rest; `stop`
    ends the start with exit code 2, and at a reload keeps the policies in use."""
    load_timeout_s: Annotated[float, Within(0.1, 600)] = 3.0
    """How long one policy may take to be imported, and to be created, before the others are used without it.
    Less than `budget_s`, so that the first calls still have the others."""
    budget_s: Annotated[float, Within(0.01, 120)] = 5.0
    """Time for the whole chain in one call; never more than a quarter of the call's own timeout. Far below
    the kubelet's two minutes."""
    worker_threads: Annotated[int, Within(1, 64)] = 4
    """Threads that run policies. The default leaves room for one that hangs."""
    on_unparsable: Literal["forward", "refuse"] = "forward"
    """What happens to an intercepted call whose message cannot be parsed, or has more annotations than the
    API server allows: it is forwarded as it came, or refused."""
    on_failure: Literal["forward", "refuse"] = "forward"
    """What happens to an intercepted call that the proxy itself fails to decide on (policies not loaded in
    time, an internal error): it is forwarded as it came, or refused. Not for policies and hook servers that
    fail: they have a failure policy of their own."""
    conflicts: ConflictRule = ConflictRule.LATER
    """Whose value is used when two policies set one field: that of the `later` or the `earlier` one in the
    chain."""
    skip_label_key: str = "runtimeproxy.koordinator.sh/skip-hookserver"
    """Policies and hook servers leave pods with this label alone; empty for no such label. The default is
    Koordinator's."""
    skip_label_value: str = "true"
    """Value of the skip label. The default is Koordinator's."""
    server_config_dir: str = "/etc/runtime/hookserver.d"
    """Folder in which hook servers register. The default is Koordinator's."""
    server_timeout_s: Annotated[float, Within(0.01, 120)] = 2.0
    """Timeout of one call of a hook server whose registration has no `timeout-seconds`. Two of them fit into
    `budget_s`."""

    @property
    def rules(self) -> ChainRules:
        skip_label = (self.skip_label_key, self.skip_label_value) if self.skip_label_key else None
        return ChainRules(self.conflicts, skip_label, self.budget_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupsSettings:
    """`[cgroups]`: values that the CRI cannot carry."""

    enabled: bool = True
    """Whether the daemon writes cgroup files, such as those of the pod's own cgroup."""
    root: str = "/sys/fs/cgroup"
    """Where cgroups are mounted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """`[node]`: sources of facts about the node."""

    sysfs_root: str = "/sys"
    """Where sysfs is mounted: no container gets CPUs or NUMA nodes that it does not list as online. With an
    empty folder nothing is known, and every CPU list of a policy goes to the runtime. Settings of the kernel
    below it are written by the policy `system-config`."""
    procfs_root: str = "/proc"
    """Where procfs is mounted: memory and processor of the node, and below `sys` the sysctls, which policies
    write. With an empty folder there are none."""
    objects_dir: str = "/etc/koord-runtime-proxy/node.d"
    """Folder with Kubernetes objects as `kubectl get -o yaml` prints them, in files that end in `.yaml`,
    `.yml` or `.json`: the ConfigMap `slo-controller-config`, and this node's Node, NodeResourceTopology and
    NodeSLO. A mounted `slo-controller-config`, with one file per key, is such a folder, too. Changes take
    effect within 3 s; 60 s after a file, or an object in it, is gone, it counts as withdrawn. Write another
    file beside it, with a name that begins with a dot, and rename it. Empty for none."""
    kubelet_dir: str = "/var/lib/kubelet"
    """The kubelet's folder: its configuration (`config.yaml`), the CPUs that its CPU manager has given away,
    and the resources of the pods that it runs. Empty for none. The default is the kubelet's `--root-dir`."""
    cdi_dir: str = "/var/run/cdi"
    """Folder with the CDI specifications of the DRA driver dra-driver-cpu: the CPUs that it has given to
    claims leave the shared pools, and those of best-effort pods. Empty for none. The default is the
    driver's."""
    name: str = ""
    """Name of this node's objects; empty for the host's name in lower case, as the kubelet uses it."""
    shared_pools: Literal["nrt", "computed"] = "nrt"
    """Where the CPUs come from that pods share: `nrt`, from what koordlet publishes in the
    NodeResourceTopology; `computed`, from this node's pods, as koordlet computes it. Then the pods that share
    CPUs leave those of a new pod with `resource-status` before the runtime makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """`[network]`: the link that the policy `network-qos` shares among pods."""

    link: str = ""
    """Its name, such as `eth0`. Empty: the link of the default route; with several the policy is off until
    one is named."""
    tunnels: tuple[str, ...] = ()
    """Names of more links through which pods receive what is limited, such as `flannel.1` of an overlay
    network. What comes from other links, such as from pods of this node, is not limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSettings:
    """`[slo]`: strategies."""

    start_spread_s: Annotated[float, Within(0, 3600)] = 60.0
    """A change of strategies or of the Node that comes from the API server starts after a random time up to
    this one, because one edit may change all nodes. One from files, and the first one of all, start at
    once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """`[kubernetes]`: the API server as a source beside `node.objects_dir`; needs the extra `kubernetes`."""

    enabled: bool = False
    """Whether this node's Node, NodeResourceTopology, NodeSLO and pods, and the ConfigMap
    `slo-controller-config`, are watched. An object in `node.objects_dir` hides the API server's of the same
    kind. False by default: nothing else needs the network. Needs the unit's drop-in `40-kubernetes.conf`."""
    kubeconfig: str = ""
    """File with the API server's address and the daemon's credentials: certificates, a token or a token file,
    read again when they rotate. Programs for credentials (`exec`) are not supported. Empty for the service
    account of the pod that the daemon runs in."""
    config_namespace: str = "koordinator-system"
    """Namespace of `slo-controller-config`. The default is Koordinator's."""
    katalyst_targets: bool = False
    """Whether all AdminQoSConfigurations of the cluster are watched, and the KatalystCustomConfig of them:
    Katalyst's dynamic configuration."""
    events: bool = True
    """Whether refusals by policies and evictions become Events of their pods."""
    evictions: bool = True
    """Whether pods are evicted by the API server, which honours disruption budgets. False: their containers
    are stopped through the runtime, as without the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KatalystSettings:
    """`[katalyst]`: Katalyst's levels of pods, while the policy `katalyst-qos` is enabled."""

    on_error: Literal["fallback", "reject"] = "fallback"
    """What happens to a pod whose annotations contradict each other, or ask for what Katalyst refuses:
    `fallback` treats it as one of `shared_cores` and reports it, `reject` refuses it before it is created. In
    mode `standalone` nothing is refused. By default no pod that ran without this daemon fails with it."""
    default_level: Literal["", "shared_cores", "dedicated_cores", "reclaimed_cores", "system_cores"] = ""
    """Level of pods without an annotation of a level; `shared_cores` in Katalyst. Empty: such pods have none,
    and keep the class of Koordinator or Kubernetes. Pods that run follow another one, with their class and
    with their place in Katalyst's pools."""
    order: tuple[Literal["katalyst", "koordinator"], ...] = ("katalyst", "koordinator")
    """Whose class is used of a pod that has both Katalyst's annotation and Koordinator's label: the first."""
    allow_unbound_dedicated: bool = False
    """Whether pods of `dedicated_cores` without `numa_binding`, which Katalyst refuses, are of class LSE and
    have as many CPUs of their own as they request, of any NUMA nodes, with the policy `katalyst-pools`."""
    dedicated_selector: tuple[str, ...] = ()
    """Annotations that name `dedicated_cores` beside `katalyst.kubewharf.io/qos_level`, each `KEY=VALUE`, as
    of Katalyst's flag `--pod-annotation-qos-level-dedicated-selector`."""
    shared_selector: tuple[str, ...] = ()
    """Likewise of `shared_cores`."""
    reclaimed_selector: tuple[str, ...] = ()
    """Likewise of `reclaimed_cores`."""
    system_selector: tuple[str, ...] = ()
    """Likewise of `system_cores`."""
    enhancement_aliases: tuple[str, ...] = ()
    """Other names of the annotations with enhancements, such as
    `katalyst.kubewharf.io/memory_enhancement=example.com/memory`, as of Katalyst's flag
    `--pod-annotation-qos-enhancements`."""
    enhancement_defaults: tuple[str, ...] = ()
    """Keys of enhancements that pods without them have, such as `numa_exclusive=true`, as of Katalyst's
    flag `--qos-enhancement-default-values`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """`[ledger]`: values of pods that run, when policies want others."""

    pods_per_s: Annotated[float, Within(0.1, 10_000)] = 50.0
    """How many pods a large change touches in a second. With the default a node of 250 pods has it in 5 s, at
    some percent of one CPU."""
    large_change_percent: Annotated[float, Within(0, 100)] = 10.0
    """Share of the running pods from which on a change is large; one of up to 10 pods never is."""
    failed_percent: Annotated[float, Within(0, 100)] = 10.0
    """A large change ends when the values of more than this share of its pods cannot be written."""
    lower_memory_limits: bool = False
    """Whether a changed strategy may lower the memory limit of what runs. False by default: it waits for the
    next call of the kubelet. In any case a limit falls to 110 % of the usage at most."""
    take_from_koordlet: tuple[str, ...] = ()
    """Cgroup parameters (`cpu.cfs_burst_us`) that are written although koordlet is registered as a hook
    server; switch its feature gates for them off, which the log names. None by default: what koordlet
    writes is only observed."""
    openings: Literal["off", "best-effort", "all"] = "best-effort"
    """Which pods lift the bound of the best-effort class (a quota that a plugin claims, such as
    `cpu-suppress`) by 1,000 millicores while they start. `best-effort`: those of the class; `all`: all pods,
    as throttled tasks may hold locks of the kernel that other starts need; `off`: none. At most 2 pods at a
    time, 20 s each and 6 in a minute; one that had its turn in the last 10 minutes comes after the others.
    Without a bound nothing is lifted; nor are bounds by CPUs, below which nothing is throttled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """`[state]`: the checkpoint, which survives restarts."""

    dir: str = "/var/lib/koord-runtime-proxy"
    """Folder of the checkpoint. The default is the StateDirectory of the systemd unit."""
    resync_interval_s: Annotated[float, Within(1, 86_400)] = 300.0
    """Time between two comparisons of the records with the runtime, after which policies are asked about all
    running pods again. It only repairs what other clients changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """`[log]`: logs on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged. `info` has one line per changed container."""
    format: Literal["auto", "text", "json"] = "auto"
    """`text`, `json`, or `auto`: text on a terminal and JSON elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """`[audit]`: what policies have changed, refused or failed to do, in a file of its own."""

    file: str = ""
    """File with one line of JSON per decision, such as `/var/log/koord-runtime-proxy/audit.jsonl`; empty for
    none. Decisions are those of calls, and those by which values of running pods are changed: a change of
    many pods has a line for each container of 20 of them, and one for all others. Starts, stops, upgrades,
    and changes of modes, bypass and strategies have lines, too. It is made with mode 0600. A reload opens it
    again, after another program has renamed it. The command `audit` reads it with its rotations, also those
    of logrotate in gz, xz or bz2. The log has the same, also in systemd's journal. Without a file the last
    entries are kept in the state folder, which a crash may cost the last 10 s of."""
    max_bytes: Annotated[int, Within(4096, 1024 * 1024 * _MIB)] = 64 * _MIB
    """Size from which on the file is renamed to `.1`, that to `.2`, and so on. A line has some hundred
    bytes."""
    keep: Annotated[int, Within(0, 1000)] = 4
    """How many renamed files are kept; with 0 a full file is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """`[api]`: the daemon's own API. Its reads are on the socket of `proxy.endpoint`."""

    admin_socket: str = "admin/api.sock"
    """Socket of the calls that change something (`SetPolicyMode`, `SetBypass`), with mode 0600: an absolute
    path, or one below the folder of `proxy.endpoint`. Only the daemon's user can enter its folder, which is
    made. Empty for none: whoever may connect to a CRI socket is root on this node, but need not be an
    operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """`[metrics]`: metrics for Prometheus, and the node page."""

    listen: str = ""
    """Where metrics are served, at `/metrics`: a port, which is then one of `127.0.0.1`; an IP address and a
    port (`10.0.0.5:9751`, `[::1]:9751`); or the path of a Unix socket (`/path`, `unix:///path`) that only the
    daemon's user may open. Empty for none. TCP needs the unit's drop-in `20-metrics.conf`."""
    page: bool = False
    """Whether the node page is served, too, at `/page`: read-only, without a password, and with the names of
    pods, which metrics do not have. A browser reaches it by an address of the node, its name, or
    `localhost`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """`[tracing]`: spans of intercepted calls for OpenTelemetry; needs the extra `otel`."""

    endpoint: str = ""
    """Collector that spans are sent to by OTLP over gRPC: `http://10.0.0.5:4317`, `https://collector:4317`
    with TLS, or the path of a Unix socket (`/path`, `unix:///path`). Empty for none. TCP needs the unit's
    drop-in `30-tracing.conf`."""
    ratio: Annotated[float, Within(0, 1)] = 1.0
    """Share of the calls without a trace of their client's that are traced. Of a client that traces, such as
    the kubelet with `tracing` in its configuration, exactly those calls are that it records itself. All by
    default: a pod has about five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QosManagerSettings:
    """`[qosmanager]`: the process `koord-qos-manager`, which reads this file, too."""

    mode: Literal["enforce", "dry-run", "none"] = "enforce"
    """`dry-run`: all plugins compute and explain, nothing is claimed and no pod is evicted. `none`: this node
    has no QoS manager; one that runs has all plugins off, and where strategies ask for one the daemon says so
    and reports no problem."""
    interval_s: Annotated[float, Within(0.1, 60)] = 1.0
    """Time between two rounds of samples and plugins. The default is Koordinator's."""
    metrics_source: Literal["kernel", "malachite"] = "kernel"
    """Where samples come from: the kernel's files, or Malachite, Katalyst's metrics daemon. What Malachite
    does not have, or not in time, is read from the kernel's files. The unit needs `30-malachite.conf`."""
    malachite_url: str = "http://localhost:9002"
    """Where Malachite is, `http://host:port`; used with `metrics_source = "malachite"`."""
    feature_gates: tuple[str, ...] = ()
    """Koordinator's feature gates that differ from their defaults, such as `BECPUEvict=true`: BECPUSuppress
    and CPUBurst are on; CPUEvict, BECPUEvict, CPUAllocatableEvict, MemoryEvict, BEMemoryEvict and
    MemoryAllocatableEvict are off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """Settings of a plugin: of koord-qos-manager itself, of another Python package, or of another process."""

    endpoint: str = ""
    """Socket of a plugin in a process of its own: `/path`, `unix:/path` or `unix:///path`. Only root should
    be able to write to its folder. Empty for other plugins."""
    reference: str = ""
    """The class of a plugin from another Python package, `package.module:Class`; it runs in the process of
    koord-qos-manager. Empty for other plugins."""
    mode: Literal["enforce", "dry-run", "off"] | None = None
    """`enforce` claims values and evicts pods; `dry-run` only computes and explains; `off` does not run.
    Unset: `enforce` for `cpu-suppress` and `cpu-burst`, `off` for `profiling` and those that begin with
    `katalyst-`, `dry-run` for all others. Its feature gate and the strategies must want it, too, if it has
    any. `profiling` and `katalyst-reporter` claim nothing in either mode."""
    options: Mapping[str, object] = field(default_factory=dict)
    """The plugin's own keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerSettings:
    """Settings of one owner of claims (`SetClaims` and `Evict` of the API): a plugin, or another program."""

    allow: tuple[str, ...] | None = None
    """What it may claim: rules of the form `FIELD ROLE LEVEL...`, such as `cpuset.cpus at_most qos-class
    pod`. Fields are cgroup parameters; roles `set`, `scale`, `add` and `at_most`; levels `container`, `pod`,
    `qos-class` and `host-application`. An advisor of Katalyst's pools needs `pool.required_cpus set pool`,
    and the same of `pool.overlap_cpus`, `pool.headroom_millicpu` and `pool.headroom_bytes`. Unset: those of
    a built-in plugin, and nothing for others."""
    may_evict: bool | None = None
    """Whether it may evict pods. Unset: `cpu-evict`, `memory-evict`, `katalyst-cpu-suppression`,
    `katalyst-cpu-load`, `katalyst-reclaimed-pressure`, `katalyst-memory-pressure` and `katalyst-rss-overuse`
    may."""
    mode: Literal["enforce", "dry-run", "off"] = "enforce"
    """`enforce`; `dry-run`: its claims are kept, shown and audited, and neither they nor its evictions are
    carried out; `off`: all is refused."""
    priority: Annotated[int, Within(0, 99)] = 80
    """Of the values that it sets: the highest one counts, policies included. The default stands above those
    of all policies of this project."""
    hold_roles: tuple[Literal["set", "scale", "add", "at_most"], ...] = ("at_most",)
    """Claims that are held when no request has renewed the lease for 15 s; others end then. By default
    bounds are: a manager that has died must not lift the suppression of an overloaded node at once."""
    hold_s: Annotated[float, Within(0, 300)] = 300.0
    """How long they are held."""
    most_claims: Annotated[int, Within(1, 50_000)] = 2_000
    """Claims that it may have at a time. The default is 8 for each pod of a full node."""
    most_bytes: Annotated[int, Within(1024, 16 * _MIB)] = _MIB
    """Bytes of values, reasons and targets of all its claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionSettings:
    """`[eviction]`: bounds of evictions, whichever plugin wants them."""

    most_pods: Annotated[int, Within(0, 1000)] = 10
    """Pods that may be evicted in `interval_s`, by all owners together; 0 for none at all."""
    interval_s: Annotated[float, Within(1, 86_400)] = 60.0
    """See `most_pods`. The default pair empties no node faster than ten pods a minute."""
    same_pod_s: Annotated[float, Within(0, 86_400)] = 300.0
    """How long a pod that was evicted is not evicted again: the kubelet starts its containers anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the daemon, and of `koord-qos-manager`."""

    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    nri: NriSettings = field(default_factory=NriSettings)
    proxy: ProxySettings = field(default_factory=ProxySettings)
    hooks: HooksSettings = field(default_factory=HooksSettings)
    policies: Mapping[str, PolicySettings] = field(default_factory=dict)
    """`[policies.<name>]`: settings of one policy by its name."""
    cgroups: CgroupsSettings = field(default_factory=CgroupsSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    slo: SloSettings = field(default_factory=SloSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    katalyst: KatalystSettings = field(default_factory=KatalystSettings)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    state: StateSettings = field(default_factory=StateSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    qosmanager: QosManagerSettings = field(default_factory=QosManagerSettings)
    plugins: Mapping[str, PluginSettings] = field(default_factory=dict)
    """`[plugins.<name>]`: settings of one plugin by its name."""
    owners: Mapping[str, OwnerSettings] = field(default_factory=dict)
    """`[owners.<name>]`: settings of one owner of claims by its name."""
    eviction: EvictionSettings = field(default_factory=EvictionSettings)
    log: LogSettings = field(default_factory=LogSettings)


TABLES: Final = {"policies": PolicySettings, "plugins": PluginSettings, "owners": OwnerSettings}
"""The groups of tables, `[<group>.<name>]`."""
GROUPS: Final = {
    each.name: cast("type", each.default_factory) for each in fields(Settings) if each.name not in TABLES
}
"""The groups of plain keys; each key has an environment variable."""

BUILT_IN_PLUGINS: Final = (
    *("cpu-suppress", "cpu-burst", "cpu-evict", "memory-evict"),
    *("katalyst-cpu-suppression", "katalyst-cpu-load", "katalyst-reclaimed-pressure"),
    *("katalyst-memory-pressure", "katalyst-rss-overuse", "profiling"),
    *("katalyst-advisor", "katalyst-reporter", "cpu-guard"),
)
FEATURE_GATES: Final[Mapping[str, bool]] = {
    "BECPUSuppress": True,
    "BECPUManager": False,
    "CPUBurst": True,
    "BECPUEvict": False,
    "CPUEvict": False,
    "CPUAllocatableEvict": False,
    "BEMemoryEvict": False,
    "MemoryEvict": False,
    "MemoryAllocatableEvict": False,
}
"""Koordinator's feature gates of the plugins, and their defaults; those of what policies do here are not
among them. Source: Koordinator pkg/features/koordlet_features.go."""

_STARTED_WITH: Final = (
    *("daemon", "nri", "proxy", "cgroups", "node", "network", "slo"),
    *("kubernetes", "katalyst", "state", "api", "metrics"),
)

_NEED_RESTART: Final = frozenset(
    (
        *((group, key) for group in _STARTED_WITH for key in GROUPS[group].__annotations__),
        ("hooks", "worker_threads"),
        ("hooks", "server_config_dir"),
        ("tracing", "endpoint"),
        ("log", "format"),
    )
)


def needs_restart(group: str, key: str) -> bool:
    return (group, key) in _NEED_RESTART


def reloaded(old: Settings, new: Settings) -> tuple[Settings, list[str]]:
    """Returns the settings that take effect at a reload, and the changed keys that need a restart."""
    result = new
    waiting: list[str] = []
    for group, kind in GROUPS.items():
        before, after = getattr(old, group), getattr(new, group)
        kept = {
            key: getattr(before, key)
            for key in kind.__annotations__
            if needs_restart(group, key) and getattr(before, key) != getattr(after, key)
        }
        if kept:
            result = replace(result, **{group: replace(after, **kept)})
            waiting += [f"{group}.{key}" for key in kept]
    return result, waiting
