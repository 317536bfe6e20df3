"""A node for tests: a fake runtime, the daemon in front of it, and hook servers that register with it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon.driving import Pod
from tests.hooks.remote.hook_server_process import Asked, HookServerProcess
from tests.lab.cri_client import CALL_TIMEOUT_S
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

PATIENT = """
[hooks]
load_timeout_s = 30.0
budget_s = 60.0
server_timeout_s = 30.0
"""
"""No hook is hurried, however slow the machine is."""


class Node:
    """One runtime and one daemon, each a server of its own, that share a folder.

    Args:
        folder: its path must be short, for sockets lie in it.
        options: of the daemon, besides the places that the node gives.

    Attributes:
        cgroup_files: what the daemon takes for the node's cgroups; a test makes those of its pods.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        folder.mkdir()
        self.cgroup_files = CgroupFiles(folder / "cgroup", version=2)
        self.runtime = FakeRuntime(folder / "runtime.sock")
        environment = {
            "KOORD_RUNTIMEPROXY_CGROUPS_ROOT": str(folder / "cgroup"),
            # There is no such folder: the fake runtime's node has every CPU.
            "KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT": str(folder / "sys"),
        }
        environment.update(options.pop("environment", {}))
        endpoint = f"{options.pop('runtime_prefix', '')}{self.runtime.socket_path}"
        (folder / "proxy").mkdir()
        self.proxy = ProxyProcess(
            folder / "proxy", ProxyOptions(endpoint, environment=environment, is_forked=True, **options)
        )

    @property
    def log(self) -> str:
        """All that the daemon has logged."""
        return "\n".join(self.proxy.log)

    def wait_for_log(self, text: str, count: int = 1) -> None:
        """Waits until the daemon has logged the text so many times."""
        wait_until(lambda: self.log.count(text) >= count, f"{text} in the log")

    def sent(self, method: str, count: int = 1) -> Any:
        """Waits for so many calls of a method, and returns the last one's message."""
        return self.runtime.recorded.wait(method, count)[-1].message


class Registrations:
    """Registers hook servers at a daemon, each time under a new name, until `close`."""

    _numbers = itertools.count(1)

    def __init__(self, node: Node) -> None:
        self.node = node
        self._paths: list[Path] = []

    def new_path(self, before: str = "") -> Path:
        """A file that is not there yet and sorts behind all earlier ones with the same beginning."""
        path = self.node.proxy.hook_folder / f"{before}{next(self._numbers):04}.json"
        self._paths.append(path)
        return path

    def register(self, server: HookServerProcess, *hooks: str, before: str = "", **options: Any) -> Path:
        """Registers a server as koordlet does and waits until it is in use."""
        path = self.new_path(before)
        server.register(path.parent, path.name, *hooks, **options)
        self.wait_for_use(path)
        return path

    def wait_for_use(self, path: Path, count: int = 1) -> None:
        """Waits until the daemon uses the file's server, again if it did before."""
        self.node.wait_for_log(f"hook server {path.name} is used", count)

    def close(self) -> None:
        """Ends the use of all servers and deletes their files.

        A file without hooks counts at once, one that is missing might come back and counts a little later.
        """
        used = [path for path in self._paths if f"hook server {path.name} is used" in self.node.log]
        for path in used:
            path.with_suffix(".none").write_text(
                json.dumps({"remote-endpoint": "/none", "runtime-hooks": []})
            )
            path.with_suffix(".none").rename(path)
        for path in used:
            self.node.wait_for_log(f"hook server {path.name} is used: /none for nothing")
        for path in self._paths:
            path.unlink(missing_ok=True)


def asked_about(server: HookServerProcess, made: Pod, hook: str = "") -> list[Asked]:
    """What a server was asked about a pod, by one hook or by all."""
    uid = made.config.metadata.uid
    return [each for each in server.asked(hook) if each.request.pod_meta.uid == uid]


def update(made: Pod, annotations: Mapping[str, str] | None = None, **resources: Any) -> None:
    """Updates a pod's container; only what is named is in the request."""
    request = api_pb2.UpdateContainerResourcesRequest(
        container_id=made.container,
        linux=api_pb2.LinuxContainerResources(**resources),
        annotations=annotations,
    )
    made.client.runtime.UpdateContainerResources(request, timeout=CALL_TIMEOUT_S)


def stop_container(made: Pod) -> None:
    """Stops a pod's container."""
    request = api_pb2.StopContainerRequest(container_id=made.container)
    made.client.runtime.StopContainer(request, timeout=CALL_TIMEOUT_S)


def stop_pod(made: Pod) -> None:
    """Stops a pod's sandbox."""
    request = api_pb2.StopPodSandboxRequest(pod_sandbox_id=made.id)
    made.client.runtime.StopPodSandbox(request, timeout=CALL_TIMEOUT_S)


@contextmanager
def running(node: Node) -> Iterator[Node]:
    """Starts runtime and daemon, and ends both."""
    with ExitStack() as stack:
        stack.enter_context(node.runtime)
        stack.enter_context(node.proxy)
        yield node
