"""The list of built-in policies, the files and the README agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import policies
from runtimeproxy.hooks import ContainerChange, ContainerView, Hook, PodView
from runtimeproxy.hooks.decision import evaluate
from runtimeproxy.hooks.loaded import overridden_methods
from runtimeproxy.hooks.loading import built_in, checked, import_class, load
from runtimeproxy.hooks.policy import METHOD_HOOKS
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.node.snapshot import FIELDS, Input, Node
from runtimeproxy.qos import QoSClass

FOLDER = Path(policies.__file__).parent
NO_POLICIES = {"__init__", "annotations", "device_allocations", "host_applications", "template"}
README = (FOLDER / "README.md").read_text()


def test_each_file_holds_one_listed_policy() -> None:
    listed = [reference.partition(":")[0] for reference in policies.BUILT_IN]
    files = {f"policies.{path.stem}" for path in FOLDER.glob("*.py") if path.stem not in NO_POLICIES}
    assert len(listed) == len(set(listed))
    assert set(listed) == files


def test_importing_the_package_imports_no_policy() -> None:
    code = "import sys, policies; print([name for name in sys.modules if name.startswith('policies.')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


def test_loading_with_default_options_imports_nothing_heavy() -> None:
    code = (
        "import sys; from runtimeproxy.hooks.loading import *; PolicyLoader().load(PolicySources(), {});"
        "print(sorted({'pydantic', 'grpc', 'google.protobuf', 'hypothesis'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


def test_built_in_policies_are_on_where_koordinators_gate_is() -> None:
    """Beside `gpu-env`, a stated difference."""
    assert [policy.name for policy in load(built_in())] == [
        "batch-resource",
        "cpuset",
        "group-identity",
        "cpu-burst",
        "gpu-env",
    ]
    others = {policy.name for policy in built_in() if not policy.is_default}
    assert others == {
        "accelerators",
        "block-io",
        "core-sched",
        "cpu-idle",
        "cpu-normalization",
        "katalyst-pools",
        "katalyst-qos",
        "memory-qos",
        "network-qos",
        "oom-score",
        "rdma-devices",
        "resctrl",
        "startup-boost",
        "system-config",
    }
    enabled = {name: PolicySettings(enabled=True) for name in others}
    assert others <= {policy.name for policy in load(built_in(), enabled)}


def test_the_template_fulfils_the_contract() -> None:
    (template,) = checked([import_class("policies.template:Template")])
    assert template.name not in {policy.name for policy in built_in()}


@pytest.mark.parametrize("reference", policies.BUILT_IN)
def test_each_policy_declares_the_inputs_that_it_reads(reference: str) -> None:
    """A change of one that is not declared would not count for what runs."""
    (policy,) = checked([import_class(reference)])
    tree = ast.parse((FOLDER / f"{reference.partition(':')[0].rpartition('.')[2]}.py").read_text())
    read = {
        each.attr
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "node"
    }
    methods = {"strategy_for": Input.STRATEGIES, "requests_of": Input.POD_REQUESTS}
    inputs = {name: of for of, names in FIELDS.items() for name in names} | methods
    declared = policy.inputs | policy.optional_inputs
    if policy.features or policy.optional_features:
        declared |= {Input.CGROUPS}
    assert {inputs[name] for name in read & inputs.keys()} <= declared


@pytest.mark.parametrize("reference", policies.BUILT_IN)
def test_the_readme_names_each_policy_with_its_methods_and_options(reference: str) -> None:
    (policy,) = checked([import_class(reference)])
    row = next(line for line in README.splitlines() if line.startswith(f"| `{policy.name}`"))
    ((state, methods),) = re.findall(r"\| (on|off) \| \d+ \| ([^|]*) \|", row)
    assert (state == "on") is policy.is_default
    assert tuple(re.findall(r"`(\w+)`", methods)) == overridden_methods(policy)
    assert f" {policy.priority} " in row
    options = policy.options_type
    if options is not None:
        assert is_dataclass(options)
        for option in fields(options):
            assert f"| `{policy.name}` | `{option.name}` |" in README


def test_the_readme_names_each_method() -> None:
    for method in METHOD_HOOKS:
        assert re.search(rf"^\| .*`{method}\(\w", README, re.MULTILINE)


def test_the_policy_of_the_readme_works() -> None:
    example = next(
        block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class " in block
    )
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    namespace: dict[str, object] = {"__name__": "example"}
    exec(compile(ast.parse(example), "README.md", "exec"), namespace)  # noqa: S102 - our own text
    example_class = next(value for key, value in namespace.items() if key == "QuietNeighbour")
    (policy,) = load(checked([example_class]))
    for qos, shares in ((QoSClass.BE, 2), (QoSClass.LS, None)):
        pod = PodView(qos=qos)
        decision = evaluate([policy], ContainerView(pod=pod), Node(), hook=Hook.PRE_CREATE_CONTAINER)
        change = decision.change
        assert isinstance(change, ContainerChange | None)
        assert (change and change.resources and change.resources.cpu_shares) == shares
