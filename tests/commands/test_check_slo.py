"""The command `check-slo`, as a user runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.cli import main
from runtimeproxy.hooks.views import Resources
from runtimeproxy.node.inputs import STATE_FILE
from runtimeproxy.node.object_folder import FolderObjects, StrategyTexts
from runtimeproxy.node.objects import NodeObject
from runtimeproxy.pods.checkpoint.codec import RowChange, RowKind
from runtimeproxy.pods.checkpoint.file import CheckpointFile
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.qosmanager.manager import BUILT_IN
from runtimeproxy.slo.loading import Text
from tests.cgroups.trees import make_v2
from tests.katalyst.objects import custom_config, target

DOCUMENT = Path(__file__).parents[2] / "policies" / "STRATEGIES.md"

KINDS = "ConfigMap, Node, NodeResourceTopology, NodeSLO, AdminQoSConfiguration, KatalystCustomConfig"
CONFIG_MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
    "data": {
        "cpu-burst-config": json.dumps(
            {
                "clusterStrategy": {"policy": "auto"},
                "nodeStrategies": [
                    {
                        "name": "gold",
                        "nodeSelector": {"matchLabels": {"pool": "gold"}},
                        "cpuBurstPercent": 500,
                    }
                ],
                "podStrategies": [{"name": "tests", "namespace": "test", "policy": "none"}],
            }
        )
    },
}
NODE = {"kind": "Node", "metadata": {"name": "node-1", "labels": {"pool": "gold"}}, "status": {}}


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in a folder of its own; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_STATE_DIR", str(tmp_path / "state"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["check-slo", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


Run = Callable[..., tuple[int, str, str]]


def write(name: str, *objects: object) -> str:
    Path(name).write_text("\n---\n".join(map(json.dumps, objects)))
    return name


def test_the_documents_example_is_a_real_run(run: Run) -> None:
    text = DOCUMENT.read_text()
    for name in ("slo.yaml", "pod.yaml"):
        found = re.search(rf"```yaml\n# {name}\n(.*?)```", text, re.DOTALL)
        assert found is not None
        Path(name).write_text(found[1])
    found = re.search(r"```console\n\$ koord-runtime-proxy check-slo (.*?)\n(.*?)```", text, re.DOTALL)
    assert found is not None
    code, out, _ = run(*found[1].split())
    assert out.replace(str(Path("state").resolve()), "/var/lib/koord-runtime-proxy") == found[2]
    assert code == 1


CONFIG_NAME = "slo-controller-config"
OTHER_NAME = {**CONFIG_MAP, "metadata": {"name": "slo-controller-confg"}}
NOTHING_THAT_IS_READ = {
    "another name": (
        json.dumps(OTHER_NAME),
        f"ConfigMap 'slo-controller-confg' is not read; {CONFIG_NAME} is; did you mean {CONFIG_NAME}?",
    ),
    "a quite different name": (
        json.dumps({**CONFIG_MAP, "metadata": {"name": "other"}}),
        "ConfigMap 'other' is not read; slo-controller-config is",
    ),
    "a misspelled kind": (
        json.dumps({**CONFIG_MAP, "kind": "ConfigMpa"}),
        f"ConfigMpa is not read; {KINDS} are; did you mean ConfigMap?",
    ),
    "another kind": (
        json.dumps({"kind": "Deployment", "metadata": {"name": "a"}}),
        f"Deployment is not read; {KINDS} are",
    ),
    "empty": ("", "is empty"),
    "comments": ("# strategies\n", "is empty"),
    "a text": ("strategies", "a text is not a Kubernetes object"),
    "cut before the kind": (
        "apiVersion: v1\ndata:\n  cpu-burst-config: '{}'\n",
        "has an object without kind or name; is it half written?",
    ),
    "cut before the data": (
        "kind: ConfigMap\nmetadata:\n  name: slo-controller-config\n",
        "ConfigMap: has no data; is it half written?",
    ),
}


@pytest.mark.parametrize("name", NOTHING_THAT_IS_READ)
def test_a_file_that_holds_nothing_to_check_is_an_error(run: Run, name: str) -> None:
    content, problem = NOTHING_THAT_IS_READ[name]
    Path("slo.yaml").write_text(content)
    code, out, _ = run("slo.yaml")
    assert code == 1
    assert f"error: slo.yaml: {problem}\n" in out
    assert out.splitlines()[-1].startswith("not valid: ")
    # As much beside a file that is good.
    assert run("slo.yaml", write("good.json", CONFIG_MAP))[0] == 1


def test_other_objects_of_a_file_that_is_read_are_notes(run: Run) -> None:
    other = {**CONFIG_MAP, "metadata": {"name": "koord-scheduler-config"}}
    code, out, _ = run(write("slo.json", {"kind": "List", "items": [other, CONFIG_MAP]}))
    assert (code, out.splitlines()[-1]) == (0, "valid")
    assert "note: slo.json: ConfigMap 'koord-scheduler-config' is not read" in out


def test_a_node_alone_is_nothing_to_check(run: Run) -> None:
    code, out, _ = run(write("node.json", NODE))
    assert (code, out.splitlines()[-1]) == (0, "nothing to check")


POD = {
    "kind": "Pod",
    "metadata": {"name": "t", "annotations": {"koordinator.sh/cpuBrust": "{}", "koordinator.sh/new": ""}},
    "spec": {"containers": [{"name": "a"}]},
}


@pytest.mark.parametrize(
    ("data", "pod", "warnings"),
    [
        ({"cpu-burst-config": '{"clusterStrategy": {"cpuBurstPercnt": 200}}'}, None, 1),
        ({"cpu-burst-config": '{"clusterStrategy": {"burstShares": 200}}'}, None, 1),
        ({"cpu-brust-config": "{}", "my-extension": "{}"}, None, 2),
        ({"cpu-burst-config": "{}"}, POD, 2),
    ],
)
def test_unknown_names_are_errors_only_if_asked_for(
    run: Run, data: dict[str, str], pod: object, warnings: int
) -> None:
    words = [write("slo.json", {**CONFIG_MAP, "data": data})]
    words += ["--pod", write("pod.json", pod)] if pod is not None else []
    code, out, _ = run(*words)
    assert (code, out.splitlines()[-1]) == (0, "valid")
    assert out.count("warning: ") == warnings
    code, out, _ = run(*words, "--strict")
    assert code == 1
    assert out.count("error: ") == warnings
    assert not json.loads(run(*words, "--strict", "--output", "json")[1])["valid"]


def test_other_warnings_are_none_of_the_strict_ones(run: Run) -> None:
    text = '{"clusterStrategy": {"policy": "auto", "Policy": "none"}}'
    code, out, _ = run(write("slo.json", {**CONFIG_MAP, "data": {"cpu-burst-config": text}}), "--strict")
    assert (code, out.count("warning: ")) == (0, 1)


def test_every_json_of_the_document_is_valid(run: Run) -> None:
    for found in re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        data = {"cpu-burst-config": found}
        code, out, _ = run(write("slo.json", {**CONFIG_MAP, "data": data}))
        assert code == 0, out


def test_strategies_of_the_node_in_the_files(run: Run) -> None:
    code, out, _ = run(write("slo.json", {"kind": "List", "items": [CONFIG_MAP, NODE]}))
    assert code == 0
    assert "cpuBurstPercent             500   node strategy gold of cpu-burst-config in slo.json\n" in out
    assert out.endswith("\nvalid\n")
    code, out, _ = run("slo.json", "--node-labels", "pool=blue,disk=ssd")
    assert "node strategy" not in out


def test_json_has_every_field_with_its_source(run: Run) -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "t", "namespace": "test"},
        "spec": {"containers": [{"name": "a"}]},
    }
    code, out, _ = run(write("slo.json", CONFIG_MAP), "--pod", write("pod.json", pod), "--output", "json")
    assert code == 0
    report: dict[str, Any] = json.loads(out)
    assert report["valid"]
    assert report["strategies"]["cpu-burst-config"] == [
        {
            "path": "policy",
            "value": "auto",
            "source": "cluster strategy",
            "file": "slo.json",
            "key": "cpu-burst-config",
        },
        {"path": "cpuBurstPercent", "value": 1000, "source": "default"},
        {"path": "cfsQuotaBurstPercent", "value": 300, "source": "default"},
        {"path": "cfsQuotaBurstPeriodSeconds", "value": -1, "source": "default"},
        {"path": "sharePoolThresholdPercent", "value": 50, "source": "default"},
    ]
    assert report["pod"]["kubeQOSClass"] == "BestEffort"
    assert report["pod"]["strategy"][0]["strategy"] == "tests"
    assert len(report["strategies"]["resource-qos-config"]) > 100
    assert report["runningPods"]["unknown"].startswith("not known, there is no checkpoint")


def test_the_document_names_each_plugin_that_uses_a_strategy() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    used_by = [line.split("|")[3] for line in rows]
    # Katalyst's have no strategy of Koordinator.
    for plugin in (name for name in BUILT_IN if not name.startswith("katalyst-")):
        assert any(f"`{plugin}`" in each for each in used_by), plugin
    left = [line for line in rows if "not applied" in line]
    assert not any(key in line for line in left for key in ("cpu-burst-config", "resource-threshold-config"))


def test_all_sources_of_a_node(run: Run) -> None:
    slo = {
        "kind": "NodeSLO",
        "metadata": {"name": "node-1"},
        "spec": {"systemStrategy": {"watermarkScaleFactor": 7}},
    }
    other = {**NODE, "metadata": {"name": "node-2", "labels": {"pool": "blue"}}}
    Path("folder").mkdir()
    write("folder/node.yaml", NODE, slo, other)
    Path("folder/.hidden.yaml").write_text("{")
    Path("folder/cpu-normalization-config").write_text('{"enable": true, "defaultRatio": 1.2}')
    bandwidth = 'node.koordinator.sh/network-bandwidth=10G,a={"b": 1, "c": 2}'
    code, out, err = run("folder", "--node-annotations", bandwidth)
    assert (code, err) == (0, "")
    assert "NodeSLO systemStrategy in folder/node.yaml" in out
    assert "1.2   cluster strategy of cpu-normalization-config in folder/cpu-normalization-config" in out
    assert "10000000000  node annotation" in out
    assert "note: folder/node.yaml: Node 'node-2' is not read" in out


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"cpu-burst-config": "{"}, "error: slo.json: cpu-burst-config is not valid JSON"),
        ({"cpu-burst-config": 3}, "error: slo.json: ConfigMap: data.cpu-burst-config: is a number"),
    ],
)
def test_problems_of_strategies_are_shown(run: Run, data: object, reason: str) -> None:
    code, out, _ = run(write("slo.json", {**CONFIG_MAP, "data": data}))
    assert code == 1
    assert reason in out
    assert "not valid: 1 error" in out
    code, out, _ = run("slo.json", "--output", "json")
    assert code == 1
    (problem,) = json.loads(out)["problems"]
    assert problem["severity"] == "error"


def test_a_text_that_is_no_yaml_is_a_problem(run: Run) -> None:
    Path("slo.yaml").write_text("a: &x [1]\nb: *x\n")
    code, out, _ = run("slo.yaml")
    assert code == 1
    assert "error: slo.yaml: line 1 column 4: anchors are not allowed" in out


def test_a_key_in_two_files_is_a_problem(run: Run) -> None:
    code, out, _ = run(write("a.json", CONFIG_MAP), write("b.json", CONFIG_MAP))
    assert code == 1
    assert "error: b.json: cpu-burst-config: is in a.json, too, which is used" in out


def test_an_invalid_annotation_of_the_pod_is_a_problem(run: Run) -> None:
    pod = {"kind": "Pod", "metadata": {"annotations": {"koordinator.sh/cpuBurst": "{"}}}
    code, out, _ = run(write("slo.json", CONFIG_MAP), "--pod", write("pod.json", pod))
    assert code == 1
    assert "error: pod.json: koordinator.sh/cpuBurst is not valid JSON" in out
    assert "last good values" not in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: FILE"),
        (["missing.yaml"], "missing.yaml: does not exist"),
        (["x" * 300], "cannot be read: File name too long"),
        (["slo.json", "--node-labels", "pool"], "--node-labels: 'pool' is not KEY=VALUE"),
        (["slo.json", "--pod", "slo.json"], "slo.json: has no pod: found ConfigMap; give one of Pod, "),
        (["slo.json", "--output", "xml"], "invalid choice: 'xml'"),
        (["slo.json", "--node-label", "a=b"], "unknown flag --node-label; did you mean --node-labels?"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], reason: str) -> None:
    write("slo.json", CONFIG_MAP)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert reason in err


CPU = Resources(cpu_quota_us=100_000, cpu_period_us=100_000)


def save_pods(state: Path, *pods: PodRecord) -> None:
    """Writes a checkpoint with these pods, each with a container that has one CPU as its limit."""
    containers = [
        ContainerRecord(id=f"c-{pod.id}", pod_id=pod.id, name="main", requested=CPU, state=Lifecycle.RUNNING)
        for pod in pods
    ]
    file = CheckpointFile(state)
    file.write(
        [
            *(RowChange(RowKind.POD, each.id, each) for each in pods),
            *(RowChange(RowKind.CONTAINER, each.id, each) for each in containers),
        ]
    )
    file.close()


def record(number: int, **values: Any) -> PodRecord:
    return PodRecord(id=f"p{number}", cgroup_parent="/kubepods/burstable/pod", **values)


@pytest.fixture
def burst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with CPU burst, and the policy that sets it."""
    (tmp_path / "cgroup").mkdir()
    make_v2(tmp_path / "cgroup", "kubepods/burstable/pod")
    (tmp_path / "config.toml").write_text("[policies.cpu-burst]\nenabled = true\n")
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_CGROUPS_ROOT", str(tmp_path / "cgroup"))
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_CONFIG", str(tmp_path / "config.toml"))


@pytest.mark.usefixtures("burst")
def test_running_pods_are_counted_from_the_checkpoint(run: Run, tmp_path: Path) -> None:
    save_pods(
        tmp_path / "state",
        record(1, namespace="prod"),
        record(2, namespace="test"),
        record(3, namespace="prod", annotations={"koordinator.sh/cpuBurst": '{"policy": "none"}'}),
        record(4, namespace="prod", labels={"runtimeproxy.koordinator.sh/skip-hookserver": "true"}),
        record(5, namespace="prod", state=Lifecycle.STOPPED),
    )
    before = (tmp_path / "state" / "records.db").read_bytes()
    code, out, _ = run(write("slo.json", CONFIG_MAP))
    assert code == 0
    assert out.startswith("note: no labels of a node are known, so no node strategy applies")
    assert out.partition("running pods: ")[2] == (
        "1 of 4 get other values than without strategies\n"
        "  policy cpu-burst: 1\n"
        "  cpuBurst: 1\n"
        "  left alone by their label: 1\n"
        "valid\n"
    )
    _, out, _ = run("slo.json", "--output", "json")
    found = json.loads(out)["runningPods"]
    assert (found["touched"], found["byPolicy"]) == (1, {"cpu-burst": 1})
    assert (tmp_path / "state" / "records.db").read_bytes() == before


def test_only_pods_whose_values_change_are_counted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text("[policies.cpu-burst]\nenabled = false\n")
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_CONFIG", str(tmp_path / "config.toml"))
    spec = '{"containers": {"main": {"limits": {"kubernetes.io/batch-cpu": "700"}}}}'
    batch = {"node.koordinator.sh/extended-resource-spec": spec}
    save_pods(
        tmp_path / "state",
        record(1, labels={"koordinator.sh/qosClass": "BE"}, annotations=batch),
        record(2, labels={"koordinator.sh/qosClass": "BE"}),
        record(3, labels={"koordinator.sh/qosClass": "LS"}),
        record(4),
    )
    only_batch = (
        "running pods: 1 of 4 get other values than without strategies\n  policy batch-resource: 1\nvalid\n"
    )
    # Without the policy cpu-burst its key has no effect on any pod.
    data = {
        "cpu-burst-config": '{"clusterStrategy": {"policy": "auto"}}',
        "resource-threshold-config": '{"clusterStrategy": {"enable": true, "cpuSuppressPolicy": "cfsQuota"}}',
    }
    _, out, _ = run(write("slo.json", {**CONFIG_MAP, "data": data}))
    assert only_batch in out
    # The ratio is the cluster's here: a quota is divided by it.
    data = {"cpu-normalization-config": '{"enable": true, "defaultRatio": 1.4}'}
    _, out, _ = run(write("slo.json", {**CONFIG_MAP, "data": data}))
    assert only_batch in out


@pytest.mark.usefixtures("burst")
def test_running_pods_are_compared_with_the_present_strategies(run: Run, tmp_path: Path) -> None:
    pods = (record(1, namespace="prod"), record(2, namespace="test"), record(3, namespace="dev"))
    save_pods(tmp_path / "state", *pods)
    texts = StrategyTexts()
    key = "cpu-burst-config"
    config = {key: Text("x", json.dumps({"podStrategies": [{"namespace": "dev", "policy": "auto"}]}))}
    texts.update(FolderObjects(config=config), NodeObject())
    (tmp_path / "state" / STATE_FILE).write_text(json.dumps({"strategies": texts.saved()}))
    _, out, _ = run(write("slo.json", CONFIG_MAP))
    assert "running pods: 2 of 3 get other values than without strategies\n" in out
    assert "  other values than by the present strategies: 1\n" in out
    (tmp_path / "state" / STATE_FILE).write_text("{}")
    _, out, _ = run("slo.json")
    assert "present strategies" not in out


def test_a_pod_that_is_left_alone(run: Run) -> None:
    labels = {"runtimeproxy.koordinator.sh/skip-hookserver": "true"}
    pod = write("pod.json", {"kind": "Pod", "metadata": {"labels": labels}})
    code, out, _ = run(write("slo.json", CONFIG_MAP), "--pod", pod)
    assert code == 0
    assert (
        "note: the pod's label runtimeproxy.koordinator.sh/skip-hookserver says that it is left alone" in out
    )


def test_an_unusable_checkpoint_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "records.db").write_text("not a database" * 100)
    code, out, _ = run(write("slo.json", CONFIG_MAP))
    assert code == 0
    assert "running pods: not known: " in out


def test_a_checkpoint_that_cannot_be_looked_at_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # As that of a daemon whose state folder only root may enter.
    monkeypatch.setenv("KOORD_RUNTIMEPROXY_STATE_DIR", "/" + "x" * 300)
    code, out, _ = run(write("slo.json", CONFIG_MAP))
    assert code == 0
    assert "running pods: not known, the checkpoint " in out
    assert "cannot be read: File name too long" in out


def test_files_without_strategies_are_said(run: Run) -> None:
    code, out, _ = run(write("node.json", NODE))
    assert code == 0
    assert (
        "note: no strategies are in the files, neither a ConfigMap slo-controller-config nor a NodeSLO" in out
    )


def test_what_cannot_be_printed_is_escaped(run: Run) -> None:
    config = {"clusterStrategy": {"a\n\x1b\ud800": 1}}
    objects = {**CONFIG_MAP, "data": {"cpu-burst-config": json.dumps(config)}}
    code, out, _ = run(write("slo.json", objects))
    assert code == 0
    assert "clusterStrategy.a\\n\\x1b\\ud800 is not a known field" in out
    code, out, _ = run("slo.json", "--output", "json")
    assert json.loads(out)["problems"][0]["path"] == "clusterStrategy.a\n\x1b\ud800"


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "slo.json").write_text(json.dumps(CONFIG_MAP))
    command = [
        sys.executable,
        "-m",
        "runtimeproxy",
        "check-slo",
        str(tmp_path / "slo.json"),
        "--output",
        "json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 128 + 13


def test_nothing_else_loads_what_the_command_needs() -> None:
    code = (
        "import sys\n"
        "from runtimeproxy.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "found = {'runtimeproxy.commands.check_slo', 'runtimeproxy.slo.loading', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {found}' if found else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_targets_of_katalysts_dynamic_configuration(run: Run) -> None:
    """Which one applies to a node of this name and with these labels; an invalid one is an error."""
    on = {"reclaimedResourceConfig": {"enableReclaim": True}, "evictionConfig": {}}
    file = write(
        "targets.yaml",
        custom_config({0: ["pool"]}),
        target("all"),
        target("gold", selector="pool=gold", config=on),
        target("one", nodes=["node-9"], last="876000h"),
    )
    code, out, _ = run(file, "--node-labels", "pool=gold", "--node-name", "node-1")
    assert code == 0
    lines = out.splitlines()
    assert "target all: does not apply: gold applies by nodeLabelSelector, which goes before global" in lines
    assert "target gold: applies: selects the node by its labels" in lines
    assert "  reclaimedResourceConfig.enableReclaim  true" in lines
    assert "target one: does not apply: ephemeralSelector.nodeNames has no node-1" in lines
    place = f"{file}: AdminQoSConfiguration gold: spec.config.evictionConfig"
    assert f"warning: {place} is not supported, and is not used" in lines
    assert lines[-1] == "valid"
    _, out, _ = run(file, "--node-name", "node-9", "--output", "json")
    report = json.loads(out)
    applied = [each["name"] for each in report["katalystTargets"] if each["isApplied"]]
    assert (applied, report["katalystConfig"], report["valid"]) == (["one"], {}, True)
    assert "give --node-name" in run(file)[1]
    code, out, _ = run(write("more.yaml", target("all"), target("other")))
    assert code == 1
    assert "error: AdminQoSConfiguration other: is for all nodes, as all is" in out
