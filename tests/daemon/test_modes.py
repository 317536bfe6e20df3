"""The daemon's modes on one node: one at a time, each goes on with what the one before has left."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.signals import UPGRADE
from runtimeproxy.testing import (
    CgroupDriver,
    CgroupFiles,
    FakeRuntime,
    NriAdaptation,
    NriRuntimeState,
    PodCgroups,
)
from tests.daemon.conftest import PATIENT_NRI, Daemons
from tests.daemon.driving import Pod, batch_pod
from tests.daemon.kubelet import kubelet as running_kubelet
from tests.daemon.test_standalone import cgroup_of, explain, status_of
from tests.daemon.test_systemd_socket import PASSES, passed
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

__all__ = ["passed"]

MODES = ("proxy", "nri", "standalone")
WITHOUT_CALLS = ("nri", "standalone")
ORIGINAL = "77\n"
"""Of the weight of a pod: nobody but a test writes it."""
BOUND_US = "20000"
WAYS = {
    "proxy": api_pb2.ExplainedField.WAY_MESSAGE,
    "nri": api_pb2.ExplainedField.WAY_MESSAGE,
    "standalone": api_pb2.ExplainedField.WAY_FILE,
}
"""How a container gets what the CRI carries."""
LEASED = api_pb2.ClaimKey(
    target=api_pb2.ClaimTarget(qos_class="BestEffort"),
    field="cpu.cfs_quota_us",
    role=api_pb2.ExplainedClaim.ROLE_AT_MOST,
)


@pytest.fixture
def runtime(socket_folder: Path, cgroup_files: CgroupFiles) -> Iterator[FakeRuntime]:
    """One with NRI."""
    cgroups = PodCgroups(CgroupDriver.CGROUPFS, cgroup_files)
    state = NriRuntimeState(NriAdaptation(socket_folder / "nri.sock", PATIENT_NRI), cgroups)
    with FakeRuntime(socket_folder / "runtime.sock", state=state) as running:
        yield running


def configuration(folder: Path, mode: str) -> str:
    return (
        f'[daemon]\nmode = "{mode}"\nlock = "{folder}/front-end.lock"\n[nri]\nsocket = "{folder}/nri.sock"\n'
    )


def start(daemon: ProxyProcess, folder: Path, mode: str) -> None:
    """Starts a daemon in a mode; its records are those of the runtime then."""
    daemon.config_file.write_text(configuration(folder, mode))
    daemon.start()
    wait_until(lambda: status_of(daemon).records.is_recovered, "the records")
    if mode == "nri":
        wait_until(lambda: status_of(daemon).nri.is_connected, "the runtime")
    assert status_of(daemon).daemon.mode == mode


def wait_for_plugin(runtime: FakeRuntime) -> None:
    """Waits until the runtime asks the daemon, a moment after the daemon says that it is connected."""
    assert isinstance(runtime.state, NriRuntimeState)
    runtime.state.nri.wait_for_plugins("50-koord-runtime-proxy")


def run(daemon: ProxyProcess, runtime: FakeRuntime, files: CgroupFiles, mode: str, name: str) -> Pod:
    """A pod of the kubelet, whose endpoint is the proxy's socket or the runtime's."""
    if mode == "nri":
        wait_for_plugin(runtime)
    with CriClient(daemon.socket if mode == "proxy" else runtime.socket_path) as client:
        made = batch_pod(client, name)
        parent = made.config.linux.cgroup_parent
        files.make(parent)
        (files.folder(parent) / "cpu.weight").write_text(ORIGINAL)
        return made.run().create().start()


def bound(daemon: ProxyProcess) -> None:
    """Claims a bound as a QoS manager does."""
    claim = api_pb2.Claim(key=LEASED, value=BOUND_US)
    request = api_pb2.SetClaimsRequest(
        owner="cpu-suppress", session="one", sequence=1, is_whole=True, claims=[claim]
    )
    with CriClient(daemon.socket.parent / "admin" / "api.sock") as client:
        admin = api_pb2_grpc.AdminStub(client.channel)
        answer = admin.SetClaims(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
    assert (answer.outcome, len(answer.refused)) == (api_pb2.SetClaimsResponse.OUTCOME_TAKEN, 0)


def leased_values(daemon: ProxyProcess) -> list[str]:
    request = api_pb2.GetClaimsRequest(owner="cpu-suppress")
    with CriClient(daemon.socket.parent / "admin" / "api.sock") as client:
        admin = api_pb2_grpc.AdminStub(client.channel)
        answer = admin.GetClaims(request, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
    return [claim.value for owner in answer.owners for claim in owner.claims]


@pytest.mark.parametrize(
    "modes",
    [
        ("proxy", "standalone", "nri", "proxy"),
        pytest.param(("nri", "standalone", "proxy", "nri", "proxy"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_each_mode_goes_on_with_what_the_one_before_has_left(
    daemons: Daemons,
    runtime: FakeRuntime,
    cgroup_files: CgroupFiles,
    socket_folder: Path,
    modes: tuple[str, ...],
) -> None:
    daemon = daemons.prepare()
    class_quota = cgroup_files.folder("/kubepods/besteffort") / "cpu.max"
    made: list[Pod] = []
    ways: dict[str, int] = {}
    for number, mode in enumerate(modes):
        start(daemon, socket_folder, mode)
        status = status_of(daemon)
        assert (status.records.pods, status.records.containers) == (len(made), len(made))
        assert (status.records.recovered_pods, status.records.recovered_containers) == (0, 0)
        if made:
            assert leased_values(daemon) == [BOUND_US]
            # The last pod was starting when the mode before ended: its opening is given back now.
            wait_until(lambda: class_quota.read_text().split()[:1] == [BOUND_US], "the bound")
        for each in made:
            assert_values(daemon, cgroup_files, each, ways[each.container])
        made.append(run(daemon, runtime, cgroup_files, mode, f"pod-{number}"))
        wait_until(lambda: has_values(cgroup_files, made[-1]), f"the values in mode {mode}")
        ways[made[-1].container] = WAYS[mode]
        assert_values(daemon, cgroup_files, made[-1], WAYS[mode])
        if len(made) == 1:
            bound(daemon)
        assert daemon.terminate() == 0
    assert daemon.run("restore").returncode == 0
    for each in made:
        folder = cgroup_files.folder(each.config.linux.cgroup_parent)
        assert (folder / "cpu.weight").read_text() == ORIGINAL
        assert cgroup_files.read(cgroup_of(each), "memory.max") == "max"
    assert class_quota.read_text().split()[0] == "max"


def has_values(files: CgroupFiles, made: Pod) -> bool:
    parent = made.config.linux.cgroup_parent
    limits = {files.read(path, "memory.max").strip() for path in (parent, cgroup_of(made))}
    return limits == {str(128 * 1024 * 1024)} and files.read(parent, "cpu.weight") not in ("", ORIGINAL)


def assert_values(daemon: ProxyProcess, files: CgroupFiles, made: Pod, way: int) -> None:
    """The values stand, and the daemon knows whose they are, how they got there, and what was before."""
    assert has_values(files, made)

    def fields() -> list[dict[str, api_pb2.ExplainedField]]:
        targets = explain(daemon, made.config.metadata.uid).targets
        return [{field.name: field for field in target.fields} for target in targets[:2]]

    def are_noted() -> bool:
        # The daemon notes what it has written once it has written all files of a pod.
        limits = [each["memory.limit_in_bytes"] for each in fields() if "memory.limit_in_bytes" in each]
        return [each.way for each in limits] == [api_pb2.ExplainedField.WAY_FILE, way]

    wait_until(are_noted, "what the daemon knows of the values")
    pod, container = fields()
    assert pod["cpu.shares"].original == ORIGINAL
    for field in (pod["cpu.shares"], pod["memory.limit_in_bytes"], container["memory.limit_in_bytes"]):
        assert [claim.owner for claim in field.claims if claim.role != LEASED.role] == ["batch-resource"]
        assert (field.problem, field.is_different) == ("", False)
    assert not container["memory.limit_in_bytes"].is_request_unknown
    assert container["memory.limit_in_bytes"].way == way
    assert pod["memory.limit_in_bytes"].way == api_pb2.ExplainedField.WAY_FILE


@pytest.mark.parametrize("mode", ["proxy", "nri"])
def test_what_another_mode_has_created_is_not_taken_for_the_kubelets(
    daemons: Daemons, runtime: FakeRuntime, cgroup_files: CgroupFiles, socket_folder: Path, mode: str
) -> None:
    """Without records: what the runtime has was in its messages, and nobody knows what was asked for."""
    daemon = daemons.prepare()
    start(daemon, socket_folder, "standalone")
    assert daemon.terminate() == 0
    start(daemon, socket_folder, mode)
    made = run(daemon, runtime, cgroup_files, mode, "made")
    assert daemon.terminate() == 0
    (daemon.state_folder / "records.db").write_text("no database " * 1000)
    start(daemon, socket_folder, "standalone")

    def limits() -> list[api_pb2.ExplainedField]:
        # The container is found first, and evaluated then.
        fields = explain(daemon, made.config.metadata.uid).targets[1].fields
        return [field for field in fields if field.name == "memory.limit_in_bytes"]

    (limit,) = wait_until(limits, "the limit")
    assert limit.is_request_unknown
    assert status_of(daemon).records.recovered_containers == 1


@pytest.mark.parametrize(
    ("mode", "flag"),
    [("nri", "--container-runtime-endpoint"), ("standalone", "--image-service-endpoint")],
    ids=WITHOUT_CALLS,
)
def test_a_kubelet_of_this_socket_would_have_no_runtime(
    daemons: Daemons, socket_folder: Path, tmp_path: Path, mode: str, flag: str
) -> None:
    daemon = daemons.prepare(configuration(socket_folder, mode))
    with running_kubelet(tmp_path, f"{flag}=unix://{daemon.socket}") as pid:
        daemon.spawn()
        assert daemon.wait() == 2
        assert not daemon.socket.exists()
        (error,) = (each["message"] for each in daemon.log_records if each["level"] == "error")
        place, runtime = f"the running kubelet (process {pid})", daemon.options.runtime_endpoint
        assert error == (
            f"cannot start: configuration: daemon.mode: a kubelet still uses the proxy's socket "
            f"({place}, {flag}): {place}: {flag} is unix://{daemon.socket}, the proxy's socket: without the "
            f"proxy the kubelet has no runtime; set {flag}=unix://{runtime} and restart the kubelet"
        )
        # The mode of before goes on where it was.
        start(daemon, socket_folder, "proxy")
        assert daemon.terminate() == 0
    start(daemon, socket_folder, mode)


@pytest.mark.parametrize("mode", WITHOUT_CALLS)
def test_a_kubelet_of_a_socket_from_systemd(
    daemons: Daemons, passed: socket.socket, socket_folder: Path, tmp_path: Path, mode: str
) -> None:
    """Its path is not that of the configuration."""
    descriptor = passed.fileno()
    wrapper = (sys.executable, "-c", PASSES, str(descriptor))
    daemon = daemons.prepare(configuration(socket_folder, mode), wrapper=wrapper, inherited=(descriptor,))
    with running_kubelet(tmp_path, f"--container-runtime-endpoint=unix://{passed.getsockname()}"):
        daemon.spawn()
        assert daemon.wait() == 2
    assert "a kubelet still uses" in str(daemon.log)
    assert Path(passed.getsockname()).exists()


@pytest.mark.parametrize(
    "mode", ["proxy", *(pytest.param(each, marks=pytest.mark.slow) for each in WITHOUT_CALLS)]
)
def test_two_front_ends_do_not_run_at_once(daemons: Daemons, socket_folder: Path, mode: str) -> None:
    daemon = daemons.prepare()
    start(daemon, socket_folder, mode)
    others = [daemons.prepare(configuration(socket_folder, each)) for each in MODES]
    if mode == "proxy":
        # The lock of their socket keeps proxies apart.
        others = others[1:]
    for each in others:
        each.spawn()
        assert each.wait() == 1
        assert "front-end.lock: another front end of this host holds the lock" in str(each.log)
        assert not each.socket.exists()
    daemon.kill()
    # The kernel drops the lock with the process.
    others[-1].start()


@pytest.mark.parametrize("mode", WITHOUT_CALLS)
def test_an_upgrade_is_no_way_out_of_the_proxy(daemons: Daemons, socket_folder: Path, mode: str) -> None:
    daemon = daemons.prepare()
    start(daemon, socket_folder, "proxy")
    daemon.config_file.write_text(configuration(socket_folder, mode))
    os.kill(daemon.pid, UPGRADE)
    wait_until(lambda: status_of(daemon).upgrade.error != "", "the refusal")
    status = status_of(daemon)
    assert "another front end of this host holds the lock" in status.upgrade.error
    assert (status.daemon.mode, status.daemon.pid) == ("proxy", daemon.pid)


@pytest.mark.parametrize("mode", WITHOUT_CALLS)
def test_a_reload_does_not_change_the_mode(daemons: Daemons, socket_folder: Path, mode: str) -> None:
    daemon = daemons.prepare()
    start(daemon, socket_folder, "proxy")
    daemon.config_file.write_text(configuration(socket_folder, mode))
    daemon.signal(signal.SIGHUP)
    wait_until(lambda: "daemon.mode" in status_of(daemon).last_reload.need_restart, "the reload")
    status = status_of(daemon)
    assert (status.daemon.mode, "Restart to apply daemon.mode." in status.problems) == ("proxy", True)
