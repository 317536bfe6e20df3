"""Kubelets that still use the proxy's socket are found in files and among the processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimeproxy.config.settings import ProxySettings
from runtimeproxy.kubelet_endpoints import is_enabled_unit, kubelet_settings
from runtimeproxy.service import kubelet as place_of_before

SOCKET = "/run/koord-runtimeproxy/runtimeproxy.sock"
OURS = f"unix://{SOCKET}"
KEY = "containerRuntimeEndpoint"
IMAGES = "imageServiceEndpoint"
FLAG = "--container-runtime-endpoint"


def written(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def process(root: Path, pid: int, *command: str, name: str = "kubelet") -> None:
    written(root, f"proc/{pid}/comm", f"{name}\n")
    written(root, f"proc/{pid}/cmdline", "".join(f"{word}\0" for word in command))


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("var/lib/kubelet/config.yaml", f"apiVersion: x\n{KEY}: {OURS}\nother: 1\n", KEY),
        ("var/lib/kubelet/config.yaml", f'{KEY}: "{OURS}"  # the proxy\n', KEY),
        ("var/lib/kubelet/config.yaml", f"{KEY}: '{SOCKET}'\r\n", KEY),
        ("var/lib/kubelet/config.yaml", f"{KEY}: unix:///{SOCKET}\n", KEY),
        ("var/lib/kubelet/config.yaml", f'{{\n  "kind": "x",\n  "{KEY}": "{OURS}"\n}}\n', KEY),
        ("var/lib/kubelet/instance-config.yaml", f"{KEY}: {OURS}\n", KEY),
        ("var/lib/kubelet/config.yaml", f"{IMAGES}: {OURS}\n", IMAGES),
        ("var/lib/kubelet/kubeadm-flags.env", f'KUBELET_KUBEADM_ARGS="-v=2 {FLAG}={OURS} --x"\n', FLAG),
        ("etc/default/kubelet", f"KUBELET_EXTRA_ARGS={FLAG} {OURS}\n", FLAG),
        (
            "etc/systemd/system/kubelet.service.d/20-koord-runtime-proxy.conf",
            f'[Service]\nEnvironment="KUBELET_EXTRA_ARGS={FLAG}={OURS}"\n',
            FLAG,
        ),
    ],
)
def test_files_that_name_the_socket(tmp_path: Path, name: str, text: str, found: str) -> None:
    written(tmp_path, name, text)
    (setting,) = kubelet_settings(SOCKET, tmp_path)
    assert (setting.place, setting.name) == (f"/{name}", found)


@pytest.mark.parametrize(
    "text",
    [
        f"{KEY}: unix:///run/containerd/containerd.sock\n",
        f"# {KEY}: {OURS}\n",
        f"nested:\n  {KEY}: {OURS}\n",
        f"{KEY}:\n",
        f"{KEY}: npipe:////./pipe/x\n",
        f"my{KEY}: {OURS}\n",
        "\0\xff" * 100,
    ],
)
def test_files_that_do_not(tmp_path: Path, text: str) -> None:
    written(tmp_path, "var/lib/kubelet/config.yaml", text)
    (tmp_path / "var/lib/kubelet/kubeadm-flags.env").mkdir()
    assert kubelet_settings(SOCKET, tmp_path) == []


def test_processes_and_the_files_that_they_name(tmp_path: Path) -> None:
    process(tmp_path, 11, "/usr/bin/kubelet", f"{FLAG}={OURS}", "--v=2")
    process(tmp_path, 12, "/usr/bin/kubelet", FLAG, OURS, "--kubeconfig=/etc/kubeconfig")
    process(tmp_path, 13, "/usr/bin/kubelet", "--config", "/etc/kubelet.yaml", "--config-dir=/etc/kubelet.d/")
    process(tmp_path, 14, "/usr/bin/kubelet", f"{FLAG}=unix:///run/containerd/containerd.sock")
    process(tmp_path, 15, "/usr/bin/other", f"{FLAG}={OURS}", name="other")
    written(tmp_path, "etc/kubelet.yaml", f"{KEY}: {OURS}\n")
    written(tmp_path, "etc/kubelet.d/90-runtime.conf", f"{KEY}: {OURS}\n")
    written(tmp_path, "etc/kubelet.d/90-runtime.conf.old", f"{KEY}: {OURS}\n")
    written(tmp_path, "etc/kubeconfig", f"{KEY}: {OURS}\n")
    assert [(each.place, each.name) for each in kubelet_settings(SOCKET, tmp_path)] == [
        ("the running kubelet (process 11)", FLAG),
        ("the running kubelet (process 12)", FLAG),
        ("/etc/kubelet.yaml", KEY),
        ("/etc/kubelet.d/90-runtime.conf", KEY),
    ]


@pytest.mark.parametrize(
    ("name", "text", "images", "instead"),
    [
        ("config.yaml", f"{KEY}: {OURS}\n", "", f"set {KEY}: unix:///run/crio/crio.sock and"),
        ("config.yaml", f"{KEY}: {OURS}\n", "/images.sock", f"set {KEY}: unix:///run/crio/crio.sock and"),
        ("config.yaml", f"{IMAGES}: {OURS}\n", "", f"set {IMAGES}: unix:///run/crio/crio.sock and"),
        ("config.yaml", f"{IMAGES}: {OURS}\n", "/images.sock", f"set {IMAGES}: unix:///images.sock and"),
        ("kubeadm-flags.env", f"A={FLAG}={OURS}\n", "", f"set {FLAG}=unix:///run/crio/crio.sock and"),
    ],
)
def test_the_advice_says_what_to_set_instead(
    tmp_path: Path, name: str, text: str, images: str, instead: str
) -> None:
    written(tmp_path, f"var/lib/kubelet/{name}", text)
    (setting,) = kubelet_settings(SOCKET, tmp_path)
    advice = setting.advice(ProxySettings(runtime_endpoint="/run/crio/crio.sock", image_endpoint=images))
    assert advice.startswith(f"/var/lib/kubelet/{name}: ")
    assert instead in advice


@pytest.mark.parametrize(
    ("cgroup", "link", "is_enabled"),
    [
        (
            "0::/system.slice/proxy.service\n",
            "etc/systemd/system/multi-user.target.wants/proxy.service",
            True,
        ),
        ("0::/system.slice/proxy.service\n", "etc/systemd/system/other.target.requires/proxy.service", True),
        ("0::/system.slice/proxy.service\n", "etc/systemd/system/proxy.service", False),
        ("0::/user.slice/session-1.scope\n", "etc/systemd/system/multi-user.target.wants/x.scope", False),
        ("", "etc/x", False),
    ],
)
def test_whether_the_service_is_enabled(tmp_path: Path, cgroup: str, link: str, is_enabled: bool) -> None:
    written(tmp_path, "proc/self/cgroup", cgroup)
    (tmp_path / link).parent.mkdir(parents=True)
    (tmp_path / link).symlink_to("/nowhere")
    assert is_enabled_unit(tmp_path) is is_enabled


def test_a_daemon_of_the_version_before_finds_the_search_at_its_end() -> None:
    assert place_of_before.kubelet_settings is kubelet_settings
    assert place_of_before.is_enabled_unit is is_enabled_unit
