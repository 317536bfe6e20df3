"""A policy that changes all it can and records its views, for tests of restarts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

from runtimeproxy.hooks import CgroupChange, ContainerChange, ContainerView, PodChange, PodView, Policy
from runtimeproxy.hooks.changes import ResourceChange

TELL_IN = "test/tell-in"
"""Pods with this annotation are changed; views go to the file that it names, one line of JSON each."""
SHARES = 512
QUOTA_US = 20_000
MOVED_TO = "/moved"
"""Where the pod's cgroup lies instead, with the last part of the kubelet's name."""


class Remembering(Policy):
    """Changes and records."""

    name: ClassVar[str] = "remembering"

    def pre_run_pod_sandbox(self, pod: PodView) -> PodChange | None:
        """Changes labels, annotations and the place."""
        if TELL_IN not in pod.annotations:
            return None
        place = f"{MOVED_TO}/{pod.cgroup_parent.rpartition('/')[2]}"
        return PodChange(labels={"team": "x"}, annotations={"added": "ü"}, cgroup_parent=place)

    def pre_create_container(self, container: ContainerView) -> ContainerChange | None:
        """Changes resources, and has a value wait for the cgroup."""
        if TELL_IN not in container.pod.annotations:
            return None
        resources = ResourceChange(cpu_shares=SHARES, cpu_quota_us=QUOTA_US)
        return ContainerChange(resources=resources, cgroup={"cpu.idle": 0}, annotations={"mine": "1"})

    def pre_update_container_resources(self, container: ContainerView) -> ContainerChange | None:
        """Tells what it sees."""
        path = container.pod.annotations.get(TELL_IN)
        if path is not None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(descriptor, json.dumps(plain(container)).encode() + b"\n")
            os.close(descriptor)
        return None

    def pre_stop_container(self, container: ContainerView) -> CgroupChange | None:
        """Is a hook of this policy, so that stops are held."""
        return None


def plain(value: Any) -> Any:
    """A view as JSON has it."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return value
