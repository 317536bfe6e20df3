"""Plain folders that look like cgroups."""

from pathlib import Path

from runtimeproxy.cgroups.writer import WriteResult

POD = "/kubepods/besteffort/pod1"

V1_FILES = {
    "cpu": {
        "cpu.shares": "1024",
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_burst_us": "0",
    },
    "cpuset": {"cpuset.cpus": "0-3", "cpuset.mems": "0"},
    "memory": {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "8192"},
}
V2_FILES = {
    "cpu.weight": "100",
    "cpu.max": "max 100000",
    "cpu.max.burst": "0",
    "cpuset.cpus": "",
    "memory.max": "max",
    "memory.high": "max",
    "memory.current": "8192",
}


def make_v1(root: Path, *cgroups: str) -> Path:
    """Makes the files of version 1 for the cgroups."""
    for controller, files in V1_FILES.items():
        for cgroup in cgroups:
            fill(root / controller / cgroup.strip("/"), files)
    return root


def make_v2(root: Path, *cgroups: str) -> Path:
    """Makes the files of version 2 for the cgroups."""
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    for cgroup in cgroups:
        fill(root / cgroup.strip("/"), V2_FILES)
    return root


def fill(folder: Path, files: dict[str, str]) -> None:
    """Writes files, and makes their folder if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def outcomes(results: tuple[WriteResult, ...]) -> dict[str, str]:
    """The outcome of each parameter."""
    return {result.name: result.outcome.value for result in results}
