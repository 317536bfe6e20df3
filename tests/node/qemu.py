"""One boot of the node, which ends by itself or is ended."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.node.image import Image
from tests.node.wheels import Architecture

CPUS = "2"
TOPOLOGY = "4,sockets=1,cores=2,threads=2"
"""CPUs of the own kernel, which has no core scheduling where cores have one thread."""
NUMA_TOPOLOGY = "8,sockets=2,cores=2,threads=2"
"""CPUs where there are two NUMA nodes, each of a socket and of half of the memory."""
_NUMA_CPUS = ("0-3", "4-7")
_MEMORY_MIB = 3072

# There is no KVM on many test machines, so software emulation is what all of them use.
_MACHINES: Mapping[Architecture, tuple[str, ...]] = {
    "amd64": ("qemu-system-x86_64", "-cpu", "max,vendor=GenuineIntel"),
    # Source: qemu docs/system/arm/virt.rst. Emulated pointer authentication takes most of the time of `max`.
    "arm64": ("qemu-system-aarch64", "-machine", "virt", "-cpu", "max,pauth=off,sve=off"),
}
_CONSOLES: Mapping[Architecture, str] = {"amd64": "ttyS0", "arm64": "ttyAMA0"}
_ALWAYS = ("-accel", "tcg,thread=multi", "-no-reboot", "-nic", "none")


def command(
    image: Image,
    share: Path,
    cgroup_version: int = 2,
    own_kernel: Path | None = None,
    *,
    has_numa: bool = False,
) -> list[str]:
    """The emulator's command line. Nothing is written to the disk; `share` is the way in and out.

    Args:
        own_kernel: In place of the image's, without modules; see `build_kernel.sh`.
        has_numa: Whether there are two NUMA nodes.

    Source: systemd(1), systemd.unified_cgroup_hierarchy and systemd.legacy_systemd_cgroup_controller;
    no_timer_check as Linux arch/x86/kernel/kvm.c has it for every guest of KVM.
    """
    kernel = f"root=/dev/vda rw console={_CONSOLES[image.architecture]} quiet systemd.show_status=0"
    # Where the emulator gets no CPU for a while an x86 kernel would take its timer for broken.
    kernel += " no_timer_check"
    if cgroup_version == 1:
        kernel += " systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1"
    kernel_files = ["-kernel", str(own_kernel or image.kernel)]
    if own_kernel is None:
        kernel_files += ["-initrd", str(image.initrd)]
    numa: list[str] = []
    if has_numa:
        cpus, size = NUMA_TOPOLOGY, _MEMORY_MIB // len(_NUMA_CPUS)
        for number, own in enumerate(_NUMA_CPUS):
            numa += ["-object", f"memory-backend-ram,id=memory{number},size={size}M"]
            numa += ["-numa", f"node,nodeid={number},cpus={own},memdev=memory{number}"]
    else:
        cpus = CPUS if own_kernel is None else TOPOLOGY
    return [
        *_MACHINES[image.architecture],
        *_ALWAYS,
        *("-nographic", "-smp", cpus, "-m", str(_MEMORY_MIB), *numa),
        *kernel_files,
        *("-append", kernel),
        *("-drive", f"file={image.disk},if=virtio,format=raw,snapshot=on"),
        *("-virtfs", f"local,path={share},mount_tag=share,security_model=none"),
    ]


def boot(
    image: Image,
    share: Path,
    timeout_s: float,
    cgroup_version: int = 2,
    own_kernel: Path | None = None,
    *,
    has_numa: bool = False,
) -> str:
    """Boots and waits until the node has powered off; its console goes to `share/console.log`.

    Returns:
        The empty string, or why the boot does not count as one that ended well.
    """
    with (share / "console.log").open("wb") as console:
        # The emulator is the lowest of what runs here: nothing in the node depends on its speed.
        started = command(image, share, cgroup_version, own_kernel, has_numa=has_numa)
        nice = ["nice", "-n", "10", *started]
        process = subprocess.Popen(nice, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"the node did not power off within {timeout_s:.0f} s"
        finally:
            process.kill()
            process.wait()
    return "" if code == 0 else f"the emulator ended with {code}"
