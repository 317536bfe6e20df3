"""Network namespaces: a node with an uplink to a peer, and pods behind a bridge; IPv4 and IPv6.

    peer -- veth `eth0` -- node -- bridge `cni0` -- veth -- pod

Names of namespaces are random, so several sessions share a machine. All devices go with their namespaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import secrets
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

Family = Literal[4, 6]

UPLINK: Final = "eth0"
BRIDGE: Final = "cni0"
_CLONE_NEWNET: Final = 0x40000000
_TIMEOUT_S: Final = 30.0
_FOLDER: Final = Path("/run/netns")
_PEER: Final[dict[Family, str]] = {4: "192.0.2.1", 6: "2001:db8:1::1"}
_NODE: Final[dict[Family, str]] = {4: "192.0.2.2", 6: "2001:db8:1::2"}
_PODS_IPV4: Final = IPv4Address("10.88.0.0")
_PODS_IPV6: Final = IPv6Address("2001:db8:88::")
_FORWARDING: Final = ("ipv4/ip_forward", "ipv6/conf/all/forwarding")


@dataclass(frozen=True)
class Addresses:
    """One IPv4 and one IPv6 address of the same host."""

    ipv4: str
    ipv6: str

    def of(self, family: Family) -> str:
        """The address of this family."""
        return self.ipv4 if family == 4 else self.ipv6


class Namespace:
    """A network namespace, until the end of its block."""

    def __init__(self, role: str) -> None:
        self.name = f"krp-{secrets.token_hex(3)}-{role}"
        self.path = _FOLDER / self.name

    @property
    def wrapper(self) -> tuple[str, ...]:
        """Words before a command that runs inside.

        Mounts stay as they are, unlike with `ip netns exec`, which hides cgroups.
        """
        return ("nsenter", f"--net={self.path}", "--")

    def run(self, *command: str | Path, stdin: str | None = None) -> str:
        """Runs a command inside and returns its output.

        Raises:
            RuntimeError: it failed.
        """
        return _output((*self.wrapper, *map(str, command)), stdin)

    def batch(self, program: Literal["ip", "tc"], text: str) -> None:
        """Runs the lines of a batch of `ip` or `tc`."""
        self.run(program, "-batch", "-", stdin=text)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread makes its sockets inside; they stay there."""
        with Path("/proc/thread-self/ns/net").open("rb") as before, self.path.open("rb") as inside:
            _set_namespace(inside.fileno())
            try:
                yield
            finally:
                _set_namespace(before.fileno())

    def __enter__(self) -> Self:
        _output(("ip", "netns", "add", self.name))
        self.run("ip", "link", "set", "lo", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _output(("ip", "netns", "delete", self.name))


class PodNamespace(Namespace):
    """A pod of its own addresses behind the node's bridge.

    Args:
        number: 1 to 65000, one for each pod of the node.
    """

    def __init__(self, node: Namespace, number: int) -> None:
        super().__init__(f"pod{number}")
        self._node = node
        self.addresses = Addresses(str(_PODS_IPV4 + 256 + number), str(_PODS_IPV6 + 256 + number))
        self._outside = f"veth{number}"

    def __enter__(self) -> Self:
        super().__enter__()
        self._node.batch(
            "ip",
            f"link add {self._outside} type veth peer name eth0 netns {self.name}\n"
            f"link set {self._outside} master {BRIDGE} up\n",
        )
        self.batch(
            "ip",
            "link set eth0 up\n"
            f"address add {self.addresses.ipv4}/16 dev eth0\n"
            f"address add {self.addresses.ipv6}/64 dev eth0 nodad\n"
            f"route add default via {_PODS_IPV4 + 1}\n"
            f"route add default via {_PODS_IPV6 + 1}\n",
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The kernel removes the devices of a namespace some time after its end.
        self._node.run("ip", "link", "delete", self._outside)
        super().__exit__(kind, error, trace)


class NodeNetwork:
    """A node, its peer, and pods that come and go.

    Args:
        masquerades: packets of IPv4 pods leave with the node's address, by a table of its own, as with
            plug-ins of the CNI.
    """

    def __init__(self, *, masquerades: bool = True) -> None:
        self._masquerades = masquerades
        self._stack = ExitStack()
        self.peer = Namespace("peer")
        self.node = Namespace("node")
        self.peer_addresses = Addresses(_PEER[4], _PEER[6])
        self.node_addresses = Addresses(_NODE[4], _NODE[6])

    def pod(self, number: int) -> PodNamespace:
        """A pod's namespace, to be entered."""
        return PodNamespace(self.node, number)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.peer)
            stack.enter_context(self.node)
            self._set_up()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _set_up(self) -> None:
        self.node.batch(
            "ip",
            f"link add {UPLINK} type veth peer name up0 netns {self.peer.name}\n"
            f"link set {UPLINK} up\n"
            f"address add {_NODE[4]}/24 dev {UPLINK}\n"
            f"address add {_NODE[6]}/64 dev {UPLINK} nodad\n"
            f"link add {BRIDGE} type bridge\n"
            f"link set {BRIDGE} up\n"
            f"address add {_PODS_IPV4 + 1}/16 dev {BRIDGE}\n"
            f"address add {_PODS_IPV6 + 1}/64 dev {BRIDGE} nodad\n",
        )
        self.peer.batch(
            "ip",
            "link set up0 up\n"
            f"address add {_PEER[4]}/24 dev up0\n"
            f"address add {_PEER[6]}/64 dev up0 nodad\n"
            f"route add {_PODS_IPV4}/16 via {_NODE[4]}\n"
            f"route add {_PODS_IPV6}/64 via {_NODE[6]}\n",
        )
        self.node.batch("ip", f"route add default via {_PEER[4]}\nroute add default via {_PEER[6]}\n")
        for name in _FORWARDING:
            self.node.run("sh", "-c", f"echo 1 > /proc/sys/net/{name}")
        if self._masquerades:
            self.node.run("nft", "-f", "-", stdin=MASQUERADE)


@contextmanager
def tap_uplink(node: Namespace, queues: int) -> Iterator[None]:
    """An uplink of a node without peer: a tap, which has a carrier because this process holds it open.

    Its qdisc is a network card's: the kernel's default, such as `pfifo_fast`, or `mq` with several queues.
    """
    # Source: kernel, include/uapi/linux/if_tun.h: IFF_TAP, IFF_NO_PI, IFF_MULTI_QUEUE and TUNSETIFF.
    flags = 0x0002 | 0x1000 | (0x0100 if queues > 1 else 0)
    with ExitStack() as stack:
        with node.entered():
            for _ in range(queues):
                queue = stack.enter_context(Path("/dev/net/tun").open("r+b", buffering=0))
                fcntl.ioctl(queue, 0x400454CA, struct.pack("16sH22x", UPLINK.encode(), flags))
        node.batch(
            "ip",
            f"link set {UPLINK} up\n"
            f"address add {_NODE[4]}/24 dev {UPLINK}\n"
            f"address add {_NODE[6]}/64 dev {UPLINK} nodad\n"
            f"route add default via {_PEER[4]}\n"
            f"route add default via {_PEER[6]}\n",
        )
        yield


MASQUERADE: Final = f"""
table ip other_cni {{
 chain postrouting {{
  type nat hook postrouting priority srcnat; policy accept;
  ip saddr {_PODS_IPV4}/16 oifname "{UPLINK}" masquerade
 }}
}}
"""
"""A table of another owner: what the bridge plug-in of the CNI does."""


def _set_namespace(descriptor: int) -> None:
    # os.setns came with Python 3.12.
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _output(command: Sequence[str], stdin: str | None = None) -> str:
    """Raises RuntimeError if the command fails."""
    source = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, **source)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr or ended.stdout}")
    return ended.stdout


_libc = ctypes.CDLL(None, use_errno=True)
