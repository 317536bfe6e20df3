"""The daemon before a fake runtime, a double of resctrl, and pods with real processes in real cgroups."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.cgroups.mounts import DEFAULT_ROOT
from runtimeproxy.testing import FakeRuntime, NriAdaptation, NriRuntimeState, RuntimeState
from runtimeproxy.testing.builders import container_config, create_container_request, pod_sandbox_config
from tests.cgroups.boxes import Box
from tests.daemon.scraping import Metrics, scrape
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects
from tests.lab.programs import need_controllers_of_v1
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.resctrl.double import Command, Double, mounted
from tests.resctrl.schemata import Variant

PREFIX: Final = "koord-runtime-proxy-"
DOCUMENTED_S: Final = 10.0
"""How soon a task, or what another program has changed, is as it is to be. Source: policies/README.md."""
PATIENCE_S: Final = DOCUMENTED_S + 50.0
"""How long tests wait for it on a busy machine."""
SETTLED_S: Final = 2.5
ANNOTATION: Final = "node.koordinator.sh/resctrl"


def class_qos(start: int, end: int, mba: int | None = None, *, enable: bool = True) -> dict[str, object]:
    """A class with a part of cache and bandwidth, in percent."""
    found: dict[str, object] = {"enable": enable, "catRangeStartPercent": start, "catRangeEndPercent": end}
    return {"resctrlQOS": found | ({} if mba is None else {"mbaPercent": mba})}


CLASSES: Final = {
    "lsrClass": class_qos(0, 100, 100),
    "lsClass": class_qos(0, 60, 85),
    "beClass": class_qos(0, 30, 20),
}


@dataclass(eq=False)
class Pod:
    """A pod with a sandbox, a container, and processes in both."""

    stand: Stand
    config: api_pb2.PodSandboxConfig
    box: Box
    id: str = ""
    container: str = ""

    @property
    def uid(self) -> str:
        return self.config.metadata.uid

    @property
    def own_group(self) -> str:
        return f"{PREFIX}pod-{self.uid}"

    def run(self, *program: str) -> Pod:
        """Starts sandbox and container, each with a process; the container's runs the program."""
        runtime = self.stand.client.runtime
        self.box.start("sandbox")
        request = api_pb2.RunPodSandboxRequest(config=self.config)
        self.id = runtime.RunPodSandbox(request, timeout=CALL_TIMEOUT_S).pod_sandbox_id
        config = container_config("main", pod=self.config)
        create = create_container_request(self.id, config, self.config)
        self.container = runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        self.start(*program)
        start = api_pb2.StartContainerRequest(container_id=self.container)
        runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
        return self

    def start(self, *program: str) -> int:
        """Another process in the container, as an exec of the runtime."""
        return self.box.start("main", program=program or ("sleep", "600"))

    @property
    def tasks(self) -> set[int]:
        """All its threads that are there now."""
        files = [*self.box.folder().rglob("tasks")]
        return {int(each) for file in files for each in file.read_text().split()}

    def is_in(self, group: str) -> bool:
        """Whether all its tasks, and there are some, are in a group, the root one if it is empty."""
        tasks = self.tasks
        try:
            members = self.stand.double.tasks(group)
        except FileNotFoundError:
            return False
        # What has ended between the two is none.
        return bool(tasks) and not (tasks - members) & self.tasks

    def wait_for(self, group: str, timeout_s: float = PATIENCE_S) -> None:
        """Waits until all its tasks are in a group."""
        try:
            wait_until(
                lambda: self.is_in(group), f"the tasks of {self.config.metadata.name} in {group!r}", timeout_s
            )
        except TimeoutError:
            print(self.stand.daemon.run("status").stdout)
            print(self.stand.daemon.run("explain", f"default/{self.config.metadata.name}").stdout)
            print(self.stand.double.groups, self.stand.double.commands()[-20:])
            raise

    def end(self) -> None:
        """Ends its processes, and removes its cgroups."""
        if self.box.folder().exists():
            self.box.end()

    def remove(self) -> None:
        """Ends its processes, and removes it from the runtime."""
        runtime = self.stand.client.runtime
        self.end()
        stop = api_pb2.StopPodSandboxRequest(pod_sandbox_id=self.id)
        runtime.StopPodSandbox(stop, timeout=CALL_TIMEOUT_S)
        remove = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=self.id)
        runtime.RemovePodSandbox(remove, timeout=CALL_TIMEOUT_S)
        self.stand.pods.remove(self)


@dataclass
class Stand:
    """All of it."""

    double: Double
    daemon: ProxyProcess
    runtime: FakeRuntime
    client: CriClient
    objects: NodeObjects
    cgroup: str
    """The parent of the pods' cgroups."""
    pods: list[Pod] = field(default_factory=list)

    def strategy(self, classes: Mapping[str, object] = CLASSES) -> None:
        """What the classes have."""
        self.objects.strategies({"resource-qos-config": {"clusterStrategy": classes}})

    def pod(self, name: str, qos: str, own: object = None) -> Pod:
        """A pod that does not run yet; `own` is its annotation."""
        uid = str(uuid.uuid4())
        annotations = {} if own is None else {ANNOTATION: own if isinstance(own, str) else json.dumps(own)}
        cgroup = f"{self.cgroup}/pod{uid}"
        config = pod_sandbox_config(name, uid=uid, qos=qos, annotations=annotations, cgroup_parent=cgroup)
        box = Box(cgroup)
        box.folder().mkdir(parents=True)
        self.pods.append(Pod(self, config, box))
        return self.pods[-1]

    def schemata(self, group: str) -> list[str]:
        """The lines of one of our groups, without blanks."""
        return self.double.read(f"{PREFIX}{group}/schemata").replace(" ", "").splitlines()

    def wait_for_schemata(self, group: str, *lines: str) -> None:
        """Waits until one of our groups has these lines."""

        def are_there() -> bool:
            try:
                return self.schemata(group) == list(lines)
            except OSError:
                return False

        try:
            wait_until(are_there, f"the schemata of {group}", PATIENCE_S)
        except TimeoutError:
            print(self.daemon.run("status").stdout, *self.daemon.log[-20:], sep="\n")
            print(self.double.groups, self.double.commands()[-20:])
            raise

    def wait_until_settled(self) -> None:
        """Waits until the daemon has written nothing for two comparisons: it may act on what was."""
        number, since_s = -1, 0.0

        def is_settled() -> bool:
            nonlocal number, since_s
            if (now := len(self.double.commands())) != number:
                number, since_s = now, time.monotonic()
            return time.monotonic() - since_s > SETTLED_S

        wait_until(is_settled, "a daemon at rest", PATIENCE_S)

    def wait_for_status(self, *words: str) -> str:
        """Waits until `status` has all of these; returns it."""
        shown = ""

        def has_words() -> bool:
            nonlocal shown
            shown = " ".join(self.status().split())
            return all(each in shown for each in words)

        try:
            wait_until(has_words, f"{words} in the status", PATIENCE_S)
        except TimeoutError:
            print(self.status())
            raise
        return shown

    def of_others(self) -> dict[str, str]:
        """What other programs have set: the files of groups that are not ours, and the root's schemata."""
        root, found = self.double.root, {"schemata": self.double.read("schemata")}
        for name in sorted(self.double.groups):
            if not name.startswith(PREFIX):
                files = (
                    each
                    for each in (root / name).rglob("*")
                    if each.is_file() and "mon_data" not in each.parts
                )
                found |= {str(each.relative_to(root)): each.read_text() for each in files}
        return found

    @property
    def own_groups(self) -> set[str]:
        """The names of our groups, without the prefix."""
        return {each.removeprefix(PREFIX) for each in self.double.groups if each.startswith(PREFIX)}

    def status(self) -> str:
        """The text of the command `status`."""
        return self.daemon.run("status").stdout

    def explain(self, pod: Pod) -> dict[str, Any]:
        """The answer of the command `explain`."""
        done = self.daemon.run("explain", f"default/{pod.config.metadata.name}", "--output", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait_for_explanation(self, pod: Pod, words: str) -> None:
        """Waits until `explain` has these words."""
        wait_until(lambda: words in str(self.explain(pod)), f"{words!r} in the explanation", PATIENCE_S)

    def metrics(self) -> Metrics:
        return scrape(self.daemon)

    def written_by_daemons(self, since: int = 0) -> list[Command]:
        """What daemons have written: all that tests have not."""
        return [each for each in self.double.commands(since) if each.pid != os.getpid()]

    def restart(self) -> None:
        """Ends the daemon and starts it again."""
        self.daemon.restart()
        self.client.wait_until_serving(30)

    def kill(self) -> None:
        """Kills the daemon and starts it again."""
        self.daemon.kill()
        self.daemon.start()
        self.client.wait_until_serving(30)

    def switch(self, *, enabled: bool) -> None:
        """Switches the policy in the configuration."""
        text = self.daemon.config_file.read_text()
        changed = re.sub(r"(\[policies\.resctrl\]\nenabled = )\w+", rf"\g<1>{str(enabled).lower()}", text)
        self.daemon.config_file.write_text(changed)
        self.daemon.signal(signal.SIGHUP)


_QUICK: Final = """
from runtimeproxy.cgroups import resctrl
from runtimeproxy.ledger import fields

fields.PROCESSES_VERIFY_S = resctrl.YOUNG_S = 1.0
"""
"""Run by the daemon's interpreter before all else."""


@contextmanager
def stand(
    folder: Path,
    variant: Variant | None = None,
    *,
    mode: str = "proxy",
    quick: bool = True,
    more_config: str = "",
) -> Iterator[Stand]:
    """A started daemon, with the policy on and no strategy.

    Args:
        folder: A new one; its path must be short.
        variant: Of the double.
        mode: Of the daemon.
        quick: Whether what is done every 10 s is done every second.
        more_config: Of the daemon.
    """
    need_controllers_of_v1("pids")
    sysfs, procfs = folder / "sys", folder / "proc"
    procfs.mkdir()
    (procfs / "filesystems").write_text("nodev\tsysfs\nnodev\tresctrl\n")
    variant = variant or Variant()
    with ExitStack() as stack:
        double = stack.enter_context(mounted(sysfs / "fs" / "resctrl", variant))
        nri = NriAdaptation(folder / "nri.sock") if mode == "nri" else None
        state = RuntimeState() if nri is None else NriRuntimeState(nri)
        runtime = stack.enter_context(FakeRuntime(folder / "runtime.sock", state=state))
        cgroup = f"/test-{uuid.uuid4().hex[:12]}"
        (DEFAULT_ROOT / "pids" / cgroup[1:]).mkdir()
        stack.callback((DEFAULT_ROOT / "pids" / cgroup[1:]).rmdir)
        config = (
            f'[node]\nsysfs_root = "{sysfs}"\nprocfs_root = "{procfs}"\n'
            f'kubelet_dir = "{folder / "kubelet"}"\n'
            f'[daemon]\nmode = "{mode}"\nlock = "{folder / "lock"}"\n'
            f'[metrics]\nlisten = "unix:{folder / "daemon" / "metrics.sock"}"\n'
            f'[nri]\nsocket = "{folder / "nri.sock"}"\n'
            f"[policies.resctrl]\nenabled = true\n{more_config}"
        )
        (folder / "daemon").mkdir()
        environment = {}
        if quick:
            (folder / "site").mkdir()
            (folder / "site" / "sitecustomize.py").write_text(_QUICK)
            environment["PYTHONPATH"] = str(folder / "site")
        options = ProxyOptions(str(runtime.socket_path), config=config, environment=environment)
        daemon = ProxyProcess(folder / "daemon", options)
        objects = NodeObjects(daemon.objects_folder)
        objects.node(capacity={"cpu": "4", "memory": "8Gi"})
        stack.enter_context(daemon)
        if nri is not None:
            nri.wait_for_plugins("50-koord-runtime-proxy", timeout_s=30)
        client = stack.enter_context(CriClient(daemon.socket if mode == "proxy" else runtime.socket_path))
        made = Stand(double, daemon, runtime, client, objects, cgroup)
        try:
            yield made
        finally:
            for pod in made.pods:
                pod.end()
