"""Koordlets by their processes, and what their flags turn on."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import policies
from runtimeproxy.node.koordlet import HOOKS, POLICY_GATES, Koordlet, KoordletLook, gates_of, koordlets

DEFAULT = {"BatchResource", "CPUSetAllocator", "GroupIdentity", "CPUBurst"}


def process(proc: Path, pid: int, *arguments: str, name: str = "koordlet") -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_bytes(b"".join(each.encode() + b"\0" for each in (name, *arguments)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), DEFAULT),
        (("--feature-gates=BatchResource=false",), DEFAULT - {"BatchResource"}),
        (("-feature-gates", "GPUEnvInject=true,CPUBurst=False"), (DEFAULT | {"GPUEnvInject"}) - {"CPUBurst"}),
        (("--feature-gates=AllBeta=false",), set()),
        (
            ("--feature-gates=AllAlpha=true, CgroupReconcile=f",),
            set(POLICY_GATES.values()) - {"CgroupReconcile"},
        ),
        (("--feature-gates=AllBeta=false,CPUSetAllocator=t",), {"CPUSetAllocator"}),
        (
            ("--feature-gates=BatchResource=false", "--feature-gates=GroupIdentity=0"),
            {"CPUSetAllocator", "CPUBurst"},
        ),
        (("--feature-gates=Accelerators=true,Unknown,=,,",), DEFAULT),
        (("--v=4", "--other=--feature-gates"), DEFAULT),
    ],
)
def test_gates(tmp_path: Path, arguments: tuple[str, ...], expected: set[str]) -> None:
    process(tmp_path, 7, *arguments)
    (found,) = koordlets(tmp_path)
    assert found.gates == expected


@pytest.mark.parametrize(
    ("arguments", "uses_nri"),
    [
        ((), True),
        (("--enable-nri-runtime-hook=false",), False),
        (("-enable-nri-runtime-hook=F",), False),
        (("--enable-nri-runtime-hook=true",), True),
        (("--enable-nri-runtime-hook", "false"), True),  # a bool of Go takes its value after = only
    ],
)
def test_nri(tmp_path: Path, arguments: tuple[str, ...], *, uses_nri: bool) -> None:
    process(tmp_path, 7, *arguments)
    assert [each.uses_nri for each in koordlets(tmp_path)] == [uses_nri]


def test_what_policies_and_koordlet_share() -> None:
    found = Koordlet(7, True, gates_of("koordlet\0--feature-gates=GPUEnvInject=true,CPUBurst=false\0"))
    assert found.shared(["gpu-env", "cpuset", "cpu-burst", "cpuset", "mine", "koordlet.json"]) == [
        "cpuset",
        "gpu-env",
    ]


def test_the_gates_are_those_of_policies_of_the_program() -> None:
    places = (each.split(":") for each in policies.BUILT_IN)
    names = {getattr(import_module(module), name).name for module, name in places}
    assert names >= POLICY_GATES.keys() > HOOKS


def test_one_look_counts_for_a_time(tmp_path: Path) -> None:
    now_s = 0.0
    look = KoordletLook(tmp_path, lambda: now_s)
    assert look.find() == ()
    process(tmp_path, 7)
    process(tmp_path, 8, name="other")
    now_s = 29.0
    assert look.find() == ()
    now_s = 30.0
    assert [each.pid for each in look.find()] == [7]
