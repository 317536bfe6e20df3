"""Whether Katalyst refuses a manifest: `simulate` and `check-slo --pod` say the same, by exit code, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from runtimeproxy.cli import main

DOMAIN: Final = "katalyst.kubewharf.io"
LEVEL: Final = f"{DOMAIN}/qos_level"
BOUND: Final = {"numa_binding": "true"}
WHOLE: Final = {**BOUND, "numa_exclusive": "true"}
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
TWO_CPUS: Final = MappingProxyType({"cpu": "2"})
BOTH_CPUS: Final = {"cpu": "1", "resource.katalyst.kubewharf.io/reclaimed_millicpu": "1000"}
CONFIG: Final = """
[katalyst]
on_error = "{on_error}"
dedicated_selector = ["tier=0"]
[policies.katalyst-qos]
enabled = true
"""


class Row(NamedTuple):
    """A manifest, and what is said of it."""

    level: str
    cpu: Mapping[str, str] = NOTHING
    memory: Mapping[str, str] = NOTHING
    others: Mapping[str, str] = NOTHING
    requests: Mapping[str, str] = TWO_CPUS
    said: str = ""
    """Of what is refused the first problem; of what is accepted the line about the level."""


REFUSED: Final = {
    "dedicated without numa_binding": Row(
        "dedicated_cores", said="numa_binding: dedicated_cores needs it: 'true'"
    ),
    "numa_binding that is not exactly true": Row(
        "dedicated_cores",
        memory={"numa_binding": "True"},
        said="numa_binding: is 'True', not 'true' or 'false', and is not used",
    ),
    "exclusive, distributed evenly": Row(
        "dedicated_cores",
        {"distribute_evenly_across_numa": "true"},
        WHOLE,
        said="distribute_evenly_across_numa: does not go with numa_exclusive",
    ),
    "exclusive, whole cores": Row(
        "dedicated_cores",
        {"full_pcpus_pairing": "true"},
        WHOLE,
        said="full_pcpus_pairing: does not go with numa_exclusive",
    ),
    "a tolerance on a shared pod": Row(
        "shared_cores",
        {"suppression_tolerance_rate": "1.5"},
        said="suppression_tolerance_rate: is for reclaimed_cores only",
    ),
    "a tolerance that is not a number": Row(
        "reclaimed_cores",
        {"suppression_tolerance_rate": "much"},
        said="suppression_tolerance_rate: 'much' is not a number",
    ),
    "CPU and reclaimed CPU in one container": Row(
        "reclaimed_cores",
        requests=BOTH_CPUS,
        said="main: cpu and resource.katalyst.kubewharf.io/reclaimed_millicpu in one container",
    ),
    "a number of NUMA nodes in words": Row(
        "dedicated_cores",
        memory=BOUND,
        others={f"{DOMAIN}/numa_number": "two"},
        said=f"{DOMAIN}/numa_number: 'two' is not a whole number",
    ),
    "NUMA nodes in words": Row(
        "dedicated_cores",
        memory=BOUND,
        others={f"{DOMAIN}/numa_ids": "zero"},
        said=f"{DOMAIN}/numa_ids: not a CPU list: 'zero'",
    ),
    "a shared pool with the name of another kind": Row(
        "shared_cores",
        {"cpuset_pool": "reclaim"},
        said="cpuset_pool: 'reclaim' is not the name of a pool of shared_cores",
    ),
    "a level that does not exist": Row(
        "batch_cores",
        said=f"{LEVEL}: 'batch_cores' is no level: dedicated_cores, shared_cores, reclaimed_cores, "
        "system_cores",
    ),
    "two levels": Row(
        "shared_cores",
        others={"tier": "0"},
        said=f"{LEVEL}: the annotations of dedicated_cores contradict each other: 1 of 2 name it",
    ),
}
"""All that Katalyst refuses by what a manifest says. What it refuses by the node, such as a pod that needs
more than one NUMA node, or by what runs, such as a resize, no manifest tells."""
ACCEPTED: Final = {
    "dedicated": Row(
        "dedicated_cores", memory=BOUND, said=f"dedicated_cores, pool dedicated: annotation {LEVEL}"
    ),
    "exclusive on two NUMA nodes": Row(
        *("dedicated_cores", {"align_by_socket": "true"}, WHOLE, {f"{DOMAIN}/numa_number": "2"}),
        said=f"dedicated_cores, pool dedicated: annotation {LEVEL}",
    ),
    "evenly, in whole cores": Row(
        "dedicated_cores",
        {"distribute_evenly_across_numa": "true", "full_pcpus_pairing": "true"},
        BOUND,
        said=f"dedicated_cores, pool dedicated: annotation {LEVEL}",
    ),
    # More than any NUMA node has: the node's pools refuse it, maybe.
    "of more CPUs than a NUMA node": Row(
        "dedicated_cores",
        memory=BOUND,
        requests={"cpu": "500"},
        said=f"dedicated_cores, pool dedicated: annotation {LEVEL}",
    ),
    "shared in a pool of its own": Row(
        "shared_cores", {"cpuset_pool": "web"}, BOUND, said=f"shared_cores, pool web: annotation {LEVEL}"
    ),
    "reclaimed with a tolerance": Row(
        "reclaimed_cores",
        {"suppression_tolerance_rate": "1.5"},
        requests={"resource.katalyst.kubewharf.io/reclaimed_millicpu": "1500"},
        said=f"reclaimed_cores, pool reclaim: annotation {LEVEL}",
    ),
    "system": Row(
        "system_cores", {"cpuset_pool": "reserve"}, said=f"system_cores, pool reserve: annotation {LEVEL}"
    ),
    "no level": Row("", said=""),
    # Reported, and no reason to refuse it.
    "JSON that is not closed": Row(
        "shared_cores",
        others={f"{DOMAIN}/network_enhancement": "{"},
        said=f"shared_cores, pool share: annotation {LEVEL}",
    ),
}


def manifest(name: str, row: Row) -> dict[str, Any]:
    parts = (("cpu", row.cpu), ("memory", row.memory))
    annotations = {f"{DOMAIN}/{kind}_enhancement": json.dumps(dict(keys)) for kind, keys in parts if keys}
    named = {LEVEL: row.level} if row.level else {}
    resources = {"requests": dict(row.requests), "limits": dict(row.requests)}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {**named, **annotations, **row.others}},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
    }


class Commands:
    """Both commands, in a folder of their own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        Path("slo.json").write_text(
            json.dumps(
                {"kind": "ConfigMap", "metadata": {"name": "slo-controller-config"}, "data": {"a": "{}"}}
            )
        )

    def configure(self, on_error: str) -> None:
        Path("config.toml").write_text(CONFIG.format(on_error=on_error))

    def run(self, *arguments: str) -> tuple[int, str]:
        code = main([*arguments, "--config", "config.toml"])
        return code, self._capsys.readouterr().out

    def both(self, row: Row, *arguments: str) -> dict[str, tuple[int, str]]:
        Path("pod.json").write_text(json.dumps(manifest("web", row)))
        return {
            "simulate": self.run("simulate", "-f", "pod.json", *arguments),
            "check-slo": self.run("check-slo", "slo.json", "--pod", "pod.json", *arguments),
        }


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_STATE_DIR", str(tmp_path / "state"))
    return Commands(capsys)


def verdict_lines(out: str) -> list[str]:
    """What a command says of the level and its problems."""
    lines = out.splitlines()
    first = next((n for n, line in enumerate(lines) if " pool " in line or "_cores:" in line), len(lines))
    said = lines[first : first + 1]
    for line in lines[first + 1 :]:
        if not line.startswith("problem: "):
            break
        said.append(line)
    return said


def check(commands: Commands, name: str, row: Row, code: int) -> list[str]:
    """What both commands say of the level, which is the same."""
    found = commands.both(row)
    codes = {command: each for command, (each, _) in found.items()}
    assert codes == {"simulate": code, "check-slo": code}, (name, found)
    said, other = (verdict_lines(out) for _, out in found.values())
    assert said == other, name
    return said


def test_both_commands_refuse_what_katalyst_refuses(commands: Commands) -> None:
    """Also where the daemon would create the pod all the same."""
    commands.configure("fallback")
    for name, row in REFUSED.items():
        said = check(commands, name, row, 1)
        assert f"problem: {row.said}" in said, (name, said)
    commands.configure("reject")
    name, row = next(iter(REFUSED.items()))
    assert f"problem: {row.said}" in check(commands, name, row, 1)


def test_both_commands_accept_what_katalyst_accepts(commands: Commands) -> None:
    commands.configure("reject")
    for name, row in ACCEPTED.items():
        said = check(commands, name, row, 0)
        assert said[:1] == ([row.said] if row.said else []), name
