"""Finds the endpoints of this node's kubelets, and those that are the proxy's socket.

Reads the kubelet's usual files, the command lines of running kubelets, and the configuration files that these
name. There is no YAML parser among the dependencies, so top-level keys are matched line by line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.config.parsing import is_same_socket, parse_endpoint
from runtimeproxy.config.settings import ProxySettings
from runtimeproxy.documents.files import is_denied

CONFIGURATION_FILES: Final = (
    "var/lib/kubelet/config.yaml",
    "var/lib/kubelet/instance-config.yaml",
    "var/lib/kubelet/kubeadm-flags.env",
    "etc/default/kubelet",
    "etc/sysconfig/kubelet",
)
"""Where kubeadm and distributions keep the kubelet's settings. Source: kubeadm's documentation."""
DROP_INS: Final = (
    "etc/systemd/system/kubelet.service.d",
    "usr/lib/systemd/system/kubelet.service.d",
    "lib/systemd/system/kubelet.service.d",
)
WANTED_BY: Final = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
"""Folders with the links of enabled units, in folders that end in `.wants` or `.requires`."""

MAX_FILE_BYTES: Final = 1024 * 1024
"""A kubelet's configuration has a few kilobytes."""
MAX_PROCESSES: Final = 65_536
"""More than a node has."""

# Source: Kubernetes, KubeletConfiguration v1beta1; the file may be JSON, which has quotes around the key.
_KEY: Final = re.compile(
    r"""^(?:\s*")?(?P<name>containerRuntimeEndpoint|imageServiceEndpoint)"?\s*:\s*["']?(?P<value>[^\s"',}#]+)""",
    re.MULTILINE,
)
_FLAG: Final = re.compile(
    r"""--?(?P<name>container-runtime-endpoint|image-service-endpoint)[=\s\0]["']?(?P<value>[^\s"'\0\\]+)"""
)
_CONFIG_FLAG: Final = re.compile(r"--?config[=\0]([^\0]+)")
_DRIVER_FLAG: Final = re.compile(r"--?cgroup-driver[=\0]([^\0]+)")
_CONFIG_DIR_FLAG: Final = re.compile(r"--?config-dir[=\0]([^\0]+)")
"""Its `*.conf` files override the configuration file. Source: Kubernetes, "Kubelet configuration
drop-ins"."""


DEFAULT_ENDPOINT: Final = "unix:///run/containerd/containerd.sock"
"""Of a kubelet without a setting. Source: Kubernetes cmd/kubelet/app/options, NewKubeletConfiguration."""


class KubeletSetting(NamedTuple):
    """A setting of a kubelet that names a socket.

    Attributes:
        place: the file, or the process.
        name: the key, or the flag.
        value: the endpoint as it is written there.
    """

    place: str
    name: str
    value: str

    def advice(self, proxy: ProxySettings) -> str:
        """The problem, and the setting that solves it."""
        endpoint = proxy.runtime_endpoint
        if "image" in self.name:
            endpoint = proxy.image_endpoint or endpoint
        instead = f"{self.name}{'=' if self.name.startswith('-') else ': '}unix://{endpoint}"
        return (
            f"{self.place}: {self.name} is {self.value}, the proxy's socket: without the proxy the kubelet "
            f"has no runtime; set {instead} and restart the kubelet"
        )


class RunningKubelet(NamedTuple):
    """A process.

    Attributes:
        endpoint: the setting of its runtime's socket that counts; None if it has none, but the default.
        cgroup_driver: of its flag; empty without.
        denied: the files with its settings that this user may not read.
    """

    pid: int
    endpoint: KubeletSetting | None
    cgroup_driver: str = ""
    denied: tuple[str, ...] = ()


def kubelet_settings(socket_path: str, root: Path = Path("/")) -> list[KubeletSetting]:
    # Files that cannot be read or parsed are left out.
    return [each for each in endpoint_settings(root) if is_endpoint(each.value, socket_path)]


def calls_problem(proxy: ProxySettings, sockets: Iterable[str], root: Path = Path("/")) -> str:
    """Why the kubelet's calls cannot be left unserved: a kubelet's endpoint is one of these sockets.

    Returns:
        The place and what to do; empty if there is no such kubelet.
    """
    for each in endpoint_settings(root):
        if any(is_endpoint(each.value, path) for path in sockets):
            where = f"{each.place}, {each.name}"
            return f"a kubelet still uses the proxy's socket ({where}): {each.advice(proxy)}"
    return ""


def endpoint_settings(root: Path = Path("/")) -> list[KubeletSetting]:
    """The settings of kubelets that name any socket; see `kubelet_settings`."""
    texts = [(f"/{name}", _text(root / name)) for name in CONFIGURATION_FILES]
    for folder in DROP_INS:
        texts += ((f"/{folder}/{path.name}", _text(path)) for path in _entries(root / folder, ".conf"))
    for process in _kubelets(root / "proc"):
        command = _text(process / "cmdline")
        texts.append((f"the running kubelet (process {process.name})", command))
        texts += ((path, _text(root / path.lstrip("/"))) for path in _CONFIG_FLAG.findall(command))
        for folder in _CONFIG_DIR_FLAG.findall(command):
            paths = _entries(root / folder.lstrip("/"), ".conf")
            texts += ((str(Path(folder, path.name)), _text(path)) for path in paths)
    return list(dict.fromkeys(each for place, text in texts for each in _settings_in(place, text)))


def running_kubelets(root: Path = Path("/")) -> list[RunningKubelet]:
    """The kubelets that run, with the settings that count for them."""
    found = []
    for process in _kubelets(root / "proc"):
        command = _text(process / "cmdline")
        # Source: the kubelet: a flag counts before the drop-ins in their order, these before the file.
        files, folders = _CONFIG_FLAG.findall(command), _CONFIG_DIR_FLAG.findall(command)
        texts = [(path, _text(root / path.lstrip("/"))) for path in files]
        for folder in folders:
            paths = _entries(root / folder.lstrip("/"), ".conf")
            texts += ((str(Path(folder, path.name)), _text(path)) for path in paths)
        texts.append((f"the running kubelet (process {process.name})", command))
        settings = [each for place, text in texts for each in _settings_in(place, text)]
        endpoints = [each for each in settings if "image" not in each.name]
        drivers = _DRIVER_FLAG.findall(command)
        found.append(
            RunningKubelet(
                int(process.name),
                endpoints[-1] if endpoints else None,
                drivers[-1] if drivers else "",
                tuple(path for path in (*files, *folders) if is_denied(root / path.lstrip("/"))),
            )
        )
    return found


def _settings_in(place: str, text: str) -> Iterator[KubeletSetting]:
    for pattern in (_KEY, _FLAG):
        for match in pattern.finditer(_without_comments(text)):
            name = match["name"] if pattern is _KEY else f"--{match['name']}"
            yield KubeletSetting(place, name, match["value"])


def is_enabled_unit(root: Path = Path("/")) -> bool:
    """Whether this process belongs to an enabled systemd service, which is started with the node."""
    unit = _text(root / "proc/self/cgroup").strip().rpartition("/")[2]
    if not unit.endswith(".service"):
        return False
    links = (
        path / unit
        for folder in WANTED_BY
        for end in (".wants", ".requires")
        for path in _entries(root / folder, end)
    )
    return any(os.path.lexists(link) for link in links)


def _kubelets(proc: Path) -> Iterator[Path]:
    """The processes called kubelet; the command lines of others, which are their memory, are not read."""
    processes = (path for path in _entries(proc, "") if path.name.isdecimal())
    for _, process in zip(range(MAX_PROCESSES), processes, strict=False):
        if _text(process / "comm").strip() == "kubelet":
            yield process


def _entries(folder: Path, end: str) -> Iterator[Path]:
    try:
        yield from sorted(path for path in folder.iterdir() if path.name.endswith(end))
    except OSError:
        return


def _text(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _without_comments(text: str) -> str:
    return re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)


def is_endpoint(endpoint: str, socket_path: str) -> bool:
    try:
        return is_same_socket(parse_endpoint(endpoint), socket_path)
    except ValueError:
        return False
