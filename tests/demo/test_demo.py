"""The demo: the main job on the built-in fake runtime, or on the runtime that it finds."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.config.settings import ProxySettings, Settings
from runtimeproxy.demo.live import LiveChange
from runtimeproxy.demo.main import (
    DEMO_PODS,
    DemoError,
    ShownChange,
    _changes,
    _drive,
    _report,
    find_runtime,
    kubelet_resources,
    run_demo,
)
from runtimeproxy.testing import CallError, CgroupDriver, FakeRuntime
from runtimeproxy.testing.builders import KubeletQos
from runtimeproxy.testing.services import RUNTIME_VERSION
from tests.demo.session import COMMANDS, IMAGE
from tests.lab.deadline import quickest_s, time_s
from tests.lab.programs import REPOSITORY

LONGEST_S = 10.0
README = REPOSITORY / "README.md"


def demo_command(runtime: str) -> list[str]:
    return [sys.executable, "-m", "runtimeproxy", "demo", "--remote-runtime-service-endpoint", runtime]


def without_ids(text: str) -> str:
    """A text without the ids of pods, which differ in each run."""
    return re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b[0-9a-f]{13}\b", "id", text)


ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def default_ends() -> Iterator[None]:
    """Lets signals end what a test starts, also if they are ignored here (nohup, `&` in a script)."""
    before = {end: signal.signal(end, signal.SIG_DFL) for end in ENDS}
    yield
    for end, handler in before.items():
        signal.signal(end, handler)


def test_it_shows_what_changes_and_why_the_rest_does_not(fake_runtime: FakeRuntime) -> None:
    fake_runtime.state.images.add("busybox:latest")
    command = demo_command(str(fake_runtime.socket_path))
    outputs: list[subprocess.CompletedProcess[str]] = []

    def run() -> None:
        outputs.append(
            subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
        )

    assert quickest_s(partial(time_s, run), LONGEST_S) < LONGEST_S
    done = outputs[-1]
    assert (done.returncode, done.stderr) == (0, "")
    first, *blocks = done.stdout.split("\n\n")
    assert first == f"runtime: fake-runtime {RUNTIME_VERSION} on {fake_runtime.socket_path}"
    shown = {block.split(",")[0]: [line.split() for line in block.splitlines()] for block in blocks}
    assert ["main", "resources.cpu_shares", "2", "->", "512"] in shown["spark"]
    assert ["main", "resources.cpu_quota_us", "100000", "->", "-1"] in shown["trading"]
    assert ["main", "env[NVIDIA_VISIBLE_DEVICES]", "-", "->", "<set>"] in shown["inference"]
    assert shown["logging"][0] == ["logging,", "QoS", "class", "SYSTEM:", "untouched"]
    assert ["batch-resource", "selects", "QoS", "class", "BE", "only"] in shown["web"]
    assert ["gpu-env", "no", "annotation", "scheduling.koordinator.sh/device-allocated"] in shown["web"]
    assert ["group-identity", "this", "node", "has", "no", "strategies"] in shown["web"]
    assert ["memory-qos", "off", "by", "default"] in shown["web"]
    # This runtime makes no cgroups, so the strategy has no files to change.
    assert "\n7 pods ran through the proxy: 4 changed, 3 untouched\n" in done.stdout
    assert "\ndemo/spark  BE, BestEffort\n" in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80
    assert "\x1b" not in done.stdout
    assert not fake_runtime.state.sandboxes


@pytest.mark.parametrize(
    ("mode", "changed", "texts"),
    [
        (
            "nri",
            5,
            ("main  resources.cpu_shares           2 -> 512", "env[NVIDIA_VISIBLE_DEVICES]    - -> <set>"),
        ),
        (
            "standalone",
            4,
            ("main  cpu.shares             2 -> 512", "where mode standalone does not carry it"),
        ),
    ],
)
def test_each_mode_is_shown(mode: str, changed: int, texts: tuple[str, ...]) -> None:
    environ = {**os.environ, "KOORD_RUNTIMEPROXY_DAEMON_MODE": mode}
    command = [sys.executable, "-m", "runtimeproxy", "demo"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"runtime: the built-in fake (in mode {mode} ")
    ran = f"8 pods ran in mode {mode}: {changed} changed, {8 - changed} untouched"
    assert ran in done.stdout, done.stdout
    for text in (*texts, "pod   cpu.max.burst", "0 -> 50000 -> 0"):
        assert text in done.stdout


@pytest.mark.usefixtures("default_ends")  # the demo sets handlers of its own
def test_a_runtime_that_refuses_a_pod_is_cleaned_up_and_replaced_by_the_fake(
    fake_runtime: FakeRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_runtime.state.images.add("busybox:latest")
    fake_runtime.on("CreateContainer", error=CallError("UNKNOWN", "no space left"))
    proxy = ProxySettings(runtime_endpoint=str(fake_runtime.socket_path))
    assert run_demo(Settings(proxy=proxy)) == 0
    shown = capsys.readouterr().out
    assert "the runtime refused a pod: UNKNOWN: no space left" in shown
    assert "runtime: the built-in fake (that runtime cannot run the pods of the demo)" in shown
    (recorded,) = re.findall(r"```\nruntime: .*?\n(.*?)```", README.read_text(), re.DOTALL)
    assert without_ids(shown).endswith(without_ids(recorded))
    assert not fake_runtime.state.sandboxes


@pytest.mark.slow
@pytest.mark.usefixtures("default_ends")
def test_nothing_is_left_behind_when_it_is_ended(fake_runtime: FakeRuntime) -> None:
    fake_runtime.state.images.add("busybox:latest")
    fake_runtime.on("CreateContainer", hang=True)
    command = demo_command(str(fake_runtime.socket_path))
    with contextlib.ExitStack() as running:
        processes = [
            running.enter_context(subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True))
            for _ in ENDS
        ]
        fake_runtime.recorded.wait("CreateContainer", len(ENDS))
        for process, end in zip(processes, ENDS, strict=True):
            os.killpg(process.pid, end)  # a terminal's Ctrl-C goes to all processes of the group
        assert [process.wait(60) for process in processes] == [130] * len(ENDS)
    assert not fake_runtime.state.sandboxes


def test_other_lines_in_the_daemons_log_are_no_changes() -> None:
    change = {"field": "f", "from": "", "to": "1", "policy": "p", "reason": "r"}
    audit = {"logger": "runtimeproxy.audit", "pod": "demo/web", "container": "main", "changes": [change]}
    lines = ["I0000 00:00:00.000 a line of a C library", '{"logger": "runtimeproxy"}']
    lines += [json.dumps({**audit, "kind": kind}) for kind in ("changed", "left-out", "pending")]
    assert _changes("\n".join(lines)) == [
        ShownChange("web", "p", "r", "main", "f", "- -> 1"),
        ShownChange("web", "p", "left-out: r", "main", "f", ""),
    ]


def test_one_pod_of_each_qos_class() -> None:
    assert [pod.qos for pod in DEMO_PODS] == ["LSE", "LSR", "LS", "BE", "SYSTEM", ""]
    assert len({pod.name for pod in DEMO_PODS}) == len(DEMO_PODS)


@pytest.mark.parametrize("pod", DEMO_PODS, ids=lambda pod: pod.name)
def test_guaranteed_pods_ask_for_a_core(pod: object) -> None:
    from runtimeproxy.demo.main import DemoPod

    assert isinstance(pod, DemoPod)
    wanted = 1024 if pod.kubelet_qos is KubeletQos.GUARANTEED else 2
    assert kubelet_resources(pod).cpu_shares == wanted


def test_a_demo_without_changes_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert _report([], [], untouched={"trading": {"cpuset": "why"}}) == 1
    shown = capsys.readouterr().out
    assert "trading, QoS class LSE: untouched\n  cpuset  why\n" in shown


def test_a_failure_of_a_policy_is_shown_and_is_no_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert _report([ShownChange("web", "p", "left-out: r", "main", "f", "")], []) == 1
    shown = capsys.readouterr().out
    assert "web, no QoS class\n  p\n    main  f\n            left-out: r\n" in shown
    assert "0 changed, 7 untouched" in shown


@pytest.mark.parametrize(("values", "changed"), [(("0",), 0), (("0", "50000"), 1), (("0", "50000", "0"), 1)])
def test_the_pod_of_the_strategy_counts_if_it_was_changed(
    values: tuple[str, ...], changed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _report([], [LiveChange("pod", "cpu.max.burst", values)]) == int(not changed)
    shown = capsys.readouterr().out
    assert shown.endswith(f"7 pods ran through the proxy: {changed} changed, {7 - changed} untouched\n")


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


@pytest.mark.usefixtures("default_ends")
def test_a_folder_with_too_long_a_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(
        DemoError, match=r"the socket path has .*; let TMPDIR name a folder with a shorter path"
    ):
        run_demo(Settings())


def test_a_proxy_that_does_not_start_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_HOOKS_WORKER_THREADS", "many")
    with FakeRuntime(tmp_path / "fake.sock") as fake:
        fake.state.images.add("busybox:latest")
        runtime, _ = find_runtime((str(fake.socket_path),))
        assert runtime is not None
        with pytest.raises(DemoError, match=r"did not start: .*WORKER_THREADS"):
            _drive(tmp_path, runtime)


def test_the_recorded_session_is_an_image_that_loads_nothing() -> None:
    image = ElementTree.parse(IMAGE).getroot()  # noqa: S314  # a file of this repository
    assert image.tag == "{http://www.w3.org/2000/svg}svg"
    text = IMAGE.read_text()
    assert "url(" not in re.sub(r"url\(#", "", text)
    shown = "".join(image.itertext()).replace("\xa0", " ")
    for command in COMMANDS:
        assert f"{PROGRAM} {command}" in shown
    assert "cluster strategy" in shown
