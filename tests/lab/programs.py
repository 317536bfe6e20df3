"""Where the programs of the laboratory are, and what a test does where one is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import pytest

from runtimeproxy.cgroups.mounts import DEFAULT_ROOT

REPOSITORY = Path(__file__).resolve().parents[2]

ContainerdVersion = Literal["1.6", "1.7", "2.2", "2.3", "2.4"]
RuntimeWithNri = Literal["1.7", "2.2", "2.3", "2.4", "cri-o"]
KubeletClientVersion = Literal["1.34", "1.37"]

WITH_ALL_VERSIONS = os.environ.get("E2E_VERSIONS") == "all"
"""Whether all supported versions of runtimes and kubelets take part: `make e2e-versions`."""
CONTAINERD_WITHOUT_EVENTS = pytest.param("1.6", id="containerd-1.6")
CONTAINERDS_WITH_EVENTS = [
    pytest.param(version, id=f"containerd-{version}", marks=pytest.mark.golang)
    for version in ("2.2", *(["2.4"] if WITH_ALL_VERSIONS else []))
]
CONTAINERD_VERSIONS = [CONTAINERD_WITHOUT_EVENTS, *CONTAINERDS_WITH_EVENTS]
CONTAINERDS_WITH_NRI = [
    pytest.param(version, id=f"containerd-{version}", marks=pytest.mark.golang)
    for version in ("2.2", *(["1.7", "2.3", "2.4"] if WITH_ALL_VERSIONS else []))
]
RUNTIMES_WITH_NRI = [
    *CONTAINERDS_WITH_NRI,
    *([pytest.param("cri-o", marks=pytest.mark.golang)] if WITH_ALL_VERSIONS else []),
]
KUBELET_CLIENT_VERSIONS: list[KubeletClientVersion] = ["1.34", "1.37"] if WITH_ALL_VERSIONS else ["1.34"]


def tools_folder() -> Path:
    """The folder of the programs built by `tests/lab/build_tools.sh`."""
    configured = os.environ.get("KOORD_RUNTIMEPROXY_TOOLS")
    return Path(configured) if configured else REPOSITORY / ".tools" / "bin"


def missing(reason: str) -> NoReturn:
    """Skips the test; on CI, where everything must be there, fails it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (on CI this is a failure)", pytrace=False)
    pytest.skip(reason)


def go_tool(name: str) -> Path:
    """A program built from Go modules; the test is skipped where it is not."""
    program = tools_folder() / name
    if not os.access(program, os.X_OK):
        missing(f"{name} is not built: run tests/lab/build_tools.sh")
    return program


def debian_program(name: str) -> Path:
    """A program of a Debian package; the test is skipped where it is not installed.

    The folder of the built tools is left out: it holds a containerd of another version.
    """
    places = [place for place in os.get_exec_path() if Path(place) != tools_folder()]
    found = shutil.which(name, path=os.pathsep.join(["/usr/sbin", "/usr/bin", *places]))
    if found is None:
        missing(f"{name} is not installed: run tests/lab/install.sh")
    return Path(found)


def need_controllers_of_v1(*names: str) -> None:
    """Skips a test of cgroup version 1's files where it cannot make such cgroups.

    Controllers in version 2 are no failure, not even on CI: a kernel has each in one version only.
    """
    if os.geteuid() != 0:
        missing("cgroups need root")
    if (DEFAULT_ROOT / "cgroup.controllers").exists():
        pytest.skip("the controllers are in cgroup version 2 here, and a kernel has them in one version only")
    absent = [name for name in names if not (DEFAULT_ROOT / name / "cgroup.procs").exists()]
    if absent:
        missing(f"cgroup version 1 lacks {', '.join(absent)}")


def need_root_and_cgroup_v1() -> None:
    """Skips the test where it cannot make cgroups that it can read."""
    if os.geteuid() != 0:
        missing("containers need root")
    if not Path("/sys/fs/cgroup/cpu").is_dir():
        missing("the tests read cgroup version 1, which is not mounted")


def need_loop_devices() -> None:
    """Skips the test where no file can be made a block device."""
    if shutil.which("losetup") is None or not Path("/dev/loop-control").exists():
        missing("no loop devices can be made here")


def need_user_namespaces() -> None:
    """Skips the test where a program cannot have a user namespace of its own."""
    if subprocess.run(("unshare", "--user", "true"), capture_output=True, check=False).returncode:
        missing("user namespaces cannot be made here")


def containerd_program(version: ContainerdVersion) -> Path:
    """The daemon of that version, if everything that it needs to run containers is there."""
    need_root_and_cgroup_v1()
    debian_program("runc")
    debian_program("busybox")
    if version == "1.6":
        return debian_program("containerd")
    folder = "" if version == "2.2" else f"containerd-{version}/"
    go_tool(f"{folder}containerd-shim-runc-v2")
    return go_tool(f"{folder}containerd")


def crio_program() -> Path:
    """The daemon of CRI-O, if everything that it needs to run containers is there."""
    need_root_and_cgroup_v1()
    for name in ("runc", "busybox", "conmon", "skopeo"):
        debian_program(name)
    go_tool("pinns")
    return go_tool("crio")


def run(
    command: Sequence[str | Path],
    *,
    stdin: str | None = None,
    timeout_s: float = 30.0,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, whatever its exit code, and keeps what it printed."""
    return subprocess.run(
        [str(word) for word in command],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=None if environment is None else {**os.environ, **environment},
        check=False,
    )
