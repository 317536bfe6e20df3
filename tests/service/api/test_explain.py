"""Explain: which pod is meant, and each field with all that led to its value."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from cri_api.runtimeproxy.v1 import api_pb2, api_pb2_grpc
from runtimeproxy.pods.records import ContainerRecord, Lifecycle, PodRecord
from runtimeproxy.pods.store import PodStore
from runtimeproxy.service.api.pods import AmbiguousPodError, UnknownPodError, find_containers, find_pod
from runtimeproxy.testing import FakeRuntime
from tests.daemon.conftest import Daemons
from tests.daemon.driving import BATCH_SHARES, GIVES_ENV, batch_pod, policy_file
from tests.daemon.driving import pod as named_pod
from tests.lab.cri_client import CriClient
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess
from tests.service.api.conftest import status_of
from tests.service.api.test_admin import socket_of

Claim = api_pb2.ExplainedClaim


@pytest.fixture
def store() -> PodStore:
    store = PodStore()
    store.pods.put(PodRecord(id="aa11", uid="uid-1", namespace="shop", name="web", state=Lifecycle.STOPPED))
    store.pods.put(PodRecord(id="ab22", uid="uid-1", namespace="shop", name="web", attempt=1))
    store.pods.put(PodRecord(id="cc33", uid="uid-2", namespace="shop", name="db"))
    store.pods.put(PodRecord(id="dd44", uid="other", namespace="bank", name="db"))
    store.containers.put(ContainerRecord(id="ee55", pod_id="ab22", name="main"))
    store.containers.put(ContainerRecord(id="ff66", pod_id="ab22", name="side"))
    return store


@pytest.mark.parametrize(
    ("text", "sandbox"),
    [
        ("uid-1", "ab22"),
        ("shop/web", "ab22"),
        ("web", "ab22"),
        ("aa11", "aa11"),
        ("cc", "cc33"),
        ("shop/db", "cc33"),
        ("oth", "dd44"),
        ("ee55", "ab22"),
        ("ff", "ab22"),
        ("a", "ab22"),
    ],
)
def test_a_pod_is_found_by(store: PodStore, text: str, sandbox: str) -> None:
    assert find_pod(store, text).id == sandbox


@pytest.mark.parametrize(
    ("text", "names"), [("db", ["bank/db (other)", "shop/db (uid-2)"]), ("uid-", ["shop/db", "shop/web"])]
)
def test_several_pods_are_named(store: PodStore, text: str, names: list[str]) -> None:
    with pytest.raises(AmbiguousPodError) as caught:
        find_pod(store, text)
    assert all(name in str(caught.value) for name in names)


def test_no_pod(store: PodStore) -> None:
    with pytest.raises(UnknownPodError, match="no pod is called 'nothing'"):
        find_pod(store, "nothing")


def test_containers_of_a_pod(store: PodStore) -> None:
    pod = find_pod(store, "web")
    assert [box.name for box in find_containers(store, pod, "")] == ["main", "side"]
    assert [box.name for box in find_containers(store, pod, "side")] == ["side"]
    assert [box.name for box in find_containers(store, pod, "ee")] == ["main"]
    with pytest.raises(UnknownPodError, match="it has main, side"):
        find_containers(store, pod, "init")


@pytest.fixture
def explained(daemons: Daemons) -> Iterator[tuple[Any, ProxyProcess, CriClient]]:
    daemon = daemons.start('[policies.cpuset]\nmode = "dry-run"\n')
    with CriClient(daemon.socket) as client:
        yield api_pb2_grpc.RuntimeProxyStub(client.channel), daemon, client


def explain(api: Any, pod: str, container: str = "") -> api_pb2.ExplainResponse:
    request = api_pb2.ExplainRequest(pod=pod, container=container)
    answer: api_pb2.ExplainResponse = api.Explain(request, timeout=30, wait_for_ready=True)
    return answer


def test_each_field_of_a_pod(explained: tuple[Any, ProxyProcess, CriClient]) -> None:
    api, _, client = explained
    batch_pod(client, "one").run().create().start()
    answer = explain(api, "default/one")
    assert (answer.pod.name, answer.pod.qos_class) == ("one", "BE")
    pod, box = answer.targets[:2]
    assert (pod.level, box.level) == (api_pb2.LEVEL_POD, api_pb2.LEVEL_CONTAINER)
    shares = next(each for each in box.fields if each.name == "cpu.shares")
    (claim,) = shares.claims
    assert (claim.owner, claim.role, claim.effect) == ("batch-resource", Claim.ROLE_SET, Claim.EFFECT_USED)
    assert claim.value == shares.resolved == shares.booked == str(BATCH_SHARES)
    assert shares.requested
    assert shares.way == api_pb2.ExplainedField.WAY_MESSAGE
    assert claim.reason
    policies = {each.policy: each for each in box.policies}
    assert policies["batch-resource"].outcome == api_pb2.PolicyAnswer.OUTCOME_CHANGES
    assert policies["gpu-env"].outcome == api_pb2.PolicyAnswer.OUTCOME_NOT_SELECTED


def test_each_policy_says_why_it_changes_nothing(explained: tuple[Any, ProxyProcess, CriClient]) -> None:
    api, daemon, client = explained
    named_pod(client, "plain").run().create().start()
    wait_until(socket_of(daemon).exists, "the admin socket")
    run_command(daemon, "policy", "cpu-burst", "off", "--reason", "a test")
    pod, box = explain(api, "default/plain").targets[:2]
    found = {each.policy: (each.outcome, each.reason) for each in box.policies}
    answer = api_pb2.PolicyAnswer
    nothing = (answer.OUTCOME_NOTHING, "selects this pod, and found nothing to change")
    assert found == {
        "seeing": nothing,
        "waiting": nothing,
        "batch-resource": (answer.OUTCOME_NOT_SELECTED, "selects QoS class BE only"),
        "cpuset": (
            answer.OUTCOME_NOT_SELECTED,
            "no annotation scheduling.koordinator.sh/resource-status",
        ),
        "group-identity": (answer.OUTCOME_NOT_SELECTED, "this node has no strategies"),
        "gpu-env": (
            answer.OUTCOME_NOT_SELECTED,
            "no annotation scheduling.koordinator.sh/device-allocated",
        ),
        "rdma-devices": (answer.OUTCOME_OFF, "off by default"),
        "accelerators": (answer.OUTCOME_OFF, "off by default"),
        "cpu-burst": (answer.OUTCOME_OFF, "off by command: a test"),
        "core-sched": (answer.OUTCOME_OFF, "off by default"),
        "cpu-normalization": (answer.OUTCOME_OFF, "off by default"),
        "memory-qos": (answer.OUTCOME_OFF, "off by default"),
        "startup-boost": (answer.OUTCOME_OFF, "off by default"),
        "block-io": (answer.OUTCOME_OFF, "off by default"),
        "oom-score": (answer.OUTCOME_OFF, "off by default"),
        "katalyst-pools": (answer.OUTCOME_OFF, "off by default"),
        "katalyst-qos": (answer.OUTCOME_OFF, "off by default"),
    }
    assert "gpu-env" not in {each.policy for each in pod.policies}
    shown, everything = (run_command(daemon, "explain", "plain", *more) for more in ((), ("--all",)))
    assert "off by" not in shown
    assert "cpu-normalization  off: off by default" in everything


def run_command(daemon: ProxyProcess, *arguments: str) -> str:
    command = [sys.executable, "-m", "runtimeproxy", *arguments, "--endpoint", str(daemon.socket)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_what_the_kernel_has(explained: tuple[Any, ProxyProcess, CriClient]) -> None:
    api, _, client = explained
    batch_pod(client, "one").run().create().start()

    def on_pod() -> api_pb2.ExplainedField:
        pod = explain(api, "default/one").targets[0]
        return next(each for each in pod.fields if each.name == "cpu.shares")

    wait_until(lambda: on_pod().HasField("applied"), "the pod's value is written")
    field = on_pod()
    assert field.HasField("original")
    assert field.observed_value == field.applied
    assert not field.is_different
    assert field.way == api_pb2.ExplainedField.WAY_FILE


def test_what_runs_gets_with_its_next_start_only(daemons: Daemons, runtime: FakeRuntime) -> None:
    with CriClient(runtime.socket_path) as client:
        batch_pod(client, "one").run().create().start()
    daemon = daemons.prepare()
    policy_file(daemon, "gives_env").write_text(GIVES_ENV)
    daemon.start()
    with CriClient(daemon.socket) as client:
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        # Before that no pod of this name is known.
        wait_until(lambda: status_of(api).records.is_recovered, "the runtime's lists")

        def ways() -> list[int]:
            fields = (field for target in explain(api, "one").targets for field in target.fields)
            return [each.way for each in fields if each.name == "env[GIVEN]"]

        wait_until(ways, "the variable")
        assert ways() == [api_pb2.ExplainedField.WAY_NEXT_START]


SCORES = """
from runtimeproxy.hooks import ContainerChange, Policy, ResourceChange
class Scores(Policy):
    name = 'scores'
    def container(self, container, node):
        resources = ResourceChange(oom_score_adj=-500, memory_swap_limit_bytes=1 << 30)
        return ContainerChange(resources=resources, reason='its annotation')
"""


@pytest.mark.parametrize("mode", ["enforce", "dry-run"])
@pytest.mark.parametrize(
    ("name", "value", "requested"),
    [
        pytest.param("resources.memory_swap_limit_bytes", str(1 << 30), "", id="without a file"),
        pytest.param("oom_score_adj", "-500", "1000", id="of processes"),
    ],
)
def test_a_value_without_a_file_has_its_reason(
    daemons: Daemons, mode: str, name: str, value: str, requested: str
) -> None:
    daemon = daemons.prepare(f"[policies.scores]\nmode = '{mode}'\n")
    policy_file(daemon, "scores").write_text(SCORES)
    daemon.start()
    with CriClient(daemon.socket) as client:
        batch_pod(client, "one").run().create().start()
        api = api_pb2_grpc.RuntimeProxyStub(client.channel)
        box = explain(api, "one").targets[1]
    (field,) = (each for each in box.fields if each.name == name)
    (claim,) = field.claims
    assert (claim.owner, claim.value) == ("scores", value)
    assert claim.reason == "its annotation"
    assert field.requested == requested


def test_values_of_variables_stay_in_the_daemon(explained: tuple[Any, ProxyProcess, CriClient]) -> None:
    api, _, client = explained
    pod = batch_pod(client, "one")
    pod.envs = {"PASSWORD": "HIDDEN-VALUE"}
    pod.run().create()
    answers = [
        explain(api, "one"),
        *api.WatchPods(api_pb2.WatchPodsRequest(snapshot_only=True), timeout=30),
        *api.WatchAudit(api_pb2.WatchAuditRequest(), timeout=30),
    ]
    assert "HIDDEN-VALUE" not in str(answers)


def test_names_that_are_not_known(explained: tuple[Any, ProxyProcess, CriClient]) -> None:
    api, _, client = explained
    annotations = {
        "koordinator.sh/cpuBrust": "{}",
        "koordinator.sh/cpuBurst": '{"burstShares": 2}',
        "koordinator.sh/new": "",
    }
    named_pod(client, "named", annotations=annotations).run()
    answer = explain(api, "default/named")
    (problem,) = answer.problems
    assert problem.endswith("; did you mean koordinator.sh/cpuBurst?")
    assert [each.partition(" is not")[0] for each in answer.notes] == [
        "koordinator.sh/new",
        "koordinator.sh/cpuBurst: burstShares",
    ]


def test_what_a_policy_leaves_out(explained: tuple[Any, ProxyProcess, CriClient]) -> None:
    """Of what the strategies say already, nothing is said twice."""
    api, _, client = explained
    annotations = {"scheduling.koordinator.sh/device-allocated": "x", "koordinator.sh/cpuBurst": "x"}
    named_pod(client, "left", annotations=annotations).run().create()
    first, second = explain(api, "default/left").problems
    assert first.startswith("koordinator.sh/cpuBurst is not valid JSON")
    assert second.startswith("gpu-env: annotation scheduling.koordinator.sh/device-allocated is not valid")


def test_one_container_only(explained: tuple[Any, ProxyProcess, CriClient]) -> None:
    api, _, client = explained
    made = batch_pod(client, "one").run().create()
    answer = explain(api, "one", made.container[:12])
    assert [each.container_id for each in answer.targets] == [made.container]


@pytest.mark.parametrize(
    ("pod", "code", "text"),
    [
        ("", grpc.StatusCode.INVALID_ARGUMENT, "no pod is given"),
        ("nothing", grpc.StatusCode.NOT_FOUND, "no pod is called 'nothing'"),
    ],
)
def test_pods_that_cannot_be_explained(api: Any, pod: str, code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        explain(api, pod)
    assert caught.value.code() is code
    assert text in str(caught.value.details())
