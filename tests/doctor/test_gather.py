"""The facts of `doctor`, gathered from files of the test and a fake runtime; and the command."""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path

import pytest

from runtimeproxy.cli import main
from runtimeproxy.config.sources import read
from runtimeproxy.doctor.facts import Facts, HookServerFacts, SocketState
from runtimeproxy.doctor.gather import (
    ApiAnswer,
    ask_runtime,
    containerd_driver,
    gather,
    socket_state,
    unit_properties,
)
from runtimeproxy.hooks.carried import BY_CALLS
from runtimeproxy.hooks.loading import LoadResult
from runtimeproxy.kubelet_endpoints import KubeletSetting, running_kubelets
from runtimeproxy.node.koordlet import Koordlet
from runtimeproxy.offline import Offline
from runtimeproxy.testing import FakeRuntime
from tests.systemd.test_units import SERVICE, unit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node with a kubelet that calls the proxy, and a koordlet."""
    files = {
        "proc/11/comm": "kubelet\n",
        "proc/11/cmdline": "kubelet\0--config=/etc/k.yaml\0--cgroup-driver=systemd\0",
        "etc/k.yaml": "containerRuntimeEndpoint: unix:///p.sock\n",
        "proc/12/comm": "koordlet\n",
        "proc/12/cmdline": "koordlet\0--enable-nri-runtime-hook=false\0",
        "proc/13/comm": "koordlet\n",
        "proc/13/cmdline": "koordlet\0--feature-gates=CPUBurst=false,GPUEnvInject=true\0",
        "proc/14/comm": "other\n",
        "var/run/nri/nri.sock": "",
        "kubelet/config.yaml": "kind: KubeletConfiguration\ncgroupDriver: systemd\n"
        "cpuManagerPolicy: static\n",
        "node.d/cm.yaml": "kind: ConfigMap\nmetadata: {name: slo-controller-config}\n",
        "node.d/list.json": '{"kind": "List",\n "items": [\n  {\n   "kind": "NodeSLO",\n   "spec": {}}]}',
        "node.d/.hidden.yaml": "kind: Node\n",
        "servers/a.json": json.dumps({"remote-endpoint": "/nowhere.sock", "runtime-hooks": []}),
        "servers/b.json": "{",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "state").mkdir(mode=0o750)
    os.utime(tmp_path / "node.d/cm.yaml", (time.time() - 7200,) * 2)
    (tmp_path / "config.toml").write_text(
        f"""
        [hooks]
        server_config_dir = "{tmp_path}/servers"
        [cgroups]
        root = "{tmp_path}/cgroup"
        [node]
        sysfs_root = "{tmp_path}/sys"
        objects_dir = "{tmp_path}/node.d"
        kubelet_dir = "{tmp_path}/kubelet"
        [state]
        dir = "{tmp_path}/state"
        """
    )
    return tmp_path


def facts_of(root: Path, **variables: str) -> Facts:
    environ = {f"KOORD_RUNTIMEPROXY_{name}": value for name, value in variables.items()}
    reading = read(argparse.Namespace(config=str(root / "config.toml")), environ)
    offline = Offline(reading.settings)
    offline.policies = LoadResult((), (), ())
    return gather(reading, offline, BY_CALLS, ApiAnswer(error="no API"), root)


def test_the_facts_of_a_node(root: Path, socket_folder: Path) -> None:
    endpoint, runtime = socket_folder / "p.sock", socket_folder / "runtime.sock"
    with FakeRuntime(runtime):
        found = facts_of(root, PROXY_ENDPOINT=str(endpoint), PROXY_RUNTIME_ENDPOINT=str(runtime))
    assert (found.endpoint, found.is_served, found.api_error) == (SocketState.MISSING, False, "no API")
    assert [(each.pid, each.cgroup_driver) for each in found.kubelets] == [(11, "systemd")]
    assert found.kubelets[0].endpoint == KubeletSetting(
        "/etc/k.yaml", "containerRuntimeEndpoint", "unix:///p.sock"
    )
    assert found.kubelet_files == (found.kubelets[0].endpoint,)
    assert found.runtime.name.split()[0]
    assert found.runtime.error == ""
    assert found.kubelet_cgroup_driver == "systemd"
    assert found.node.kubelet is not None
    assert found.node.kubelet.cpu_manager_policy == "static"
    assert found.hook_servers == (HookServerFacts("a.json", "/nowhere.sock", SocketState.MISSING),)
    assert any("b.json" in text for text in found.configuration_problems)
    gates = frozenset({"BatchResource", "CPUSetAllocator", "GroupIdentity", "GPUEnvInject"})
    assert found.koordlets == (Koordlet(12, uses_nri=False), Koordlet(13, uses_nri=True, gates=gates))
    assert found.has_nri_socket
    assert found.unit is None
    assert found.state_folder.mode == 0o750
    configmap, listed = found.input_files
    assert configmap.kinds == ("ConfigMap",)
    assert 7200 <= configmap.age_s < 7500
    assert listed.kinds == ("NodeSLO",)


def test_a_node_with_nothing(tmp_path: Path) -> None:
    names = ("server_config_dir", "policies_dir")
    (tmp_path / "config.toml").write_text(
        "[hooks]\n"
        + "".join(f"{name} = '{tmp_path}/{name}'\n" for name in names)
        + "[node]\nkubelet_dir = ''\n"
        f"objects_dir = ''\n[state]\ndir = '{tmp_path}/none'\n[proxy]\nruntime_endpoint = '{tmp_path}/none'\n"
    )
    found = facts_of(tmp_path)
    assert not any((found.kubelets, found.koordlets, found.input_files, found.hook_servers))
    assert not found.state_folder.exists
    assert found.runtime.error == f"{tmp_path}/none is missing"


def test_states_of_sockets(socket_folder: Path) -> None:
    path = socket_folder / "a.sock"
    assert socket_state(str(path)) is SocketState.MISSING
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert socket_state(str(path)) is SocketState.REFUSED
        server.listen()
        assert socket_state(str(path)) is SocketState.ANSWERS
    assert socket_state("/" + "x" * 200) is SocketState.REFUSED


def test_a_runtime_that_does_not_answer(socket_folder: Path) -> None:
    path = socket_folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert ask_runtime(str(path)).error == f"{path} is refused"


def containerd(options: object) -> str:
    runtimes = {"runc": {"options": options}, "kata": {"options": {"SystemdCgroup": True}}}
    return json.dumps({"containerd": {"defaultRuntimeName": "runc", "runtimes": runtimes}})


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (containerd({"SystemdCgroup": True}), "systemd"),
        (containerd({"SystemdCgroup": False}), "cgroupfs"),
        (containerd({}), "cgroupfs"),
        (containerd(None), "cgroupfs"),
        (containerd([]), "cgroupfs"),
        (containerd([1]), ""),
        ("{}", ""),
        ("", ""),
        ("[" * 10_000, ""),
        ('{"containerd": {"defaultRuntimeName": [], "runtimes": {}}}', ""),
    ],
)
def test_the_cgroup_driver_of_containerd(text: str, driver: str) -> None:
    assert containerd_driver(text) == driver


def test_the_flag_of_a_running_kubelet_counts_before_its_files(root: Path) -> None:
    (root / "proc/11/cmdline").write_text(
        "kubelet\0--config\0/etc/k.yaml\0--config-dir=/etc/k.d\0--container-runtime-endpoint=unix:///flag.sock\0"
    )
    (root / "etc/k.d").mkdir()
    (root / "etc/k.d/1.conf").write_text("containerRuntimeEndpoint: unix:///drop-in.sock\n")
    (kubelet,) = running_kubelets(root)
    assert kubelet.endpoint is not None
    assert kubelet.endpoint.value == "unix:///flag.sock"
    (root / "proc/11/cmdline").write_text("kubelet\0--config\0/etc/k.yaml\0--config-dir=/etc/k.d\0")
    (kubelet,) = running_kubelets(root)
    assert kubelet.endpoint is not None
    assert kubelet.endpoint.value == "unix:///drop-in.sock"


def test_properties_of_a_unit() -> None:
    text = "LoadState=loaded\nReadWritePaths=/a /b\nEmpty=\nOdd=a=b\n\n"
    expected = {"LoadState": "loaded", "ReadWritePaths": "/a /b", "Empty": "", "Odd": "a=b"}
    assert unit_properties(text) == expected


def test_the_tables_unit_is_the_repositorys() -> None:
    from tests.doctor.test_checks import UNIT

    service = unit(SERVICE)["Service"]
    for name in ("ProtectSystem", "ProtectControlGroups", "ProtectKernelTunables", "StateDirectory"):
        assert service[name] == UNIT[name]
    assert service["CapabilityBoundingSet"].lower() == UNIT["CapabilityBoundingSet"]
    assert service["ReadWritePaths"] == UNIT["ReadWritePaths"]


def test_the_command(root: Path, socket_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint = str(socket_folder / "p.sock")
    words = ("doctor", "--config", str(root / "config.toml"), "--koord-runtimeproxy-endpoint", endpoint)
    assert main(words) == 1
    text = capsys.readouterr().out
    assert (
        f"daemon\n  problem  {endpoint} does not exist: no daemon serves\n           systemctl start" in text
    )
    assert text.splitlines()[-1].endswith(" warnings")
    assert main((*words, "--output", "json")) == 1
    found = json.loads(capsys.readouterr().out)
    assert {"check": "hook servers", "level": "warning"}.items() <= next(
        each for each in found if each["check"] == "hook servers"
    ).items()


def test_a_folder_that_is_not_used_needs_no_rights(root: Path) -> None:
    warnings = facts_of(root, NODE_OBJECTS_DIR="", NODE_KUBELET_DIR="").configuration_warnings
    assert not [each for each in warnings if "objects_dir" in each or "kubelet_dir" in each]
