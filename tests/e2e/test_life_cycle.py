"""What the kubelet does with a pod after it has made it: exec, logs, status, events, the end."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import grpc
import pytest

from cri_api.runtime.v1 import api_pb2
from tests.e2e.koordinator import cpuset, qos
from tests.lab import procfs
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient, outcome_of
from tests.lab.deadline import wait_until
from tests.lab.node import RunningPod, running_pod
from tests.lab.pods import ContainerSpec, PodSpec
from tests.lab.programs import CONTAINERDS_WITH_EVENTS


def plain_pod(*command: str) -> PodSpec:
    container = ContainerSpec(command=command) if command else ContainerSpec()
    return PodSpec("cycle", "burstable", qos("LS"), containers=(container,))


def status_of(client: CriClient, pod: RunningPod) -> api_pb2.ContainerStatus:
    request = api_pb2.ContainerStatusRequest(container_id=pod.container_id())
    return client.runtime.ContainerStatus(request, timeout=CALL_TIMEOUT_S).status


def exec_sync(client: CriClient, pod: RunningPod, timeout_s: int, *command: str) -> object:
    request = api_pb2.ExecSyncRequest(container_id=pod.container_id(), cmd=command, timeout=timeout_s)
    return client.runtime.ExecSync(request, timeout=CALL_TIMEOUT_S)


def test_exec_returns_output_and_exit_code(client: CriClient, logs: Path) -> None:
    with running_pod(client, plain_pod(), logs) as pod:
        answer = exec_sync(client, pod, 10, "/bin/sh", "-c", "echo out; echo err >&2; exit 3")

    assert answer == api_pb2.ExecSyncResponse(stdout=b"out\n", stderr=b"err\n", exit_code=3)


def test_exec_of_a_megabyte(client: CriClient, logs: Path) -> None:
    with running_pod(client, plain_pod(), logs) as pod:
        output = client.exec(pod.container_id(), "/bin/sh", "-c", "yes x | head -c 1048576")

    assert output == "x\n" * (1024 * 512)


def test_exec_that_lasts_too_long(client: CriClient, logs: Path) -> None:
    with running_pod(client, plain_pod(), logs) as pod:
        code, message = outcome_of(partial(exec_sync, client, pod, 1, "/bin/sleep", "100"))

    assert code == "DEADLINE_EXCEEDED"
    assert "timeout 1s exceeded" in message


def test_execs_run_side_by_side(client: CriClient, logs: Path) -> None:
    with running_pod(client, plain_pod(), logs) as pod, ThreadPoolExecutor(8) as threads:
        # Each waits until all are there: one after the other would never end.
        meet = "touch /tmp/$0; while [ $(ls /tmp | wc -l) -lt 8 ]; do sleep 0.1; done"
        execs = [
            threads.submit(exec_sync, client, pod, 20, "/bin/sh", "-c", meet, str(number))
            for number in range(8)
        ]
        answers = [each.result() for each in execs]

    assert answers == [api_pb2.ExecSyncResponse()] * 8


def test_streaming_exec_gets_an_address_of_the_runtime(client: CriClient, logs: Path) -> None:
    with running_pod(client, plain_pod(), logs) as pod:
        request = api_pb2.ExecRequest(
            container_id=pod.container_id(), cmd=["/bin/sh"], stdin=True, stdout=True, tty=True
        )
        url = client.runtime.Exec(request, timeout=CALL_TIMEOUT_S).url

    assert url.startswith("http://127.0.0.1:")


def test_log_file(client: CriClient, logs: Path) -> None:
    with running_pod(client, plain_pod("/bin/sh", "-c", "echo hello; sleep 1000"), logs) as pod:
        file = pod.log_directory / "main.log"
        line = wait_until(lambda: file.exists() and file.read_text(), "the log has a line")
        file.rename(file.with_suffix(".old"))
        reopen = api_pb2.ReopenContainerLogRequest(container_id=pod.container_id())
        client.runtime.ReopenContainerLog(reopen, timeout=CALL_TIMEOUT_S)
        reopened = file.exists()

    assert str(line).endswith("stdout F hello\n")
    assert reopened


def test_stop_and_remove(client: CriClient, logs: Path) -> None:
    with running_pod(client, plain_pod(), logs) as pod:
        process = pod.main_pid()
        stop = api_pb2.StopContainerRequest(container_id=pod.container_id(), timeout=0)
        client.runtime.StopContainer(stop, timeout=CALL_TIMEOUT_S)
        again = outcome_of(lambda: client.runtime.StopContainer(stop, timeout=CALL_TIMEOUT_S))
        state = status_of(client, pod).state
        remove = api_pb2.RemoveContainerRequest(container_id=pod.container_id())
        client.runtime.RemoveContainer(remove, timeout=CALL_TIMEOUT_S)
        code, _ = outcome_of(lambda: status_of(client, pod))

    assert again == ("OK", "")
    assert state == api_pb2.ContainerState.CONTAINER_EXITED
    assert code == "NOT_FOUND"
    assert not procfs.runs(process)


def test_status_shows_the_annotations_of_the_kubelet(client: CriClient, logs: Path) -> None:
    annotations = {"io.kubernetes.container.hash": "5f3a", "empty": "", "text": "ü\n\x01"}
    container = ContainerSpec(annotations=annotations)
    pod_spec = PodSpec("status", "guaranteed", qos("LSR"), cpuset("0"), (container,))
    with running_pod(client, pod_spec, logs) as pod:
        seen = status_of(client, pod).annotations
        request = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=pod.sandbox_id)
        sandbox = client.runtime.PodSandboxStatus(request, timeout=CALL_TIMEOUT_S).status

    assert dict(seen) == {"io.kubernetes.container.restartCount": "0", **annotations}
    assert sandbox.labels["koordinator.sh/qosClass"] == "LSR"
    assert dict(sandbox.annotations) == {**cpuset("0"), "kubernetes.io/config.source": "api"}


@pytest.mark.parametrize("containerd_version", CONTAINERDS_WITH_EVENTS, indirect=True)
def test_events_of_a_containers_life(client: CriClient, logs: Path) -> None:
    stream = client.runtime.GetContainerEvents(api_pb2.GetEventsRequest())
    events: SimpleQueue[api_pb2.ContainerEventResponse] = SimpleQueue()
    with ThreadPoolExecutor(1) as reader:
        # The runtime starts with the events of the last minutes. It makes no pod as long as a subscriber
        # leaves more of them unread than its window takes.
        reader.submit(read_until_cancelled, stream, events)
        try:
            with running_pod(client, plain_pod(), logs) as pod:
                wanted = pod.container_id()
                stop = api_pb2.StopContainerRequest(container_id=wanted, timeout=0)
                client.runtime.StopContainer(stop, timeout=CALL_TIMEOUT_S)
                remove = api_pb2.RemoveContainerRequest(container_id=wanted)
                client.runtime.RemoveContainer(remove, timeout=CALL_TIMEOUT_S)
                kinds = kinds_until_deleted(events, wanted)
        finally:
            stream.cancel()

    # Nothing says when the subscription is in force, so the first events may be missed.
    whole = ["CREATED", "STARTED", "STOPPED", "DELETED"]
    assert kinds == whole[-len(kinds) :]
    assert len(kinds) >= 2


def read_until_cancelled(
    stream: Iterable[api_pb2.ContainerEventResponse], events: SimpleQueue[api_pb2.ContainerEventResponse]
) -> None:
    with suppress(grpc.RpcError):
        for event in stream:
            events.put(event)


def kinds_until_deleted(events: SimpleQueue[api_pb2.ContainerEventResponse], container_id: str) -> list[str]:
    kinds: list[str] = []
    while "DELETED" not in kinds:
        event = events.get(timeout=20)
        if event.container_id == container_id:
            name = api_pb2.ContainerEventType.Name(event.container_event_type)
            kinds.append(name.removeprefix("CONTAINER_").removesuffix("_EVENT"))
    return kinds
