"""The demo: the main job on the built-in fake runtime, or on the runtime that it finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.demo.main import DemoError, _driven, _report, _rows
from runtimeproxy.demo.pods import DEMO_PODS, kubelet_resources
from runtimeproxy.demo.runtime import channel, find_runtime
from runtimeproxy.testing import CallError, CgroupDriver, FakeRuntime
from runtimeproxy.testing.builders import KubeletQos
from tests.lab.deadline import quickest_s, time_s
from tests.lab.programs import REPOSITORY

LONGEST_S = 10.0


def demo_command(runtime: str) -> list[str]:
    return [sys.executable, "-m", "runtimeproxy", "demo", "--remote-runtime-service-endpoint", runtime]


def run_demo(runtime: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        demo_command(runtime),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_it_shows_what_changes(fake_runtime: FakeRuntime) -> None:
    fake_runtime.state.images.add("busybox:latest")
    done = run_demo(str(fake_runtime.socket_path))
    assert (done.returncode, done.stderr) == (0, "")
    first, _, header, *rows, _, last = done.stdout.splitlines()
    assert first == f"runtime: fake-runtime {fake_runtime_version()} on {fake_runtime.socket_path}"
    assert header.split() == ["container", "field", "from", "to", "policy", "reason"]
    shown = {tuple(row.split()[:5]) for row in rows}
    assert ("spark/main", "resources.cpu_shares", "2", "512", "batch-resource") in shown
    assert ("trading/main", "resources.cpu_quota_us", "100000", "-1", "cpuset") in shown
    assert ("inference/main", "env[NVIDIA_VISIBLE_DEVICES]", "-", "<set>", "gpu-env") in shown
    assert last == f"{len(DEMO_PODS)} pods ran through the proxy; untouched: logging, web"
    assert not fake_runtime.state.sandboxes


def fake_runtime_version() -> str:
    from runtimeproxy.testing.services import RUNTIME_VERSION

    return RUNTIME_VERSION


def test_it_takes_seconds(fake_runtime: FakeRuntime) -> None:
    fake_runtime.state.images.add("busybox:latest")
    measured_s = partial(time_s, partial(run_demo, str(fake_runtime.socket_path)))
    assert quickest_s(measured_s, LONGEST_S) < LONGEST_S


def test_a_runtime_that_refuses_its_pods_is_replaced_by_the_fake(fake_runtime: FakeRuntime) -> None:
    fake_runtime.state.images.add("busybox:latest")
    fake_runtime.on("RunPodSandbox", error=CallError("UNKNOWN", "no network plugin"))
    done = run_demo(str(fake_runtime.socket_path))
    assert "not written" not in done.stdout
    assert done.returncode == 0
    assert "the runtime refused a pod: UNKNOWN: no network plugin" in done.stdout
    assert "runtime: the built-in fake (that runtime cannot run the pods of the demo)" in done.stdout


def test_a_pod_that_the_runtime_half_made_is_removed(fake_runtime: FakeRuntime) -> None:
    fake_runtime.state.images.add("busybox:latest")
    fake_runtime.on("CreateContainer", error=CallError("UNKNOWN", "no space left"))
    done = run_demo(str(fake_runtime.socket_path))
    assert "the runtime refused a pod: UNKNOWN: no space left" in done.stdout
    assert not fake_runtime.state.sandboxes


@pytest.fixture
def hangup_counts() -> Iterator[None]:
    """Also where the tests themselves run below nohup, which all children inherit."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_counts")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_behind_when_it_is_ended(fake_runtime: FakeRuntime, end: signal.Signals) -> None:
    fake_runtime.state.images.add("busybox:latest")
    fake_runtime.on("CreateContainer", hang=True)
    command = demo_command(str(fake_runtime.socket_path))
    with subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True) as process:
        fake_runtime.recorded.wait("CreateContainer")
        os.killpg(process.pid, end)  # a terminal's Ctrl-C goes to all processes of the group
        assert process.wait(60) == 130
    assert not fake_runtime.state.sandboxes


def test_other_lines_in_the_daemons_log_are_no_rows() -> None:
    change = {"field": "f", "from": "", "to": "1", "policy": "p", "reason": "r"}
    audit = {"logger": "runtimeproxy.audit", "pod": "demo/web", "container": "main", "changes": [change]}
    lines = ["I0000 00:00:00.000 a line of a C library", '{"logger": "runtimeproxy"}']
    lines += [json.dumps({**audit, "kind": kind}) for kind in ("changed", "left-out")]
    assert _rows("\n".join(lines)) == [("web/main", "f", "-", "1", "p", "r")]


def test_one_pod_of_each_qos_class() -> None:
    assert [pod.qos for pod in DEMO_PODS] == ["LSE", "LSR", "LS", "BE", "SYSTEM", ""]
    assert len({pod.name for pod in DEMO_PODS}) == len(DEMO_PODS)


@pytest.mark.parametrize("pod", DEMO_PODS, ids=lambda pod: pod.name)
def test_guaranteed_pods_ask_for_a_core(pod: object) -> None:
    from runtimeproxy.demo.pods import DemoPod

    assert isinstance(pod, DemoPod)
    wanted = 1024 if pod.kubelet_qos is KubeletQos.GUARANTEED else 2
    assert kubelet_resources(pod).cpu_shares == wanted


def test_a_demo_without_changes_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert _report([]) == 1
    assert "untouched: trading, search" in capsys.readouterr().out


class TestFindRuntime:
    """Which runtime the demo takes."""

    def test_one_that_answers_and_has_an_image(self, fake_runtime: FakeRuntime) -> None:
        fake_runtime.state.images.add("busybox:latest")
        missing = str(fake_runtime.socket_path) + ".not-there"
        runtime, reason = find_runtime([missing, str(fake_runtime.socket_path)])
        assert runtime is not None
        assert (runtime.image, runtime.driver, reason) == (
            "docker.io/library/busybox:latest",
            CgroupDriver.CGROUPFS,
            "",
        )

    def test_none_without_an_image(self, fake_runtime: FakeRuntime) -> None:
        runtime, reason = find_runtime([str(fake_runtime.socket_path)])
        assert runtime is None
        assert reason == f"{fake_runtime.socket_path} has no image, and the demo pulls none"

    def test_none_that_answers_with_an_error(self, fake_runtime: FakeRuntime) -> None:
        fake_runtime.on("Version", error=CallError("UNIMPLEMENTED"))
        runtime, reason = find_runtime([str(fake_runtime.socket_path)])
        assert runtime is None
        assert reason == f"{fake_runtime.socket_path} does not answer: UNIMPLEMENTED"

    def test_none_at_all(self, tmp_path: Path) -> None:
        assert find_runtime([str(tmp_path / "missing")]) == (
            None,
            "no runtime listens on its usual socket",
        )

    @pytest.mark.parametrize(
        ("driver", "expected"),
        [(api_pb2.SYSTEMD, CgroupDriver.SYSTEMD), (api_pb2.CGROUPFS, CgroupDriver.CGROUPFS)],
    )
    def test_its_cgroup_driver(
        self, fake_runtime: FakeRuntime, driver: api_pb2.CgroupDriver.ValueType, expected: CgroupDriver
    ) -> None:
        fake_runtime.state.images.add("busybox:latest")
        linux = api_pb2.LinuxRuntimeConfiguration(cgroup_driver=driver)
        fake_runtime.on("RuntimeConfig", response=api_pb2.RuntimeConfigResponse(linux=linux))
        runtime, _ = find_runtime([str(fake_runtime.socket_path)])
        assert runtime is not None
        assert runtime.driver is expected

    def test_an_old_runtime_that_does_not_tell(self, fake_runtime: FakeRuntime) -> None:
        fake_runtime.state.images.add("busybox:latest")
        fake_runtime.on("RuntimeConfig", error=CallError("UNIMPLEMENTED"))
        runtime, _ = find_runtime([str(fake_runtime.socket_path)])
        assert runtime is not None
        assert runtime.driver is CgroupDriver.CGROUPFS


def test_the_channel_speaks_as_the_kubelet_does(fake_runtime: FakeRuntime) -> None:
    with channel(str(fake_runtime.socket_path)) as opened:
        call = opened.unary_unary(
            "/runtime.v1.RuntimeService/Version",
            request_serializer=api_pb2.VersionRequest.SerializeToString,
            response_deserializer=api_pb2.VersionResponse.FromString,
        )
        assert call(api_pb2.VersionRequest(), timeout=30).runtime_name == "fake-runtime"


def test_a_folder_with_too_long_a_path_is_named(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    done = subprocess.run(
        demo_command("/nowhere.sock"),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("koord-runtime-proxy: the socket path has ")
    assert line.endswith("; let TMPDIR name a folder with a shorter path")


def test_a_proxy_that_does_not_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_HOOKS_WORKER_THREADS", "many")
    with FakeRuntime(tmp_path / "fake.sock") as fake:
        fake.state.images.add("busybox:latest")
        runtime, _ = find_runtime((str(fake.socket_path),))
        assert runtime is not None
        with pytest.raises(DemoError, match=r"did not start: .*WORKER_THREADS"):
            _driven(tmp_path, runtime)
