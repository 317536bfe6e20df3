"""A policy that changes all it can and records its views, for tests of restarts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

from runtimeproxy.hooks import ContainerChange, ContainerView, PodChange, PodView, Policy, ResourceChange
from runtimeproxy.node.snapshot import Node

TELL_IN = "test/tell-in"
"""Pods with this annotation are changed; views go to the file that it names, one line of JSON each."""
SHARES = 512
QUOTA_US = 20_000
MOVED_TO = "/moved"
"""Where the pod's cgroup lies instead, with the last part of the kubelet's name."""


class Remembering(Policy):
    """Changes and records."""

    name: ClassVar[str] = "remembering"

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Changes labels, annotations and the place."""
        if TELL_IN not in pod.annotations:
            return None
        place = f"{MOVED_TO}/{pod.cgroup_parent.rpartition('/')[2]}"
        return PodChange(labels={"team": "x"}, annotations={"added": "ü"}, cgroup_parent=place)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Changes resources, and has a value wait for the cgroup; of an update it tells what it sees."""
        path = container.pod.annotations.get(TELL_IN)
        if path is None:
            return None
        if container.updated is not None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(descriptor, json.dumps(plain(container)).encode() + b"\n")
            os.close(descriptor)
        resources = ResourceChange(cpu_shares=SHARES, cpu_quota_us=QUOTA_US)
        return ContainerChange(resources=resources, cgroup={"cpu.idle": 0}, annotations={"mine": "1"})


def plain(value: Any) -> Any:
    """A view as JSON has it."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return value
