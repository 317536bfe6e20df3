"""Configuration files for a containerd that lives in one folder and needs no network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.lab.busybox_image import IMAGE
from tests.lab.programs import ContainerdVersion


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
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def log(self) -> Path:
        return self.folder / "containerd.log"


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

[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""


def configuration(version: ContainerdVersion, places: Places) -> str:
    """The text of the configuration file of that version."""
    schema, text = (2, _VERSION_1_6) if version == "1.6" else (3, _VERSION_2_2)
    return (_COMMON + text).format(version=schema, places=places, image=IMAGE)
