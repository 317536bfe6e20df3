"""The command `simulate`, as a user runs it."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtimeproxy.cli import main

DOCUMENT = Path(__file__).parents[2] / "policies" / "README.md"
POD = {
    "kind": "Pod",
    "metadata": {
        "name": "trade",
        "labels": {"koordinator.sh/qosClass": "LSR"},
        "annotations": {"scheduling.koordinator.sh/resource-status": '{"cpuset": "0-3"}'},
    },
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "4", "memory": "4Gi"}}}]},
}
BATCH = {
    "kind": "Pod",
    "metadata": {"name": "spark", "labels": {"koordinator.sh/qosClass": "BE"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}]},
}
STRATEGIES = {
    "kind": "ConfigMap",
    "metadata": {"name": "slo-controller-config"},
    "data": {
        "cpu-burst-config": json.dumps(
            {
                "clusterStrategy": {"policy": "auto"},
                "nodeStrategies": [
                    {
                        "name": "gold",
                        "nodeSelector": {"matchLabels": {"pool": "gold"}},
                        "cpuBurstPercent": 200,
                    }
                ],
            }
        )
    },
}
REFUSING = '''
from runtimeproxy.errors import RefusalError
from runtimeproxy.hooks import Policy


class Refusing(Policy):
    """Refuses pods."""

    name = "refusing"

    def container(self, container, node):
        raise RefusalError("not on this node")
'''

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in a folder of its own; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["simulate", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def write(name: str, *objects: object) -> str:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n---\n".join(map(json.dumps, objects)))
    return name


def fields(report: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    (found,) = (each for each in report["pods"][0]["targets"] if each["kind"] == kind)
    return {each["name"]: each for each in found["fields"]}


def test_pools_that_are_computed_of_the_pods_of_a_node_are_not_known(run: Run) -> None:
    write("node/slo.json", STRATEGIES)
    Path("config.toml").write_text("[node]\nshared_pools = 'computed'\n")
    words = ("-f", write("pod.json", BATCH), "--node-objects-dir", "node")
    assert "pools" not in run(*words)[1]
    assert "cpuset  off: not known: pools" in run(*words, "--config", "config.toml")[1]


def test_a_table_of_the_fields(run: Run) -> None:
    write("node/slo.json", STRATEGIES)
    code, out, err = run("-f", write("pod.json", POD), "--node-objects-dir", "node")
    assert (code, err) == (0, "")
    assert out == (
        "default/trade  LSR, Guaranteed\n"
        "pod.json: Pod default/trade\n"
        "\n"
        "pod\n"
        "  FIELD                     REQUESTED  RESULT  CERTAINTY\n"
        "  cgroup[cpu.cfs_quota_us]  400000     -1      depends\n"
        "    cpuset      -1: CPUs that the LSR pod has for itself need no quota = -1\n"
        "    depends on  the node's cgroups\n"
        "\n"
        "container main\n"
        "  FIELD                   REQUESTED  RESULT  CERTAINTY\n"
        "  resources.cpu_quota_us  400000     -1      depends\n"
        "    cpuset      -1: CPUs that the LSR pod has for itself need no quota = -1\n"
        "    depends on  the node's CPUs\n"
        "  resources.cpuset_cpus   -          0-3     depends\n"
        "    cpuset      0-3: CPUs allocated by the scheduler (resource-status) = 0-3\n"
        "    depends on  the node's CPUs\n"
    )


def test_the_documents_example_is_a_real_run(run: Run) -> None:
    text = DOCUMENT.read_text()
    for name in ("pod.yaml", "node/node.yaml"):
        found = re.search(rf"```yaml\n# {name}\n(.*?)```", text, re.DOTALL)
        assert found is not None
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(found[1])
    found = re.search(r"```console\n\$ koord-runtime-proxy simulate (.*?)\n(.*?)```", text, re.DOTALL)
    assert found is not None
    code, out, _ = run(*found[1].split())
    assert (code, out) == (0, found[2])


def test_a_quota_that_systemd_would_round_depends_on_the_driver(run: Run) -> None:
    write("node/node.json", {"kind": "Node", "metadata": {"name": "n"}})
    for cpu, depends in (("1230m", []), ("1234m", ["the kubelet's cgroup driver"])):
        container = {"name": "main", "resources": {"limits": {"cpu": cpu}}}
        pod = write("pod.json", {**BATCH, "spec": {"containers": [container]}})
        code, out, _ = run("-f", pod, "--webhook", "--node-objects-dir", "node", "--output", "json")
        assert code == 0
        assert fields(json.loads(out), "container")["resources.cpu_quota_us"]["dependsOn"] == depends


def test_programs_get_json_or_yaml(run: Run) -> None:
    write("node/slo.json", STRATEGIES)
    arguments = ("-f", write("pod.json", BATCH), "--webhook", "--node-objects-dir", "node", "--output")
    code, out, _ = run(*arguments, "json")
    assert code == 0
    report = json.loads(out)
    assert yaml.safe_load(run(*arguments, "yaml")[1]) == report
    pod = report["pods"][0]
    assert (pod["namespace"], pod["name"], pod["qosClass"]) == ("default", "spark", "BE")
    assert pod["added"]
    assert fields(report, "container")["resources.cpu_shares"] == {
        "name": "resources.cpu_shares",
        "before": "2",
        "after": "512",
        "changed": True,
        "owner": "batch-resource",
        "certainty": "exact",
        "dependsOn": [],
        "changes": [
            {
                "policy": "batch-resource",
                "mode": "enforce",
                "role": "set",
                "wanted": "512",
                "counts": True,
                "reason": "batch-cpu request 500m = 512",
                "note": "",
                "provenance": [],
            }
        ],
    }


def test_strategies_have_their_provenance_and_depend_on_the_nodes_labels(run: Run) -> None:
    write("node/slo.json", STRATEGIES)
    pod = {**BATCH, "metadata": {"name": "web", "labels": {"koordinator.sh/qosClass": "LS"}}}
    arguments = ("-f", write("pod.json", pod), "--node-objects-dir", "node", "--output", "json")
    for more, burst, source in (
        ((), "500000", "cluster strategy of cpu-burst-config in "),
        (("--node-labels", "pool=gold"), "100000", "node strategy gold of cpu-burst-config in "),
    ):
        code, out, _ = run(*arguments, *more)
        assert code == 0
        found = fields(json.loads(out), "container")["cgroup[cpu.cfs_burst_us]"]
        assert found["after"] == burst
        assert any(each.startswith(source) for each in found["changes"][0]["provenance"])


def test_without_a_node_what_is_not_known_is_said(run: Run) -> None:
    code, out, err = run("-f", write("pod.json", POD), "--output", "json")
    assert (code, err) == (0, "")
    (_, container) = json.loads(out)["pods"][0]["targets"]
    remarks = {each["policy"]: each for each in container["remarks"]}
    assert remarks["group-identity"]["kind"] == "off"
    assert remarks["group-identity"]["reason"] == "not known: strategies"
    assert "the strategies" in container["fields"][0]["dependsOn"]
    assert "--node-objects-dir" in run("-f", "pod.json")[1]


def test_standard_input_and_several_files(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(BATCH).encode())))
    code, out, _ = run("-f", write("pod.json", POD), "-f", "-", "--output", "json")
    assert code == 0
    sources = [each["source"] for each in json.loads(out)["pods"]]
    assert sources == ["pod.json: Pod default/trade", "standard input: Pod default/spark"]


def test_a_recorded_call(run: Run) -> None:
    request = {
        "podSandboxId": "x",
        "config": {"metadata": {"name": "main"}, "linux": {"resources": {"cpuQuota": "400000"}}},
        "sandboxConfig": {
            "metadata": {"name": "trade", "namespace": "shop", "uid": "1"},
            "labels": POD["metadata"]["labels"],  # type: ignore[index]
            "annotations": POD["metadata"]["annotations"],  # type: ignore[index]
        },
    }
    code, out, _ = run("-f", write("call.json", request), "--output", "json")
    assert code == 0
    report = json.loads(out)
    assert [each["kind"] for each in report["pods"][0]["targets"]] == ["container"]
    assert fields(report, "container")["resources.cpuset_cpus"]["after"] == "0-3"


def test_a_pod_that_a_policy_refuses(run: Run) -> None:
    Path("policies.d").mkdir()
    Path("policies.d/refusing.py").write_text(REFUSING)
    Path("policies.d/refusing.py").chmod(0o600)
    Path("config.toml").write_text(f'[hooks]\npolicies_dir = "{Path("policies.d").absolute()}"\n')
    code, out, _ = run("-f", write("pod.json", POD), "--config", "config.toml")
    assert code == 1
    assert "  refused  refusing: not on this node\n" in out


def test_hook_servers_are_named_and_not_called(run: Run) -> None:
    hooks = ["PreRunPodSandbox", "PreCreateContainer"]
    registration = {"remote-endpoint": "/run/x.sock", "failure-policy": "Fail", "runtime-hooks": hooks}
    write("hookserver.d/x.json", registration)
    code, out, _ = run(
        "-f",
        write("pod.json", BATCH),
        "--webhook",
        "--hook-config-dir",
        str(Path("hookserver.d").absolute()),
        "--output",
        "json",
    )
    assert code == 0
    report = json.loads(out)
    for target in report["pods"][0]["targets"]:
        assert target["notSimulated"] == ["hook server x.json"]
    assert "hook server x.json" in fields(report, "container")["resources.cpu_shares"]["dependsOn"]


def test_the_quota_of_a_pods_cgroup_is_divided_from_the_kubelets(run: Run) -> None:
    annotations = {"node.koordinator.sh/cpu-normalization-ratio": "2"}
    write("node/node.json", {"kind": "Node", "metadata": {"name": "n", "annotations": annotations}})
    Path("config.toml").write_text("[policies.cpu-normalization]\nenabled = true\n")
    limited = {"name": "b", "resources": {"limits": {"cpu": "1"}}}
    for containers, before, after in (
        ([limited, {**limited, "name": "c"}], "200000", "100000"),
        ([limited, {"name": "c"}], "-1", "-1"),
    ):
        pod = write("pod.json", {"kind": "Pod", "spec": {"containers": containers}})
        code, out, _ = run(
            "-f", pod, "--config", "config.toml", "--node-objects-dir", "node", "--output", "json"
        )
        assert code == 0
        found = fields(json.loads(out), "pod")["cgroup[cpu.cfs_quota_us]"]
        assert (found["before"], found["after"]) == (before, after)


def test_a_pod_that_is_left_alone(run: Run) -> None:
    labels = {"koordinator.sh/qosClass": "BE", "runtimeproxy.koordinator.sh/skip-hookserver": "true"}
    code, out, _ = run("-f", write("pod.json", {**BATCH, "metadata": {"name": "x", "labels": labels}}))
    assert code == 0
    assert (
        "note  the label runtimeproxy.koordinator.sh/skip-hookserver says that policies leave it alone" in out
    )
    assert out.count("nothing is changed here") == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "the following arguments are required: -f/--file"),
        (("-f", "missing.yaml"), "missing.yaml: does not exist"),
        (("-f", "service.json"), "service.json: has no pod: found Service; give one of Pod, "),
        (
            ("-f", "bad.json"),
            "bad.json: spec.containers[0].resources.limits.cpu: is not a quantity: '4 CPUs'",
        ),
        (
            ("-f", "pod.json", "--node-objects-dir", "pod.json"),
            "pod.json: is not a folder",
        ),
        (("-f", "pod.json", "--node-objects-dir", "bad"), "bad/slo.json: cpu-burst-config: "),
        (("-f", "pod.json", "--node-labels", "x"), "--node-labels: 'x' is not KEY=VALUE"),
        (("-f", "pod.json", "--output", "xml"), "invalid choice: 'xml'"),
    ],
)
def test_bad_input_is_one_sentence(run: Run, arguments: tuple[str, ...], reason: str) -> None:
    write("pod.json", POD)
    write("service.json", {"kind": "Service"})
    container = {"name": "a", "resources": {"limits": {"cpu": "4 CPUs"}}}
    write("bad.json", {"kind": "Pod", "spec": {"containers": [container]}})
    write("bad/slo.json", {**STRATEGIES, "data": {"cpu-burst-config": '{"clusterStrategy": 3}'}})
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1
