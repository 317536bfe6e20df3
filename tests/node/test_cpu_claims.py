"""CPUs of DRA claims, as dra-driver-cpu writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from runtimeproxy.node.cpu_claims import MAX_BYTES, CpuClaims, claims_among, claims_in_env
from tests.lab.cpu_claims import claim_file, device_of


def test_each_file_has_the_cpus_of_a_claim(tmp_path: Path) -> None:
    claims = CpuClaims(tmp_path)
    claims.look()
    assert not claims.cpus
    assert not claims.problems
    claim_file(tmp_path, "a", "2-3,6")
    claim_file(tmp_path, "b", "4")
    (tmp_path / "nvidia.com-gpu.json").write_text("no JSON")
    claims.look()
    assert claims.cpus == {device_of("a"): {2, 3, 6}, device_of("b"): {4}}
    first = claims.cpus
    claims.look()
    assert claims.cpus is first
    # A claim that is prepared again, and one that is not any more.
    claim_file(tmp_path, "a", "7")
    claim_file(tmp_path, "b", None)
    claims.look()
    assert claims.cpus == {device_of("a"): {7}}
    assert not claims.problems


def test_the_first_versions_have_one_file(tmp_path: Path) -> None:
    devices = [
        {"name": f"claim-{uid}", "containerEdits": {"env": [f"DRA_CPUSET_{uid}={cpus}"]}}
        for uid, cpus in (("a", "0-1"), ("b", "3"))
    ]
    (tmp_path / "dra.cpu.json").write_text(json.dumps({"kind": "dra.k8s.io/cpu", "devices": devices}))
    claims = CpuClaims(tmp_path)
    claims.look()
    assert claims.cpus == {device_of("a"): {0, 1}, device_of("b"): {3}}


GOOD = {"DRA_CPUSET_x": "1", "DRA_CPUSET_ASSIGNED": "1"}


@pytest.mark.parametrize(
    ("text", "cpus", "problem"),
    [
        pytest.param("{", {}, "dra.k8s.io-cpu_claim-x.json: line 1", id="half-written"),
        pytest.param("[]", {}, "is a list", id="list"),
        pytest.param('{"kind": 1}', {}, "kind", id="kind"),
        pytest.param('{"kind": "vendor.com/cpu", "devices": 1}', {}, "", id="of-another-driver"),
        pytest.param('{"kind": "dra.k8s.io/cpu", "devices": {}}', {}, "devices", id="devices"),
        pytest.param('{"kind": "dra.k8s.io/cpu", "devices": [{"name": 1}]}', {}, "name", id="name"),
        pytest.param(" " * (MAX_BYTES + 1), {}, "more than", id="large"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_problem(
    tmp_path: Path, text: str, cpus: Mapping[str, frozenset[int]], problem: str
) -> None:
    (tmp_path / "dra.k8s.io-cpu_claim-x.json").write_text(text)
    claim_file(tmp_path, "good", "5")
    claims = CpuClaims(tmp_path)
    claims.look()
    assert claims.cpus == {device_of("good"): {5}, **cpus}
    assert len(claims.problems) == bool(problem)
    assert problem in "".join(claims.problems)


@pytest.mark.parametrize(
    ("variables", "cpus", "problem"),
    [
        pytest.param(GOOD, {1}, "", id="two-variables"),
        pytest.param({"DRA_CPUSET_x": "1", "PATH": "/bin"}, {1}, "", id="others"),
        pytest.param({"DRA_CPUSET_x": "dynamic"}, set(), "DRA_CPUSET_x", id="no-list"),
        pytest.param({"PATH": "/bin"}, set(), "has no variable", id="none"),
    ],
)
def test_the_cpus_of_a_claim_are_in_its_variables(
    tmp_path: Path, variables: Mapping[str, str], cpus: set[int], problem: str
) -> None:
    claim_file(tmp_path, "x", variables)
    claims = CpuClaims(tmp_path)
    claims.look()
    # Even so the driver binds the container.
    assert claims.cpus == {device_of("x"): cpus}
    assert problem in "".join(claims.problems)
    assert len(claims.problems) == bool(problem)


def test_half_a_file_takes_nothing_away(tmp_path: Path) -> None:
    claims = CpuClaims(tmp_path)
    path = claim_file(tmp_path, "x", "1")
    claims.look()
    text = path.read_text()
    path.write_text(text[:20])
    claims.look()
    assert claims.cpus == {device_of("x"): {1}}
    assert len(claims.problems) == 1
    path.write_text(text)
    claims.look()
    assert claims.cpus == {device_of("x"): {1}}
    assert not claims.problems


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    claim_file(tmp_path, "x", "1")
    claims = CpuClaims(tmp_path)
    claims.look()
    tmp_path.chmod(0)
    try:
        claims.look()
    finally:
        tmp_path.chmod(0o700)
    assert claims.cpus == {device_of("x"): {1}}
    assert "cannot be read" in claims.problems[0]


def test_a_container_names_its_claims_by_device() -> None:
    assert claims_among(["nvidia.com/gpu=0", device_of("a"), f"dra.k8s.io/cpu={'x' * 300}"]) == (
        device_of("a"),
    )
    many = [device_of(str(number)) for number in range(100)]
    assert claims_among(many) == tuple(many[:64])


def test_a_variable_names_a_claim_if_the_node_has_it() -> None:
    """The author of a pod may set variables like those of the driver."""
    known = {device_of("a"): frozenset({1})}
    assert claims_in_env(["PATH", "DRA_CPUSET_a", "DRA_CPUSET_b"], known) == (device_of("a"),)
    assert claims_in_env(["DRA_CPUSET_a"], {}) == ()
