"""The ``info`` map of verbose status answers, in the form of containerd.

Source: containerd 1.6 to 2.2, ``toCRISandboxInfo`` and ``toCRIContainerInfo`` of the CRI plugin: one
JSON document under the key ``info`` with the CRI configuration (Go field tags: names as in the .proto
file, numbers as numbers, empty fields left out) and the OCI specification.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from runtimeproxy.testing.cgroup_paths import CgroupDriver, spec_path

if TYPE_CHECKING:
    from cri_api.runtime.v1 import api_pb2
    from runtimeproxy.testing.entries import Container, Sandbox

Document = dict[str, Any]

RUNTIME_TYPE = "io.containerd.runc.v2"
"""Runtime type of the default handler."""

SANDBOX_CPU_SHARES = 2
"""Shares of the sandbox container itself. Source: containerd, defaultSandboxCPUshares."""


def container_info(container: Container, driver: CgroupDriver) -> dict[str, str]:
    """The ``info`` map of a container's status."""
    parent = container.sandbox_config.linux.cgroup_parent
    document = {
        "sandboxID": container.sandbox_id,
        "pid": container.pid,
        "removing": False,
        "snapshotKey": container.id,
        "snapshotter": "overlayfs",
        "runtimeType": RUNTIME_TYPE,
        "runtimeOptions": {"systemd_cgroup": driver is CgroupDriver.SYSTEMD},
        "config": plain(container.config),
        "runtimeSpec": {
            "ociVersion": "1.2.0",
            "process": _process(container.config, container.resources),
            "annotations": {
                "io.kubernetes.cri.container-name": container.config.metadata.name,
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.sandbox-id": container.sandbox_id,
            },
            "linux": {
                "resources": spec_resources(container.resources),
                "cgroupsPath": spec_path(parent, container.id, driver),
            },
        },
    }
    return {"info": json.dumps(document)}


def sandbox_info(sandbox: Sandbox, driver: CgroupDriver) -> dict[str, str]:
    """The ``info`` map of a sandbox's status."""
    parent = sandbox.config.linux.cgroup_parent
    document = {
        "pid": sandbox.pid,
        "processStatus": "running" if sandbox.ready else "deleted",
        "netNamespaceClosed": not sandbox.ready,
        "image": "registry.k8s.io/pause:3.10",
        "snapshotKey": sandbox.id,
        "snapshotter": "overlayfs",
        "runtimeHandler": sandbox.runtime_handler,
        "runtimeType": RUNTIME_TYPE,
        "runtimeOptions": {"systemd_cgroup": driver is CgroupDriver.SYSTEMD},
        "config": plain(sandbox.config),
        "runtimeSpec": {
            "ociVersion": "1.2.0",
            "process": {"args": ["/pause"], "oomScoreAdj": -998},
            "annotations": {
                "io.kubernetes.cri.container-type": "sandbox",
                "io.kubernetes.cri.sandbox-id": sandbox.id,
            },
            "linux": {
                "resources": {"cpu": {"shares": SANDBOX_CPU_SHARES}},
                "cgroupsPath": spec_path(parent, sandbox.id, driver),
            },
        },
    }
    return {"info": json.dumps(document)}


def spec_resources(resources: api_pb2.LinuxContainerResources) -> Document:
    """``linux.resources`` of an OCI specification; what is not set is left out."""
    cpu = {
        "shares": resources.cpu_shares,
        "quota": resources.cpu_quota,
        "period": resources.cpu_period,
        "cpus": resources.cpuset_cpus,
        "mems": resources.cpuset_mems,
    }
    memory = {
        "limit": resources.memory_limit_in_bytes,
        "swap": resources.memory_swap_limit_in_bytes,
    }
    pages = [{"pageSize": page.page_size, "limit": page.limit} for page in resources.hugepage_limits]
    return _set(
        {
            "memory": _set(memory),
            "cpu": _set(cpu),
            "hugepageLimits": pages,
            "unified": dict(resources.unified),
        }
    )


def plain(message: Message) -> Document:
    """A message as Go's JSON encoder shows it: names of the .proto file, empty fields left out."""
    return {field.name: _plain_value(value) for field, value in message.ListFields()}


def _process(config: api_pb2.ContainerConfig, resources: api_pb2.LinuxContainerResources) -> Document:
    variables = [f"{env.key}={env.value.decode(errors='replace')}" for env in config.envs]
    return _set(
        {
            "args": [*config.command, *config.args],
            "env": variables,
            "cwd": config.working_dir or "/",
            "oomScoreAdj": resources.oom_score_adj,
        }
    )


def _plain_value(value: object) -> object:
    if isinstance(value, Message):
        return plain(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain_value(item) for item in value]
    return value


def _set(values: Document) -> Document:
    return {name: value for name, value in values.items() if value}
