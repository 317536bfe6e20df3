"""Policies that the tests install in the daemon; annotations of the pod say what they do."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from pathlib import Path
from typing import ClassVar, cast

from runtimeproxy.hooks import ContainerChange, ContainerView, PodChange, PodView, Policy
from runtimeproxy.node.snapshot import Node

WAIT_FOR = "test/wait-for"
"""Before a container is created, its value, a FIFO, is read to its end."""
HANG_LOOP = "test/hang-loop"
"""Before a container is created, the daemon's event loop begins to read the FIFO to its end."""
MODULES_IN = "test/modules-in"
"""Before a container is created, the names of all modules that the daemon has imported go to this file."""
SEE_IN = "test/see-in"
"""What is known of a container that is updated is appended to this file, one line of JSON each."""


class Waiting(Policy):
    """Waits as the pod says."""

    name: ClassVar[str] = "waiting"
    timeout_s: ClassVar[float] = 60.0

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Waits."""
        annotations = container.pod.annotations
        if container.id:
            return None
        if WAIT_FOR in annotations:
            Path(annotations[WAIT_FOR]).read_bytes()
        if HANG_LOOP in annotations:
            read = Path(annotations[HANG_LOOP]).read_bytes
            _loop().call_soon_threadsafe(read)
        if MODULES_IN in annotations:
            Path(annotations[MODULES_IN]).write_text(" ".join(sorted(sys.modules)))
        return None


class Seeing(Policy):
    """Tells what it sees."""

    name: ClassVar[str] = "seeing"

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Writes a line."""
        pod = container.pod
        if container.updated is None:
            return None
        seen = {
            "container": container.name,
            "cgroup_parent": pod.cgroup_parent,
            "pod": [pod.namespace, pod.name, pod.uid],
            "qos": str(pod.qos),
            "memory": container.current.memory_limit_bytes,
        }
        descriptor = os.open(pod.annotations[SEE_IN], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, json.dumps(seen).encode() + b"\n")
        os.close(descriptor)
        return None


def _loop() -> asyncio.AbstractEventLoop:
    """The daemon's own; nothing else in this process has tasks."""
    # The daemon freezes what is there once it runs, and frozen objects are not listed.
    gc.unfreeze()
    return next(each.get_loop() for each in gc.get_objects() if isinstance(each, asyncio.Task))


ANSWER = "test/answer"
"""What `Answering` does about a pod."""


class Answering(Policy):
    """Answers what no policy may."""

    name: ClassVar[str] = "answering"

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Raises, or returns something else than a change."""
        how = pod.annotations.get(ANSWER)
        if how == "raises":
            raise ZeroDivisionError("as the pod says")
        if how == "no change":
            return cast("PodChange", {"cgroup": object()})
        if how == "no value":
            return PodChange(cgroup={"cpu.shares": cast("int", object()), "of.none": 1, "cpuset.cpus": "9-1"})
        return None
