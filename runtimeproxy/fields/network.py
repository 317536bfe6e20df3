"""Network QoS of a node: names, class numbers, and the shares of its link as text. Pure.

The classes are those of Koordinator, with its minor numbers; the major number is our own, so that neither
objects of koordlet nor those of an administrator are taken for ours.
Source: Koordinator pkg/koordlet/qosmanager/plugins and pkg/koordlet/runtimehooks/hooks/tc.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple
from zlib import crc32

NETWORK_QOS: Final = "network.qos"
"""The kernel setting that is the link's queueing discipline, its classes and our table of nftables."""
OFF: Final = "off"
"""Its value where nothing of ours is there."""
CLASS_FIELD: Final = "network_class"
EGRESS_FIELD: Final = "network_egress_limit_bps"
INGRESS_FIELD: Final = "network_ingress_limit_bps"
NO_CLASS: Final = "none"

MAJOR: Final = 0x4B52
"""Of the root queueing discipline and its classes, `4b52:` in `tc`."""
TOTAL_MINOR: Final = 1
POD_MINORS: Final = range(0x100, 0xFFFF)
"""Of pods with an egress limit of their own."""
MOST_BPS: Final = 2**63 - 1
MOST_RECEIVED_BPS: Final = 8 * ((2**64 - 1) // 10**9 - 2**31)
"""The most that nftables can limit, some 130 Gbit/s. The kernel refuses a rate and a burst (here up to 2 GiB)
whose sum, times the nanoseconds of a second, is above 64 bits. Source: Linux net/netfilter/nft_limit.c,
nft_limit_init."""
LEAST_BPS: Final = 8
"""One byte in a second, the least that HTB knows. Source: Linux net/sched/sch_htb.c."""


class NetworkClass(StrEnum):
    """A class of pods; LSE and LSR pods are in LS."""

    SYSTEM = "SYSTEM"
    LS = "LS"
    BE = "BE"

    @property
    def leaf(self) -> int:
        """The minor number that packets of its pods have. Source: Koordinator, the handles of tc."""
        return _LEAVES[self]

    @property
    def inner(self) -> int:
        """The minor number of the class with guarantee and ceiling, above its leaf and its pods' own."""
        return self.leaf << 4

    @property
    def order(self) -> int:
        """HTB's priority: a lower one gets more of what others leave first. Source: as `leaf`."""
        return self.leaf - 1


_LEAVES: Final = {NetworkClass.SYSTEM: 2, NetworkClass.LS: 3, NetworkClass.BE: 4}


class Share(NamedTuple):
    """The share of one class, in bits/s."""

    guarantee_bps: int
    ceiling_bps: int


class NetworkShares(NamedTuple):
    """The shares of a link, all in bits/s, which `tc` and nftables are to have."""

    total_bps: int
    egress: tuple[Share, Share, Share]
    """In the order of `NetworkClass`."""
    ingress_ceilings_bps: tuple[int, int, int]
    """In the order of `NetworkClass`; 0: none. What is received has passed the link: nothing can be
    guaranteed by the node that gets it."""

    def __str__(self) -> str:
        egress = " ".join(
            f"{name} {each.guarantee_bps}-{each.ceiling_bps}"
            for name, each in zip(NetworkClass, self.egress, strict=True)
        )
        ingress = " ".join(
            f"{name} {each}" for name, each in zip(NetworkClass, self.ingress_ceilings_bps, strict=True)
        )
        return f"total {self.total_bps} egress {egress} ingress {ingress}"


_SHARES: Final = re.compile(
    r"total (\d+) egress SYSTEM (\d+)-(\d+) LS (\d+)-(\d+) BE (\d+)-(\d+) "
    r"ingress SYSTEM (\d+) LS (\d+) BE (\d+)",
    re.ASCII,
)


def shares_of(text: str) -> NetworkShares | None:
    """Return the shares that a text says; None for `OFF`.

    Raises:
        ValueError: It is no such text, or a number is out of range.
    """
    if text == OFF:
        return None
    match = _SHARES.fullmatch(text[:512])
    if match is None:
        raise ValueError(f"is neither {OFF} nor shares of a link")
    total, *others = map(int, match.groups())
    egress = tuple(Share(*others[at : at + 2]) for at in (0, 2, 4))
    if not LEAST_BPS <= total <= MOST_BPS or any(
        not LEAST_BPS <= each.guarantee_bps <= each.ceiling_bps <= total for each in egress
    ):
        raise ValueError(f"has a rate below {LEAST_BPS} bits/s, or above what it is a share of")
    return NetworkShares(total, (egress[0], egress[1], egress[2]), (others[6], others[7], others[8]))


def shares_problem(text: object) -> str:
    """Return why a text is no value of the setting; empty if it is one."""
    if not isinstance(text, str):
        return "takes a text"
    try:
        shares_of(text)
    except ValueError as error:
        return str(error)
    return ""


def classid(major: int, minor: int) -> int:
    """Return the number of a class, as `net_cls.classid` has it. Source: Linux TC_H_MAKE, pkt_sched.h."""
    return major << 16 | minor


def pod_minor(uid: str) -> int:
    """Return the minor number of a pod's own class, unless another pod has it."""
    return POD_MINORS[crc32(uid.encode()) % len(POD_MINORS)]
