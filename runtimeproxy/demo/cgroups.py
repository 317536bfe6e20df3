"""Where the demo's pods live: in a cgroup of their own, which no kubelet looks after."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from runtimeproxy.testing.builders import KubeletQos
from runtimeproxy.testing.cgroups import CgroupDriver

TREE: Final = "koordproxydemo"
"""Name of the demo's cgroup, and of its slice."""


def demo_cgroup_parent(uid: str, qos: KubeletQos, driver: CgroupDriver) -> str:
    """Returns a pod's cgroup parent, which tells the QoS class as the kubelet's would."""
    words = [TREE, *([] if qos is KubeletQos.GUARANTEED else [qos.value])]
    if driver is CgroupDriver.CGROUPFS:
        return f"/{'/'.join(words)}/pod{uid}"
    words.append(f"pod{uid.replace('-', '_')}")
    slices = ["-".join(words[: count + 1]) + ".slice" for count in range(len(words))]
    return f"/{'/'.join(slices)}"


def remove_demo_cgroups(root: Path) -> None:
    """Removes what the runtime left of the demo's cgroups; systemd collects its slices itself."""
    for hierarchy in (root, *root.glob("*/")):
        tree = hierarchy / TREE
        folders = sorted(tree.glob("**/"), key=lambda folder: len(folder.parts), reverse=True)
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
