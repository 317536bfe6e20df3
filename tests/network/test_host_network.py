"""Pods on the host's network: what they send is found by their cgroup, of version 2."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from runtimeproxy.testing.builders import pod_sandbox_config
from tests.lab.deadline import wait_until
from tests.lab.programs import missing
from tests.network.load import TOLERANCE, Flow, Load, near_mbit, steady_mbit
from tests.network.namespaces import Family, NodeNetwork
from tests.network.stand import CEILINGS_MBIT, LIMITS, Stand, need_network_namespaces

_HERE = Path("/sys/fs/cgroup")
_BESIDE = _HERE / "unified"
"""Where systemd mounts version 2 if the controllers are in version 1."""
_AS_ROOT = ("unshare", "--mount", "sh", "-c", f'mount --bind {_BESIDE} {_HERE} && exec "$@"', "sh")
"""Words before a command for which version 2 is all there is, as `nft` expects it."""


@contextmanager
def real_cgroup(root: Path, path: str) -> Iterator[Path]:
    """A pod's cgroup in the kernel's tree. Those above it may be of other tests, too, and stay."""
    folder = root / path.strip("/")
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        folder.rmdir()


def has_rules(stand: Stand, count: int) -> bool:
    rules = stand.node.run("nft", "list", "ruleset")
    return len(re.findall(r"socket cgroupv2 .* meta priority set", rules)) == count


def test_pods_of_the_hosts_network_have_their_class_and_limit(socket_folder: Path) -> None:
    need_network_namespaces()
    root = _BESIDE if (_BESIDE / "cgroup.procs").exists() else _HERE
    if not (root / "cgroup.controllers").exists():
        missing("cgroup version 2 is not mounted")
    wrapper = _AS_ROOT if root == _BESIDE else ()
    with NodeNetwork() as network, Stand(socket_folder, network.node, network, wrapper=wrapper) as stand:
        stand.start()
        with ExitStack() as stack:
            folders = []
            for number, annotations in enumerate(({}, {LIMITS: '{"egressLimit": "8M"}'}), 1):
                config = pod_sandbox_config(
                    uid=str(uuid.uuid4()), qos="BE", host_network=True, annotations=annotations
                )
                folders.append(stack.enter_context(real_cgroup(root, config.linux.cgroup_parent)))
                stack.callback(stand.remove, stand.run(config))
                wait_until(partial(has_rules, stand, number), f"{number} rules of cgroups")
            with Load([sent(network, folder, 6) for folder in folders]) as load:
                plain, limited = steady_mbit(load, is_wanted=is_ceiling)
            with Load([sent(network, folders[1], 4)]) as load:
                (alone,) = near_mbit(load, (8,))
    assert plain + limited == pytest.approx(CEILINGS_MBIT["BE"], rel=TOLERANCE)
    assert limited < 1.1 * 8
    assert alone == pytest.approx(8, rel=TOLERANCE)


def is_ceiling(rates: list[float]) -> bool:
    return sum(rates) == pytest.approx(CEILINGS_MBIT["BE"], rel=TOLERANCE)


def sent(network: NodeNetwork, cgroup: Path, family: Family) -> tuple[Flow]:
    """A flow that a process of the cgroup sends."""
    address = network.peer_addresses.of(family)
    return (Flow(network.node, network.peer, address, family, cgroup / "cgroup.procs"),)
