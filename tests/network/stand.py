"""The daemon in the node's network namespace, before a fake runtime that tells its pods' real addresses."""

from __future__ import annotations

import itertools
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from cri_api.runtime.v1 import api_pb2
from cri_api.runtimeproxy.v1 import api_pb2 as own_pb2
from cri_api.runtimeproxy.v1 import api_pb2_grpc as own_grpc
from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    NriAdaptation,
    NriRuntimeState,
    PodCgroups,
    RuntimeState,
)
from runtimeproxy.testing.builders import pod_sandbox_config
from tests.daemon.driving import Pod
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects
from tests.lab.programs import debian_program, missing, run
from tests.lab.proxy_process import ProxyOptions, ProxyProcess
from tests.network.namespaces import Namespace, NodeNetwork, PodNamespace
from tests.network.rules import TABLE, Contents, Rules, contents_of, rules_of

_KERNEL_NEEDS: Final = {
    "virtual Ethernet": "ip link add eth0 type veth peer name eth1",
    "bridges": "ip link add cni0 type bridge",
    "HTB": "tc qdisc add dev eth0 root htb",
    "nftables": "nft add table inet probe",
    "chains in nftables": "nft add chain inet probe probe",
    "limits in nftables": "nft add rule inet probe probe limit rate over 1 mbytes/second drop",
}
TOTAL_MBIT: Final = 60
GUARANTEES_MBIT: Final = {"SYSTEM": 15, "LS": 30, "BE": 15}
CEILINGS_MBIT: Final = {"SYSTEM": TOTAL_MBIT, "LS": 50, "BE": 20}
QOS_CLASSES: Final = ("LS", "BE", "LSR", "SYSTEM")
LIMITS: Final = "koordinator.sh/networkQOS"
"""A pod's annotation. Source: Koordinator apis/extension/resource.go, AnnotationNetworkQOS."""
_CONFIG: Final = """
[policies.network-qos]
enabled = true
"""


def addresses_of(number: int) -> tuple[str, str]:
    """The addresses of a pod without a namespace."""
    return f"10.88.200.{number}", f"2001:db8:88::c8{number:02x}"


def strategies(total_mbit: int = TOTAL_MBIT) -> Mapping[str, object]:
    """The ConfigMap's keys for `GUARANTEES_MBIT` and `CEILINGS_MBIT`."""

    def block(qos: str) -> Mapping[str, object]:
        request, limit = f"{GUARANTEES_MBIT[qos]}M", f"{CEILINGS_MBIT[qos]}M"
        values = {
            "egressRequest": request,
            "egressLimit": limit,
            "ingressRequest": request,
            "ingressLimit": limit,
        }
        return {"networkQOS": {"enable": True, **values}}

    return {
        "resource-qos-config": {"clusterStrategy": {"lsClass": block("LS"), "beClass": block("BE")}},
        "system-config": {"clusterStrategy": {"totalNetworkBandwidth": f"{total_mbit}M"}},
    }


@dataclass(frozen=True)
class RunningPod:
    """A pod with a namespace of its own."""

    pod: Pod
    network: PodNamespace


def need_network_namespaces() -> None:
    """Skips the test where it cannot make network namespaces, or lacks `tc` and `nft`; on CI it fails.

    What only the kernel lacks skips it everywhere, with its reason: it cannot be installed.
    """
    if os.geteuid() != 0:
        missing("network namespaces need root")
    for name in ("ip", "tc", "nft", "nsenter", "unshare"):
        debian_program(name)
    with Namespace("probe") as probe:
        for what, command in _KERNEL_NEEDS.items():
            ended = run([*probe.wrapper, *command.split()])
            if ended.returncode:
                pytest.skip(f"this kernel has no {what}: {ended.stderr.strip()}")


def hidden(program: Path) -> tuple[str, ...]:
    """Words before a command that does not find this program: its mounts have another file there."""
    return ("unshare", "--mount", "sh", "-c", 'mount --bind /dev/null "$0" && exec "$@"', str(program))


class ComparingProcess(ProxyProcess):
    """A daemon that soon sees what other programs have changed."""

    def command(self) -> list[str]:
        """Its command line, without the wrapper."""
        return [
            "tests.network.comparing_daemon" if word == "runtimeproxy" else word for word in super().command()
        ]


class Stand:
    """A node with runtime, daemon and client; `start` starts the daemon.

    Args:
        folder: with a path short enough for sockets.
        node: the namespace in which the daemon runs.
        network: the whole network, for pods with traffic.
        without: a program that the daemon does not find.
        wrapper: more words before the daemon's command.
        compares_often: whether the daemon compares every 2 s; usually every minute.
        mode: of the daemon.
        config: more of its configuration.
    """

    def __init__(
        self,
        folder: Path,
        node: Namespace,
        network: NodeNetwork | None = None,
        *,
        without: str = "",
        wrapper: tuple[str, ...] = (),
        compares_often: bool = False,
        mode: str = "proxy",
        config: str = "",
    ) -> None:
        self.folder = folder
        self.node = node
        self._without = without
        self._mode = mode
        self.network = network
        self._files = CgroupFiles(folder / "cgroup", version=2)
        for qos in ("burstable", "besteffort"):
            self._files.make(f"/kubepods/{qos}")
        cgroups = PodCgroups(CgroupDriver.CGROUPFS, self._files)
        self.nri = NriAdaptation(folder / "nri.sock") if mode == "nri" else None
        state = RuntimeState(cgroups) if self.nri is None else NriRuntimeState(self.nri, cgroups)
        self.runtime = FakeRuntime(folder / "runtime.sock", state=state)
        self._gate, self._called = folder / "gate", folder / "called"
        environment = {
            "KOORD_RUNTIMEPROXY_CGROUPS_ROOT": str(folder / "cgroup"),
            "PATH": f"{self._gated_programs(folder / 'bin')}:{os.environ['PATH']}",
        }
        wrapper = (*node.wrapper, *(hidden(debian_program(without)) if without else ()), *wrapper)
        options = ProxyOptions(
            str(folder / "runtime.sock"),
            config=f'{_CONFIG}[daemon]\nmode = "{mode}"\nlock = "{folder / "front-end.lock"}"\n'
            f'[nri]\nsocket = "{folder / "nri.sock"}"\n{config}',
            environment=environment,
            wrapper=wrapper,
        )
        self.daemon = (ComparingProcess if compares_often else ProxyProcess)(folder, options)
        self.objects = NodeObjects(self.daemon.objects_folder)
        self._numbers = itertools.count(1)
        self._stack = ExitStack()

    def configure(self, total_mbit: int = TOTAL_MBIT) -> None:
        """Writes the strategies."""
        self.objects.strategies(strategies(total_mbit))

    def start(self) -> None:
        """Configures and starts the daemon, and waits until the uplink has its classes."""
        self.configure()
        self.start_daemon()
        self.wait_for_classes()

    def start_daemon(self) -> None:
        """Starts the daemon as it is configured, and waits until it is told of pods."""
        self.daemon.start()
        if self.nri is not None:
            self.nri.wait_for_plugins("50-koord-runtime-proxy", timeout_s=30)

    def wait_for_classes(self, timeout_s: float = 30.0) -> Rules:
        """Waits until the uplink has HTB with its classes, and nft the table, which comes last."""

        def found() -> Rules | None:
            rules = self.rules()
            has_classes = rules.root["kind"] == "htb" and rules.class_count >= 4
            return rules if has_classes and ("inet", TABLE) in rules.tables else None

        return wait_until(found, "classes at the uplink", timeout_s)

    def wait_for_off(self) -> None:
        """Waits until nothing of ours is left."""

        def is_off() -> bool:
            rules = self.rules()
            return rules.root["handle"] == "0:" and ("inet", TABLE) not in rules.tables

        wait_until(is_off, "neither classes nor a table")

    def rules(self) -> Rules:
        """What the node's namespace has."""
        return rules_of(self.node)

    def contents(self) -> Contents:
        """What the rules of the node do."""
        return contents_of(self.rules())

    @contextmanager
    def pod(self, qos: str, limits: Mapping[str, str] | None = None, uid: str = "") -> Iterator[RunningPod]:
        """A pod in a namespace of its own, known to the daemon and to nft."""
        assert self.network is not None
        number = next(self._numbers)
        uid = uid or str(uuid.uuid4())
        annotations = {LIMITS: json.dumps(dict(limits))} if limits else {}
        config = pod_sandbox_config(f"pod{number}", uid=uid, qos=qos, annotations=annotations)
        with self.network.pod(number) as network:
            addresses = network.addresses
            self.runtime.state.pod_ips[uid] = (addresses.ipv4, addresses.ipv6)
            pod = self.run(config)
            self.wait_for_words(addresses.ipv4, addresses.ipv6)
            try:
                yield RunningPod(pod, network)
            finally:
                self.remove(pod)

    def addressed_pod(self, number: int) -> Pod:
        """Runs a pod without a namespace, whose addresses the runtime tells. Every third one has limits."""
        limits = {"egressLimit": "5M", "ingressLimit": "6M"}
        annotations = {LIMITS: json.dumps(limits)} if number % 3 == 0 else {}
        qos, uid = QOS_CLASSES[number % len(QOS_CLASSES)], f"addressed-{number}"
        config = pod_sandbox_config(f"addressed{number}", uid=uid, qos=qos, annotations=annotations)
        self.runtime.state.pod_ips[uid] = addresses_of(number)
        return self.run(config)

    def wait_for_addressed_pods(self, numbers: Iterable[int]) -> None:
        """Waits until nft has the addresses of these pods."""
        self.wait_for_words(*(address for number in numbers for address in addresses_of(number)))

    def run(self, config: api_pb2.PodSandboxConfig) -> Pod:
        """Runs a pod as the kubelet does, which makes its cgroup first."""
        self._files.make(config.linux.cgroup_parent)
        return Pod(self.client, config).run().create().start()

    def remove(self, pod: Pod) -> None:
        """Stops and removes a pod, and its cgroup."""
        self.client.runtime.StopPodSandbox(
            api_pb2.StopPodSandboxRequest(pod_sandbox_id=pod.id), timeout=CALL_TIMEOUT_S
        )
        self.client.runtime.RemovePodSandbox(
            api_pb2.RemovePodSandboxRequest(pod_sandbox_id=pod.id), timeout=CALL_TIMEOUT_S
        )
        self._files.remove(pod.config.linux.cgroup_parent)

    def wait_for_words(self, *words: str) -> None:
        """Waits until nft has these words, such as addresses."""

        def all_there() -> bool:
            return not set(words).difference(re.split(r"[\s,]+", self.node.run("nft", "list", "ruleset")))

        wait_until(all_there, f"{words} in nft")

    def wait_for_problem(self, word: str) -> str:
        """Waits until the status has this word, and returns the whole status."""

        def found() -> str | None:
            text = str(self.status())
            return text if word in text and "network" in text else None

        return wait_until(found, f"{word} in the status")

    def restore(self) -> str:
        """Runs `restore` inside the node's namespace and returns its output, whatever its exit code."""
        program, option, module, *flags = self.daemon.command()
        ended = run(
            [*self.daemon.wrapper, program, option, module, "restore", *flags],
            environment=self.daemon.environment(),
            timeout_s=60,
        )
        return ended.stdout + ended.stderr

    def status(self) -> own_pb2.GetStatusResponse:
        """The daemon's status."""
        return self._api.GetStatus(own_pb2.GetStatusRequest(), timeout=CALL_TIMEOUT_S)

    def explain(self, pod: Pod) -> own_pb2.ExplainResponse:
        """Why a pod has its values."""
        return self._api.Explain(own_pb2.ExplainRequest(pod=pod.id), timeout=CALL_TIMEOUT_S)

    def audit(self) -> list[own_pb2.AuditEntry]:
        """What the daemon remembers of what was done."""
        answers = self._api.WatchAudit(own_pb2.WatchAuditRequest(), timeout=CALL_TIMEOUT_S)
        return [entry for answer in answers for entry in answer.entries]

    @contextmanager
    def blocked_programs(self) -> Iterator[Callable[[], object]]:
        """The daemon's `tc` and `nft` wait until the end of the block; the function waits for a call."""
        self._called.unlink(missing_ok=True)
        self._gate.touch()
        try:
            yield lambda: wait_until(self._called.exists, "a call of tc or nft")
        finally:
            self._gate.unlink()

    @property
    def _api(self) -> own_grpc.RuntimeProxyStub:
        return own_grpc.RuntimeProxyStub(self._daemon_client.channel)

    def _gated_programs(self, folder: Path) -> Path:
        folder.mkdir()
        for name in ("tc", "nft"):
            program = folder / name
            lines = (
                "#!/bin/sh",
                f"while [ -e {self._gate} ]; do : >{self._called}; sleep 0.05; done",
                f'exec {debian_program(name)} "$@"',
            )
            if name != self._without:
                program.write_text("\n".join(lines) + "\n")
                program.chmod(0o755)
        return folder

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.runtime)
            stack.callback(self.daemon.close)
            self._daemon_client = stack.enter_context(CriClient(self.daemon.socket))
            kubelets = self.daemon.socket if self._mode == "proxy" else self.runtime.socket_path
            self.client = stack.enter_context(CriClient(kubelets))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (self.folder / "proxy.log").exists():
            print("\n".join(self.daemon.log[-100:]))
        self._stack.close()
