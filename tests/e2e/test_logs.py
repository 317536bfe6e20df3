"""What the proxy writes down about the pods of a real runtime, and what it must not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import extended_resources, gpus, qos
from tests.e2e.values import BATCH_500
from tests.lab.containerd import Containerd
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until
from tests.lab.node import running_pod
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.proxy_process import ProxyOptions, ProxyProcess

HUSH = "hush-0f9a"


@pytest.fixture
def talkative_proxy(containerd: Containerd, folder: Path) -> Iterator[ProxyProcess]:
    own = Path(tempfile.mkdtemp(dir=folder))
    options = ProxyOptions(str(containerd.socket), log_level="debug")
    with ProxyProcess(own, options) as running:
        yield running


def test_one_line_says_what_was_changed_and_why(proxy: ProxyProcess, through: CriClient, logs: Path) -> None:
    annotations = extended_resources({"main": BATCH_500})
    with running_pod(through, PodSpec("audited", "besteffort", qos("BE"), annotations), logs) as pod:
        lines = wait_until(lambda: audit_lines(proxy, pod.spec.uid, "main"), "the line is written")

    assert len(lines) == 1
    changes = {change["field"]: change for change in lines[0]["changes"]}
    assert changes["resources.cpu_shares"]["from"] == "2"
    assert changes["resources.cpu_shares"]["to"] == "512"
    assert changes["resources.cpu_quota_us"]["to"] == "50000"
    assert all(change["policy"] and change["reason"] for change in changes.values())


def audit_lines(proxy: ProxyProcess, uid: str, container: str) -> list[dict[str, Any]]:
    return [
        record
        for record in proxy.log_records
        if record.get("uid") == uid and record.get("container") == container
    ]


def test_nothing_secret_is_logged_at_any_level(talkative_proxy: ProxyProcess, logs: Path) -> None:
    container = ContainerSpec(env=(("PASSWORD", HUSH), ("NVIDIA_VISIBLE_DEVICES", HUSH)))
    spec = PodSpec("silent", "burstable", qos("LS"), gpus(0), (container,))
    with (
        CriClient(talkative_proxy.socket) as client,
        running_pod(client, spec, logs) as pod,
    ):
        client.exec(pod.container_id(), "/bin/echo", HUSH)
        auth = api_pb2.AuthConfig(username="user", password=HUSH, registry_token=HUSH)
        pull = api_pb2.PullImageRequest(
            image=api_pb2.ImageSpec(image="127.0.0.1:1/nothing:latest"), auth=auth
        )
        with pytest.raises(grpc.RpcError):
            client.images.PullImage(
                pull, timeout=CALL_TIMEOUT_S, metadata=(("authorization", f"Bearer {HUSH}"),)
            )
    talkative_proxy.terminate()

    assert [line for line in talkative_proxy.log if HUSH in line] == []
    assert talkative_proxy.log_records
