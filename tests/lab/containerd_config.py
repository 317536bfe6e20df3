"""Configuration files for a containerd that lives in one folder and needs no network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.busybox_image import IMAGE
from tests.lab.programs import ContainerdVersion


@dataclass(frozen=True)
class Nri:
    """The runtime's side of NRI; without one of `required_plugins` no container is created."""

    registration_timeout_s: float = 5.0
    request_timeout_s: float = 2.0
    required_plugins: tuple[str, ...] = ()


PATIENT: Final = Nri(registration_timeout_s=60.0, request_timeout_s=20.0)
"""Of tests about the values with which containers start: a busy machine may hold a plugin up for longer than
the usual times, and the runtime then goes on without it."""


@dataclass(frozen=True)
class Places:
    """The files of one containerd, all below one short path (a socket's path has 107 bytes)."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def nri_socket(self) -> Path:
        return self.folder / "nri.sock"

    @property
    def nri_plugins(self) -> Path:
        """The folder of the plugins that the runtime starts itself."""
        return self.folder / "nri"

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"


_COMMON = """
version = {version}
root = "{places.root}"
state = "{places.state}"
imports = []

[grpc]
  address = "{places.socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{places.folder}/opt"
"""

# Without restrict_oom_score_adj every sandbox fails where CAP_SYS_RESOURCE is missing: runc may
# then not lower oom_score_adj.
_VERSION_1_6 = """
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{places.folder}/cni/bin"
    conf_dir = "{places.folder}/cni/net.d"
"""

_VERSION_2_2 = """
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{image}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{places.folder}/cni/bin"]
    conf_dir = "{places.folder}/cni/net.d"
"""

_WITHOUT_NRI = """
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""

_NRI = """
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{places.nri_socket}"
  plugin_path = "{places.nri_plugins}"
  plugin_config_path = "{places.nri_plugins}/conf.d"
  plugin_registration_timeout = "{nri.registration_timeout_s}s"
  plugin_request_timeout = "{nri.request_timeout_s}s"
"""

_REQUIRED_PLUGINS = """
  [plugins."io.containerd.nri.v1.nri".default_validator]
    enable = true
    required_plugins = {names}
"""


def configuration(version: ContainerdVersion, places: Places, nri: Nri | None = None) -> str:
    """The text of the configuration file of that version; without `nri` no plugin can connect."""
    schema, text = (2, _VERSION_1_6) if version in {"1.6", "1.7"} else (3, _VERSION_2_2)
    with_places = (_COMMON + text).format(version=schema, places=places, image=IMAGE)
    if version == "1.6":
        return with_places
    return with_places + (_WITHOUT_NRI if nri is None else _nri_configuration(places, nri))


def _nri_configuration(places: Places, nri: Nri) -> str:
    text = _NRI.format(places=places, nri=nri)
    if nri.required_plugins:
        text += _REQUIRED_PLUGINS.format(names=json.dumps(nri.required_plugins))
    return text
