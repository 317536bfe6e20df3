"""A real CRI-O with its own configuration, storage and sockets in a temporary folder."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab import runtime_remains
from tests.lab.busybox_image import IMAGE, write_image
from tests.lab.containerd import Containerd
from tests.lab.containerd_config import Nri
from tests.lab.cri_client import CriClient
from tests.lab.programs import RuntimeWithNri, crio_program, debian_program, go_tool, run
from tests.lab.runtime_process import RuntimeProcess
from tests.lab.runtime_remains import Remains

_CONFIGURATION = """
[crio]
root = "{folder}/root"
runroot = "{folder}/run"
storage_driver = "overlay"
log_dir = "{folder}/logs"
version_file = "{folder}/version"
version_file_persist = "{folder}/version-persist"
clean_shutdown_file = "{folder}/clean"
[crio.api]
listen = "{folder}/crio.sock"
stream_port = "0"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "{pinns}"
hooks_dir = []
namespaces_dir = "{folder}/namespaces"
apparmor_profile = "unconfined"
container_exits_dir = "{folder}/exits"
container_attach_socket_dir = "{folder}/attach"
irqbalance_config_file = ""
enable_criu_support = false
default_sysctls = []
[crio.runtime.runtimes.runc]
runtime_path = "{folder}/runc"
runtime_root = "{folder}/runc-state"
monitor_path = "{conmon}"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{image}"
pause_command = ""
signature_policy = "{folder}/policy.json"
signature_policy_dir = "{folder}/policies"
[crio.network]
network_dir = "{folder}/cni/net.d"
plugin_dirs = ["{folder}/cni/bin"]
[crio.nri]
enable_nri = true
nri_listen = "{folder}/nri.sock"
nri_plugin_dir = "{folder}/nri"
nri_plugin_config_dir = "{folder}/nri/conf.d"
nri_plugin_registration_timeout = "{nri.registration_timeout_s}s"
nri_plugin_request_timeout = "{nri.request_timeout_s}s"
"""

# Where CAP_SYS_RESOURCE is missing runc may not lower oom_score_adj, and every sandbox asks for that.
_RUNC = """#!/bin/sh
previous=""
for word in "$@"; do
    [ "$previous" != --bundle ] || sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/' "$word/config.json"
    previous=$word
done
exec {runc} "$@"
"""


class Crio(RuntimeProcess):
    """Runs CRI-O with NRI from `with` to the end of its block."""

    cgroup_prefix = "crio-"

    def __init__(self, nri: Nri | None = None) -> None:
        self._program = crio_program()
        programs = {name: debian_program(name) for name in ("conmon", "runc")}
        super().__init__()
        for name in ("logs", "exits", "attach", "namespaces", "nri", "cni/bin", "cni/net.d"):
            (self.folder / name).mkdir(parents=True)
        runc = self.folder / "runc"
        runc.write_text(_RUNC.format(runc=programs["runc"]))
        runc.chmod(0o755)
        (self.folder / "policy.json").write_text(
            json.dumps({"default": [{"type": "insecureAcceptAnything"}]})
        )
        self._config = self.folder / "crio.conf"
        self._config.write_text(
            _CONFIGURATION.format(
                folder=self.folder,
                pinns=go_tool("pinns"),
                conmon=programs["conmon"],
                image=IMAGE,
                nri=nri or Nri(),
            )
        )

    @property
    def socket(self) -> Path:
        """The socket on which the runtime serves the CRI."""
        return self.folder / "crio.sock"

    def command(self) -> list[str | Path]:
        """Its command line."""
        return [self._program, "--config", self._config, "--config-dir", ""]

    def import_image(self, client: CriClient) -> None:
        """Writes the image into the storage, which the runtime reads again."""
        archive = self.folder / "busybox.tar"
        # CRI-O waits half a minute for a sandbox whose process ignores SIGTERM.
        write_image(debian_program("busybox"), archive, stop_signal="SIGKILL")
        storage = f"containers-storage:[overlay@{self.folder}/root+{self.folder}/run]{IMAGE}"
        copy: list[str | Path] = [debian_program("skopeo"), "--insecure-policy", "copy"]
        imported = run([*copy, f"docker-archive:{archive}", storage])
        if imported.returncode != 0:
            raise RuntimeError(f"skopeo: {imported.stderr}")

    def remove_remains(self) -> None:
        """Removes containers, their monitors, mounts and cgroups after its end."""
        bundles = sorted((self.folder / "run" / "overlay-containers").glob("*/userdata/"))
        containers = [Remains(bundle.parent.name, bundle, bundle / "pidfile") for bundle in bundles]
        monitors = runtime_remains.processes_of("conmon", self.folder)
        runtime_remains.remove(self.folder, containers, monitors)


def runtime_with_nri(which: RuntimeWithNri, nri: Nri | None = None) -> RuntimeProcess:
    """A containerd of that version with NRI switched on, or CRI-O."""
    return Crio(nri) if which == "cri-o" else Containerd(which, nri or Nri())
