"""What failures are made of, and how one is seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from cri_api.runtimeproxy.v1.api_pb2 import FailureCounts, GetStatusResponse, NodeInput
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from tests.daemon import scraping
from tests.daemon.conftest import Daemons
from tests.daemon.driving import Pod, batch_pod
from tests.daemon.scraping import Metrics, scrape, socket_of
from tests.katalyst.objects import target
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.node.objects_of import write

OF_PROMETHEUS: Final = frozenset({"up", "process_start_time_seconds"})
"""Metrics that Prometheus, or any client of it, has by itself."""

WITH_STATEMENTS: Final = """\
import runpy, sys
exec(sys.argv[1])
sys.argv = sys.argv[4:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=False)
"""
"""Runs statements in the process of the daemon, or of the manager, before it starts."""


@dataclass
class Scene:
    """What a failure is made of.

    Attributes:
        stack: Is closed after the status was looked at.
        looked: The metrics that were looked at.
    """

    daemons: Daemons
    runtime: FakeRuntime
    files: CgroupFiles
    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)
    looked: set[str] = field(default_factory=set)

    def prepare(
        self,
        config: str = "",
        *,
        statements: str = "",
        inherited: tuple[int, ...] = (),
        wrapper: tuple[str, ...] = (),
    ) -> ProxyProcess:
        """A daemon with metrics that is not started.

        Args:
            config: Its configuration.
            statements: Python that runs before it, where a constant is too long for a test.
            inherited: File descriptors that it gets.
            wrapper: Words before its command.
        """
        if statements:
            wrapper = (sys.executable, "-c", WITH_STATEMENTS, statements)
        daemon = self.daemons.prepare(config, wrapper=wrapper, inherited=inherited)
        self.daemons.environment["KOORD_RUNTIMEPROXY_METRICS_LISTEN"] = str(socket_of(daemon))
        return daemon

    def start(self, config: str = "", *, statements: str = "") -> ProxyProcess:
        daemon = self.prepare(config, statements=statements)
        daemon.start()
        return daemon

    def wait_for(self, daemon: ProxyProcess, name: str, least: float = 1.0, **labels: str) -> Metrics:
        """Waits until the sum of some series is at least so much; returns all values of then."""
        self.looked.add(name)
        return scraping.wait_for(daemon, name, least, **labels)

    def wait_for_zero(self, daemon: ProxyProcess, name: str) -> None:
        """Waits until a gauge is 0."""
        self.looked.add(name)
        wait_until(lambda: (name, ()) in (found := scrape(daemon)) and found.of(name) == 0, f"{name} of 0")

    def reject_what_katalyst_refuses(self, daemon: ProxyProcess) -> None:
        """Sets `katalyst.on_error` by Katalyst's dynamic configuration."""
        daemon.objects_folder.mkdir(exist_ok=True)
        config = {"runtimeProxyConfig": {"onError": "reject"}}
        write(daemon.objects_folder / "katalyst.yaml", target("all", config=config))
        self.wait_for(daemon, "node_input_state", input="katalyst", state="known")

    def run_batch_pod(self, client: CriClient, name: str = "batch") -> tuple[Pod, Path]:
        """A pod with values of a policy, and the file of its weight, which held 100 before."""
        made = batch_pod(client, name)
        parent = made.config.linux.cgroup_parent
        self.files.make(parent)
        weight = self.files.folder(parent) / "cpu.weight"
        weight.write_text("100\n")
        made.run().create().start()
        wait_until(lambda: weight.read_text() != "100\n", "the policy's weight")
        return made, weight


Make: TypeAlias = Callable[[Scene], ProxyProcess]
"""Makes a failure happen in a daemon, and looks at the metrics of the row."""
IsSeen: TypeAlias = Callable[[GetStatusResponse], bool]
"""Whether the status shows it."""


class Row(NamedTuple):
    """How a row of the document is tested."""

    make: Make
    is_seen: IsSeen | None
    """None where the daemon has ended: there is no status, and nothing to scrape, which is `up`."""


def failures(status: GetStatusResponse, policy: str) -> FailureCounts:
    (found,) = (each.failures for each in status.policies if each.name == policy)
    return found


def has_node_problem(status: GetStatusResponse) -> bool:
    return bool(status.node.problems or status.node.strategy_problems)


def state_of(status: GetStatusResponse, name: str) -> NodeInput.State.ValueType:
    (found,) = (each.state for each in status.node.inputs if each.name == name)
    return found


def write_policy(daemon: ProxyProcess, name: str, body: str, imports: str = "ContainerChange") -> None:
    """Writes a policy into the daemon's folder.

    Args:
        daemon: Finds it at its start or next reload.
        name: The policy's.
        body: Of its class, without indentation.
        imports: What it needs of `runtimeproxy.hooks`.
    """
    daemon.policies_folder.mkdir(exist_ok=True)
    path = daemon.policies_folder / f"{name}.py"
    lines = [f"from runtimeproxy.hooks import {imports}, Policy", "class Made(Policy):"]
    lines += [f"    {line}" for line in (f"name = {name!r}", *body.splitlines())]
    path.write_text("\n".join([*lines, ""]))
    path.chmod(0o644)
