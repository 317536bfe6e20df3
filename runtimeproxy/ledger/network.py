"""Network QoS of this node: keeps the link's classes and our table of nftables as policies want them.

The shares of the link are a kernel setting (`NETWORK_QOS`), which `ledger/kernel_settings.py` sets, compares
and gives back. Classes and limits of pods are fields of the pods' cgroups, which `cgroups/processes.py` reads
and writes here. These are only noted: `sync` makes them so, in a thread of its own, for all pods together.

Objects of others are never changed: the root queueing discipline of a link is replaced where it is the
kernel's default or ours. `tc` carries its commands out one by one. If one fails when the link gets ours, that
is taken away again. If the class of a pod fails, what has been done stays and nftables is left as it is; the
kernel's state is read anew at the next change or comparison, which tries the rest again.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from runtimeproxy.cgroups.mounts import find_mounts
from runtimeproxy.fields.network import (
    CLASS_FIELD,
    EGRESS_FIELD,
    INGRESS_FIELD,
    NO_CLASS,
    OFF,
    NetworkClass,
    NetworkShares,
    shares_of,
)
from runtimeproxy.ledger.foreign import ForeignWriters
from runtimeproxy.ledger.network_plan import (
    HANDLE,
    TABLE,
    HostMatch,
    NetworkPod,
    Present,
    RootQdisc,
    TcClass,
    cgroup_match,
    default_links,
    net_cls_match,
    nft_commands,
    nft_state,
    plan_pods,
    root_commands,
    root_qdiscs,
    rules_shown,
    share_classes,
    skeleton,
    tc_classes,
    tc_commands,
    tc_removals,
)
from runtimeproxy.ledger.network_tools import NetworkTools
from runtimeproxy.logs import FailureLog

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings

logger = logging.getLogger(__name__)

_ROUTES: Final = Path("/proc/thread-self/net")
"""Of the network namespace of this thread. Source: proc_pid_net(5)."""
_PROCFS: Final = Path("/proc")
_FOREIGN: Final = ("network",)
_PODS: Final = "pods"
_LOCK_S: Final = 8.0
"""More than one program may take."""
_NEUTRAL: Final[Mapping[str, str]] = {CLASS_FIELD: NO_CLASS, EGRESS_FIELD: "0", INGRESS_FIELD: "0"}


def network_control(settings: Settings) -> NetworkControl | None:
    """Return the network QoS of this node; None where no cgroups are managed, or procfs is not the node's."""
    if not settings.cgroups.enabled or Path(settings.node.procfs_root) != _PROCFS:
        return None
    root = Path(settings.cgroups.root)

    def has_net_cls() -> bool:
        mount = find_mounts(root).get("net_cls")
        return mount is not None and mount.version == 1

    network = settings.network
    return NetworkControl(None, network.link, network.tunnels, root, has_net_cls)


class PodNetworkState(NamedTuple):
    """A running pod as the records have it."""

    id: str
    uid: str
    name: str
    cgroup: tuple[str, ...]
    addresses: tuple[str, ...] | None
    is_host_network: bool


class NetworkControl:
    """The network QoS of this node. Safe for all threads; all but `read_pod` and `write_pod` run programs.

    Args:
        tools: Run `tc` and `nft`.
        link: The link whose bandwidth is shared; empty: the one of the default route.
        tunnels: More links through which pods receive what is limited, such as those of an overlay.
        cgroup_root: Where cgroups are mounted.
        has_net_cls: Whether cgroup version 1 numbers the packets of cgroups.

    Attributes:
        on_asked: Called in any thread when a pod's class or limit, or the shares, have changed.
        left_out: Why pods lack what is wanted of them, by the id of the sandbox.
        problem: Why the last change was not made; empty if it was.
        has_failed: Whether the last `sync` has failed, and is to be tried again soon.
    """

    def __init__(
        self,
        tools: NetworkTools | None = None,
        link: str = "",
        tunnels: Sequence[str] = (),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        has_net_cls: Callable[[], bool] = lambda: False,
        routes: Path = _ROUTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tools = tools or NetworkTools()
        self._link = link
        self._tunnels = tuple(tunnels)
        self._cgroup_root = cgroup_root
        self._has_net_cls = has_net_cls
        self._routes = routes
        self._lock = Lock()
        self._asked: dict[str, dict[str, str]] = {}
        self._shares: NetworkShares | None = None
        self._active_link = ""
        # The folders of cgroups that no running pod had at the last comparison.
        self._missed: set[str] = set()
        self._minors: dict[str, int] = {}
        # What the kernel had of ours when it was last read, or written.
        self._present: Present | None = None
        self._rules: list[object] | None = None
        # Of the node, and the pods' that they were compared with.
        self._node_addresses: frozenset[str] = frozenset()
        self._compared: frozenset[str] = frozenset()
        self._foreign = ForeignWriters(clock)
        self._failures = FailureLog(output=logger)
        self.on_asked: Callable[[], None] = lambda: None
        self.left_out: dict[str, str] = {}
        self.problem = ""
        self.pods = 0
        self.has_failed = False

    # The fields of pods.

    def read_pod(self, field: str, cgroup: str) -> str:
        """Return what was last asked for a pod, by the name of its cgroup's folder."""
        return self._asked.get(cgroup, {}).get(field, _NEUTRAL[field])

    def write_pod(self, field: str, cgroup: str, text: str) -> None:
        asked = {**self._asked.get(cgroup, {}), field: text}
        if all(text == _NEUTRAL[name] for name, text in asked.items()):
            self._asked.pop(cgroup, None)
        else:
            self._asked[cgroup] = asked
        self.on_asked()

    def is_asked(self, cgroup: Sequence[str]) -> bool:
        """Whether a pod is to have a class."""
        return bool(cgroup) and cgroup[-1] in self._asked

    @property
    def is_on(self) -> bool:
        return self._shares is not None

    # The shares of the link: see `KernelSettings`.

    def read(self, expected: str, group: str = "") -> str:
        """Return `expected` if the kernel has it, `OFF` if nothing of ours is there, else what is there.

        Raises:
            OSError: It cannot be read.
        """
        with _Held(self._lock):
            roots = root_qdiscs(self.tools.qdiscs())
            ours = [each.link for each in roots.values() if each.is_ours]
            table = self.tools.table(TABLE)
            if not ours and table is None:
                self._forget()
                return OFF
            shares = None
            with suppress(OSError):  # of a state file that another program has written
                shares = _shares(expected)
            if shares is None:
                return f"queueing disciplines {HANDLE} on {', '.join(ours) or 'no link'}"
            try:
                link = self._chosen()
            except OSError as error:
                # A write says so; nothing is in the way of a release.
                return error.strerror or str(error)
            if ours != [link]:
                return f"{_shown(roots.get(link), link)}, ours is on {', '.join(ours) or 'none'}"
            present = tc_classes(self.tools.classes(link))
            others = [each for minor, each in share_classes(shares).items() if not _has(present, minor, each)]
            if others:
                return f"class {HANDLE}{others[0].minor:x} of {link} is another one"
            found = nft_state(table, self._links(link)) if table is not None else None
            if found is None:
                return f"table {TABLE} of nftables is {'another one' if table is not None else 'gone'}"
            rules = rules_shown(table)
            if self._rules is not None and rules != self._rules:
                return f"rules of table {TABLE} are others"
            self._rules = rules
            is_new = self._shares != shares or self._active_link != link
            self._shares, self._active_link = shares, link
            if is_new:
                self._present = None
                self.on_asked()
            return expected

    def write(self, value: str, group: str = "") -> None:
        """Make the link and our table so; `OFF` takes away all that is ours.

        Raises:
            OSError: It cannot be done, or the link's root is somebody else's. Then nothing of ours is on it.
        """
        with _Held(self._lock):
            try:
                self._write(_shares(value))
            except OSError as error:
                self.problem = error.strerror or str(error)
                raise
            self.problem = ""
        self.on_asked()

    def _write(self, shares: NetworkShares | None) -> None:
        roots = root_qdiscs(self.tools.qdiscs())
        ours = [each.link for each in roots.values() if each.is_ours]
        if shares is None:
            if self.tools.table(TABLE) is not None:
                self.tools.nft(f"delete table inet {TABLE}")
            self.tools.tc([f"qdisc del dev {link} root" for link in ours])
            self._forget()
            return
        link = self._chosen()
        root = roots.get(link)
        if root is None:
            raise OSError(errno.ENODEV, f"the node has no link {link}, or it has no queueing discipline")
        if not (root.is_default or root.is_ours):
            self._forget()
            if self.tools.table(TABLE) is not None:
                self.tools.nft(f"delete table inet {TABLE}")
            raise OSError(
                errno.EBUSY,
                f"{_shown(root, link)}, neither the kernel's default nor ours: it is left as it is",
            )
        # Where the default route was before.
        lines = [f"qdisc del dev {each} root" for each in ours if each != link]
        present: Mapping[int, TcClass] = {}
        if root.is_ours:
            present = tc_classes(self.tools.classes(link))
        else:
            lines += root_commands(link)
        lines += tc_commands(link, share_classes(shares), present)
        try:
            self.tools.tc(lines)
            if nft_state(self.tools.table(TABLE), self._links(link)) is None:
                self.tools.nft(skeleton(self._links(link)))
        except OSError:
            self._shares = None
            if not root.is_ours:
                with suppress(OSError):
                    self.tools.tc([f"qdisc del dev {link} root handle {HANDLE}"])
            raise
        self._shares, self._active_link, self._present, self._rules = shares, link, None, None

    def _forget(self) -> None:
        self._shares, self._active_link, self._present, self._rules = None, "", None, None
        self._minors.clear()
        self.pods = 0

    def _chosen(self) -> str:
        if self._link:
            return self._link
        texts = []
        for name in ("route", "ipv6_route"):
            try:
                texts.append((self._routes / name).read_text(encoding="ascii", errors="replace"))
            except FileNotFoundError:
                texts.append("")
        links = default_links(*texts)
        if not links:
            raise OSError(errno.ENODEV, "the node has no default route, and network.link names no link")
        if len(links) > 1:
            names = ", ".join(links)
            raise OSError(
                errno.ENODEV, f"the node has default routes through {names}: network.link has to name one"
            )
        return links[0]

    def _links(self, link: str) -> tuple[str, ...]:
        return (link, *(each for each in self._tunnels if each != link))

    # Pods.

    def sync(self, pods: Iterable[PodNetworkState], *, is_check: bool = False) -> bool:
        """Make classes, addresses and limits those of the pods.

        Args:
            pods: All that run.
            is_check: Whether the kernel's state is read anew, and what others have changed is repaired.

        Returns:
            Whether something is left to be done at once: classes that nothing points to any more.
        """
        running = tuple(pods)
        if is_check:
            self._drop_gone(pod.cgroup[-1] for pod in running if pod.cgroup)
        wanted = {pod.id: each for pod in running if (each := self._wanted(pod)) is not None}
        try:
            with _Held(self._lock):
                self.has_failed = False
                if self._shares is not None:
                    return self._sync(self._shares, wanted, is_check=is_check)
                why = self.problem or "the link's shares are not set"
                self.left_out = dict.fromkeys(wanted, f"network QoS is not in force: {why}")
                self.pods = 0
        except OSError as error:
            # Whatever was done: it is read again.
            self._present, self.has_failed, self.pods = None, True, 0
            self.problem = error.strerror or str(error)
            self._failures.report(
                "network", self.problem, f"network QoS of pods is not complete: {self.problem}"
            )
            self.left_out = dict.fromkeys(wanted, self.problem)
        return False

    def _sync(self, shares: NetworkShares, wanted: Mapping[str, NetworkPod], *, is_check: bool) -> bool:
        link = self._active_link
        links = self._links(link)
        known = self._present
        if is_check or known is None:
            present = self._read_present(link, links)
            if present.nft is None:
                raise OSError(errno.ENOENT, f"table {TABLE} of nftables is not as it was made")
            if known is not None and not self._may_repair(known, present):
                return False
        else:
            present = known
        asked = tuple(wanted.values())
        matches = self._host_matches(asked)
        addresses = self._addresses_of_node(asked, is_check=is_check)
        plan = plan_pods(shares, asked, links, self._minors, matches, addresses)
        self._minors = dict(plan.minors)
        classes = present.classes
        added = tc_commands(link, plan.classes, classes)
        try:
            self.tools.tc(added)
        finally:
            if added:
                self._present = None
        assert present.nft is not None  # noqa: S101 - for the type checker
        commands = nft_commands(plan.nft, present.nft)
        try:
            self.tools.nft("\n".join(commands))
        except OSError as error:
            # It takes all or none: one rule that this kernel cannot have is to cost no other pod anything.
            text = f"nftables does not take its rule: {error.strerror}"
            plan = plan_pods(shares, asked, links, self._minors, dict.fromkeys(matches, text), addresses)
            without_hosts = nft_commands(plan.nft, present.nft)
            if without_hosts == commands:
                raise
            self.tools.nft("\n".join(without_hosts))
        removals = tc_removals(link, plan.classes, classes)
        if not added:
            # What nothing points to any more; after new classes in a change of its own.
            self.tools.tc(removals)
        self._present = self._read_present(link, links) if added or removals or commands else present
        self.problem = ""
        by_uid = {each.uid: identity for identity, each in wanted.items()}
        self.left_out = {by_uid[uid]: why for uid, why in plan.left_out.items()}
        self.pods = len(wanted) - len(plan.left_out)
        return bool(added and removals)

    def _may_repair(self, known: Present, present: Present) -> bool:
        """Whether what others have changed is made as it was; it is left so for a time if they keep at it."""
        assert known.nft is not None and present.nft is not None  # noqa: S101,PT018 - for the type checker
        is_same = known.classes.keys() == present.classes.keys() and not nft_commands(known.nft, present.nft)
        if is_same or self._foreign.on_overwrite(_FOREIGN, _PODS, "ours", "others"):
            return True
        self.problem = (
            "another program keeps changing our classes or our table, and they are left so for a time"
        )
        return False

    def _read_present(self, link: str, links: Sequence[str]) -> Present:
        table = self.tools.table(TABLE)
        return Present(
            tc_classes(self.tools.classes(link)), nft_state(table, links) if table is not None else None
        )

    def _drop_gone(self, running: Iterable[str]) -> None:
        # Between two comparisons a pod whose cgroup has its values has started, or never will.
        gone = self._asked.keys() - set(running)
        for name in gone & self._missed:
            self._asked.pop(name, None)
        self._missed = gone

    def _wanted(self, pod: PodNetworkState) -> NetworkPod | None:
        asked = self._asked.get(pod.cgroup[-1], {}) if pod.cgroup else {}
        name = asked.get(CLASS_FIELD, NO_CLASS)
        if name == NO_CLASS:
            return None
        return NetworkPod(
            pod.uid,
            pod.name,
            pod.cgroup,
            pod.addresses,
            pod.is_host_network,
            NetworkClass(name),
            int(asked.get(EGRESS_FIELD, "0")),
            int(asked.get(INGRESS_FIELD, "0")),
        )

    def _addresses_of_node(self, pods: Iterable[NetworkPod], *, is_check: bool) -> frozenset[str]:
        """Return them as they were when one of these pods came, or later."""
        addresses = frozenset(each for pod in pods for each in pod.addresses or ())
        if is_check or not addresses <= self._compared:
            try:
                self._node_addresses, self._compared = self.tools.addresses(), addresses
            except OSError as error:
                text = f"addresses of pods are not compared with the node's: {error.strerror or error}"
                self._failures.report("network", "addresses", text)
        return self._node_addresses

    def _host_matches(self, pods: Iterable[NetworkPod]) -> dict[str, HostMatch | str]:
        found: dict[str, HostMatch | str] = {}
        for pod in pods:
            if not pod.is_host_network:
                continue
            if self._has_net_cls():
                has_limit = bool(pod.egress_bps or pod.ingress_bps)
                found[pod.uid] = net_cls_match(pod.uid, pod.network_class, has_limit=has_limit)
                continue
            try:
                inode = os.stat(self._cgroup_root.joinpath(*pod.cgroup)).st_ino  # noqa: PTH116 - as the writer
            except OSError as error:
                found[pod.uid] = f"its cgroup cannot be found: {error.strerror}"
            else:
                found[pod.uid] = cgroup_match(pod.cgroup, inode)
        return found


class _Held:
    """Holds the lock for a time that is bounded: a program may hang."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=_LOCK_S):
            raise TimeoutError(errno.ETIMEDOUT, "tc or nft of another change has not ended")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _shares(text: str) -> NetworkShares | None:
    try:
        return shares_of(text)
    except ValueError as error:
        raise OSError(errno.EINVAL, f"{text[:64]!r} {error}") from None


def _has(present: Mapping[int, TcClass], minor: int, wanted: TcClass) -> bool:
    return minor in present and wanted.is_like(present[minor])


def _shown(root: RootQdisc | None, link: str) -> str:
    return (
        f"the root queueing discipline of {link} is {root.kind} {root.handle}"
        if root
        else f"there is no link {link}"
    )
