"""Strategies in the whole daemon, with plain files as cgroups: what counts, and what bad input does to it.

Bad input: path, key and reason in the log, the values of running pods stay, and calls are answered meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing import CgroupFiles, FakeRuntime
from runtimeproxy.testing.builders import (
    KubeletQos,
    container_config,
    create_container_request,
    pod_sandbox_config,
)
from tests.daemon.conftest import Daemons
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node_objects import NodeObjects, config_map, kubelet_files, strategy_policies
from tests.lab.programs import missing
from tests.lab.proxy_process import ProxyProcess

pytestmark = pytest.mark.slow

QUOTA_US = 100_000
GOOD = {
    "cpu-burst-config": {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 20}},
    "resource-qos-config": {
        "clusterStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}}
    },
    "resource-threshold-config": {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60}},
    "cpu-normalization-config": {"enable": True, "defaultRatio": 1.25},
    "system-config": {"clusterStrategy": {"minFreeKbytesFactor": 100}},
    "host-application-config": {"applications": []},
    "colocation-config": {"enable": True},
}
BURST_US = QUOTA_US * 20 // 100
REQUEST_BYTES = 64 * 1024 * 1024
VALUES = {
    "cpu.max": "80000 100000",
    "cpu.max.burst": str(BURST_US),
    "memory.min": str(REQUEST_BYTES // 2),
}
"""Of the container, from `GOOD`."""


@dataclass
class Site:
    """A daemon with strategies, and one running container."""

    daemon: ProxyProcess
    objects: NodeObjects
    files: CgroupFiles
    container: str = ""

    @property
    def pod(self) -> str:
        """The path of the pod's own cgroup."""
        return self.container.rpartition("/")[0]

    def values(self) -> dict[str, str]:
        """What the container's files hold; the kernel shows a quota with its period."""
        found = {name: self.files.read(self.container, name) for name in VALUES}
        if " " not in found["cpu.max"]:
            found["cpu.max"] += " 100000"
        return found

    def wait_for(self, values: Mapping[str, str], timeout_s: float = 60.0) -> None:
        """Waits until the container's files hold these values; says what they hold otherwise."""
        try:
            wait_until(lambda: self.values() == values, "values", timeout_s)
        except TimeoutError:
            print("\n".join(self.daemon.log[-30:]))
            raise AssertionError(f"{self.values()}, not {values}") from None

    def log_has(self, *words: str, after: int = 0) -> bool:
        """Whether a record of the log, not one of the first `after`, has all these words."""
        records = [json.dumps(each, ensure_ascii=False) for each in self.daemon.log_records[after:]]
        return any(all(word in record for word in words) for record in records)


@pytest.fixture
def site(daemons: Daemons, cgroup_files: CgroupFiles, socket_folder: Path) -> Site:
    """The daemon; the strategies are good."""
    cgroup_files.make("/kubepods/burstable")
    cgroup_files.make("/kubepods/besteffort")
    kubelet = socket_folder / "kubelet"
    kubelet_files(kubelet, {})
    daemon = daemons.prepare(f'[node]\nkubelet_dir = "{kubelet}"\n{strategy_policies(enabled=True)}')
    objects = NodeObjects(daemon.objects_folder)
    objects.node(capacity={"cpu": "4", "memory": "8Gi"})
    objects.topology({})
    objects.strategies(GOOD)
    daemon.start()
    site = Site(daemon, objects, cgroup_files)
    pod = pod_sandbox_config("web", qos="LS", kubelet_qos=KubeletQos.BURSTABLE)
    kubelet_files(kubelet, {(pod.metadata.uid, "main"): {"memory": str(REQUEST_BYTES)}})
    site.container = run(daemon, cgroup_files, pod)
    site.wait_for(VALUES)
    return site


def run(daemon: ProxyProcess, files: CgroupFiles, pod: api_pb2.PodSandboxConfig) -> str:
    """Runs a pod with one container of one CPU; returns the path of the container's cgroup."""
    files.make(pod.linux.cgroup_parent)
    resources = api_pb2.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=QUOTA_US, cpu_shares=512, memory_limit_in_bytes=2 * REQUEST_BYTES
    )
    pod.linux.resources.CopyFrom(resources)
    config = container_config("main", pod=pod, resources=resources)
    with CriClient(daemon.socket) as client:
        made = client.runtime.RunPodSandbox(api_pb2.RunPodSandboxRequest(config=pod), timeout=CALL_TIMEOUT_S)
        create = create_container_request(made.pod_sandbox_id, config, pod)
        container = client.runtime.CreateContainer(create, timeout=CALL_TIMEOUT_S).container_id
        start = api_pb2.StartContainerRequest(container_id=container)
        client.runtime.StartContainer(start, timeout=CALL_TIMEOUT_S)
    return f"{pod.linux.cgroup_parent}/{container}"


@pytest.fixture
def calls(site: Site) -> Iterator[None]:
    """Calls one after the other while the test runs; none fails, and the daemon is the same at the end."""
    over = threading.Event()
    pid, failed, done = site.daemon.pid, [], 0

    def call() -> None:
        nonlocal done
        with CriClient(site.daemon.socket) as client:
            while not over.wait(0.01):
                try:
                    client.runtime.Version(api_pb2.VersionRequest(), timeout=5)
                    done += 1
                except Exception as error:  # noqa: BLE001 - the test says so
                    failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    yield
    over.set()
    thread.join(60)
    assert not failed
    assert done
    assert site.daemon.alive()
    assert site.daemon.pid == pid


def strategies_with(key: str, value: object) -> str:
    """The good ConfigMap with another value of one key."""
    return config_map({**GOOD, key: value})


WRONG: Mapping[str, tuple[object, object]] = {
    "a text": ("gibberish", "gibberish"),
    "a list": ([1, 2], [1, 2]),
    "a number": (7, 7),
    "another strategy": ({"clusterStrategy": [1]}, {"enable": [1], "applications": {"name": "a"}}),
    "other strategies": ({"nodeStrategies": {"name": "a"}}, {"nodeConfigs": {"name": "a"}}),
}
"""A value for keys with strategies below names, and one for `INLINE`."""
INLINE = ("cpu-normalization-config", "host-application-config", "colocation-config")


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("wrong", WRONG)
def test_every_key_of_a_wrong_type(wrong: str, site: Site) -> None:
    begun = len(site.daemon.log_records)
    site.objects.strategies({key: WRONG[wrong][key in INLINE] for key in GOOD})
    for key in GOOD:
        wait_for_log(site, begun, "slo-controller-config.yaml", key)
    assert site.values() == VALUES
    back_to_good(site)


def wait_for_log(site: Site, begun: int, *words: str) -> None:
    """Waits for a record of the log, not one of the first `begun`, that has all these words."""
    wait_until(lambda: site.log_has(*words, after=begun), f"a line of the log with {words}")


def back_to_good(site: Site) -> None:
    """A good change after a bad one counts."""
    other = {**GOOD, "cpu-burst-config": {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 30}}}
    site.objects.strategies(other)
    wanted = {**VALUES, "cpu.max.burst": str(QUOTA_US * 30 // 100)}
    site.wait_for(wanted)


OUT_OF_RANGE = {
    "cpu-burst-config": {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 10_001}},
    "resource-qos-config": {
        "clusterStrategy": {"lsClass": {"memoryQOS": {"enable": True, "lowLimitPercent": 101}}}
    },
    "resource-threshold-config": {"clusterStrategy": {"cpuSuppressThresholdPercent": -1}},
    "cpu-normalization-config": {"enable": True, "defaultRatio": 0.5},
    "system-config": {"clusterStrategy": {"watermarkScaleFactor": 401}},
    "colocation-config": {"enable": True, "cpuReclaimThresholdPercent": -1},
}
FIELDS = {
    "cpu-burst-config": "cpuBurstPercent",
    "resource-qos-config": "lowLimitPercent",
    "resource-threshold-config": "cpuSuppressThresholdPercent",
    "cpu-normalization-config": "defaultRatio",
    "system-config": "watermarkScaleFactor",
    "colocation-config": "cpuReclaimThresholdPercent",
}


@pytest.mark.usefixtures("calls")
def test_a_field_out_of_range_is_named(site: Site) -> None:
    begun = len(site.daemon.log_records)
    site.objects.strategies({**GOOD, **OUT_OF_RANGE})
    for key, field in FIELDS.items():
        wait_for_log(site, begun, "slo-controller-config.yaml", key, field)
    assert site.values() == VALUES
    back_to_good(site)


@pytest.mark.usefixtures("calls")
def test_one_broken_key_does_not_hold_back_the_others(site: Site) -> None:
    changed = {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 30}}
    site.objects.write(
        "slo-controller-config.yaml",
        config_map({**GOOD, "cpu-burst-config": changed, "resource-qos-config": "{"}),
    )
    wanted = {**VALUES, "cpu.max.burst": str(QUOTA_US * 30 // 100)}
    site.wait_for(wanted)


def bomb() -> str:
    """A billion laughs."""
    lines = ["a0: &a0 [" + ", ".join(["lol"] * 9) + "]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, 10)]
    return "apiVersion: v1\nkind: ConfigMap\n" + "\n".join(lines) + "\n"


BAD_FILES: Mapping[str, Callable[[], str]] = {
    "aliases": bomb,
    "deep": lambda: "[" * 100_000,
    "python": lambda: "!!python/object/apply:os.system ['true']\n",
    "huge": lambda: config_map({**GOOD, "more": "x" * (64 * 1024 * 1024)}),
    "tabs": lambda: "apiVersion:\tv1\n\t- x: [",
    "binary": lambda: "\x00\x01\x02",
}


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("bad", BAD_FILES)
def test_a_file_that_cannot_be_read(bad: str, site: Site) -> None:
    begun = len(site.daemon.log_records)
    site.objects.write("slo-controller-config.yaml", BAD_FILES[bad]())
    wait_for_log(site, begun, "slo-controller-config.yaml")
    assert site.values() == VALUES
    back_to_good(site)


@pytest.mark.usefixtures("calls")
def test_a_file_half_written(site: Site) -> None:
    """What an editor or `kubectl get > FILE` shows for a moment: a part of the text, cut anywhere."""
    file = site.objects.folder / "slo-controller-config.yaml"
    text = config_map(GOOD)
    seen = []
    begun = len(site.daemon.log_records)
    with file.open("r+") as half:
        for part in range(1, 8):
            half.truncate(0)
            half.seek(0)
            half.write(text[: len(text) * part // 8])
            half.flush()
            # Long enough to be looked at; what matters is that nothing follows from it.
            time.sleep(0.4)
            seen.append(site.values())
    # It was looked at while it was cut.
    wait_for_log(site, begun, "slo-controller-config.yaml")
    assert all(each == VALUES for each in seen), seen
    back_to_good(site)


LIES = {
    "CPUs that do not exist": {
        "node.koordinator.sh/cpu-shared-pools": '[{"socket": 0, "node": 0, "cpuset": "5000-5003"}]'
    },
    "no list": {"node.koordinator.sh/cpu-shared-pools": '{"socket": 0}'},
    "no JSON": {"node.koordinator.sh/cpu-shared-pools": "[{"},
    "a list of CPUs that is none": {
        "node.koordinator.sh/cpu-shared-pools": '[{"socket": 0, "node": 0, "cpuset": "0-"}]'
    },
}


@pytest.fixture
def online(daemons: Daemons, socket_folder: Path) -> Path:
    """A sysfs with four CPUs."""
    sysfs = socket_folder / "sys"
    cpu = sysfs / "devices" / "system" / "cpu"
    cpu.mkdir(parents=True)
    for name in ("online", "possible", "present"):
        (cpu / name).write_text("0-3\n")
    node = sysfs / "devices" / "system" / "node"
    node.mkdir()
    (node / "online").write_text("0\n")
    for number in range(4):
        topology = cpu / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{number}\n")
        (topology / "physical_package_id").write_text("0\n")
    daemons.environment["KOORD_RUNTIMEPROXY_NODE_SYSFS_ROOT"] = str(sysfs)
    return sysfs


@pytest.mark.usefixtures("online", "calls")
@pytest.mark.parametrize("lie", LIES)
def test_a_topology_that_lies(lie: str, online: Path, site: Site) -> None:
    begun = len(site.daemon.log_records)
    site.objects.topology(LIES[lie])
    wait_for_log(site, begun, "topology.yaml", "cpu-shared-pools")
    assert site.values() == VALUES
    assert site.files.read(site.container, "cpuset.cpus") == ""


@pytest.mark.usefixtures("calls")
def test_an_annotation_of_a_megabyte(site: Site, runtime: FakeRuntime) -> None:
    """A pod's own annotation is bad: the pod is made all the same, with the values of the class."""
    for number, text in enumerate(("x" * 2**20, json.dumps({"cpuBurstPercent": [1] * 2**18}))):
        pod = pod_sandbox_config(
            f"large-{number}",
            qos="LS",
            kubelet_qos=KubeletQos.BURSTABLE,
            annotations={"koordinator.sh/cpuBurst": text, "koordinator.sh/memoryQOS": text},
        )
        container = run(site.daemon, site.files, pod)
        has_burst = partial(lambda path: site.files.read(path, "cpu.max.burst") == str(BURST_US), container)
        wait_until(has_burst, "the class's burst")
    assert not any(len(line) > 100_000 for line in site.daemon.log)


def test_a_withdrawn_file_counts_at_once_when_it_is_there(site: Site) -> None:
    since_s = site.objects.strategies({})
    wanted: dict[str, Any] = {"cpu.max": "100000 100000", "cpu.max.burst": "0", "memory.min": "0"}
    site.wait_for(wanted)
    print(f"after {time.monotonic() - since_s:.2f} s")


def test_a_missing_file_is_no_withdrawal_at_first(site: Site) -> None:
    """A ConfigMap's `..data` is swapped, an editor writes a new file."""
    begun = len(site.daemon.log_records)
    (site.objects.folder / "slo-controller-config.yaml").unlink()
    # What would follow from a change that is seen: another file changes at the same time, and counts.
    site.objects.node({"node.koordinator.sh/cpu-normalization-enabled": "false"}, {}, {"memory": "8Gi"})
    wanted = {**VALUES, "cpu.max": "100000 100000"}
    site.wait_for(wanted)
    assert begun <= len(site.daemon.log_records)


def test_restore_gives_everything_back(site: Site) -> None:
    """As before a downgrade: the daemon has ended, and its strategies are still there."""
    site.daemon.terminate()
    done = site.daemon.run("restore")
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.values() == {"cpu.max": "100000 100000", "cpu.max.burst": "0", "memory.min": "0"}
    assert site.files.read(site.pod, "cpu.max.burst") == "0"
    assert site.daemon.run("restore").stdout == "nothing to restore\n"


REBOOTED = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


@pytest.mark.parametrize("rebooted", [False, True])
def test_after_a_reboot_nothing_of_before_counts(
    rebooted: bool, site: Site, daemons: Daemons, socket_folder: Path
) -> None:
    """The pod's file holds something else than the daemon has written: what the kubelet wrote after a boot.

    In the same boot it is another program's, and the file's text of before the first write counts still.
    """
    site.daemon.kill()
    file = site.files.folder(site.pod) / "cpu.max.burst"
    assert file.read_text() == f"{BURST_US}\n"
    file.write_text("1000\n")
    boot_id = socket_folder / "boot_id"
    boot_id.write_text("5e1b3c1e-0000-4000-8000-000000000000\n")
    wrapper = ("unshare", "--mount", "sh", "-c", REBOOTED, str(boot_id)) if rebooted else ()
    if rebooted and subprocess.run((*wrapper, "true"), check=False, capture_output=True).returncode:
        missing("boot_id cannot be replaced: that needs root")
    daemon = ProxyProcess(
        site.daemon.folder, replace(site.daemon.options, wrapper=wrapper), notify_name="notify-2.sock"
    )
    try:
        daemon.start()
        wait_until(lambda: file.read_text() == f"{BURST_US}\n", "the strategy counts again")
        site.objects.strategies({})
        original = "1000\n" if rebooted else "0\n"
        wait_until(lambda: file.read_text() == original, f"{original!r}, not {file.read_text()!r}")
    finally:
        print("\n".join(daemon.log[-30:]))
        daemon.close()
