"""`python -m tests.restarts.caller SOCKET`: the load of `kubelet-client load`, with the gRPC of C-core."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grpc
from google.protobuf import json_format

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc

CALL_TIMEOUT_S = 120.0
"""Of a call: the kubelet's default (`runtimeRequestTimeout`)."""
EVENTED_PLEG_ATTEMPTS = 5
"""Source: k8s.io/kubernetes/pkg/kubelet/kubelet.go, eventedPlegMaxStreamRetries."""

# Source: k8s.io/cri-client: authority, 100 ms to 3 s between attempts to connect, 5 s for one attempt.
_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 3000),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.use_local_subchannel_pool", 1),
]


class Caller:
    """Calls until it is told to end; prints lines for `tests.restarts.lines`."""

    def __init__(self, channel: grpc.Channel, order: dict[str, Any]) -> None:
        self._runtime = api_pb2_grpc.RuntimeServiceStub(channel)
        self._order = order
        self._sandbox = json_format.ParseDict(order["sandbox"], api_pb2.PodSandboxConfig())
        self._container = json_format.ParseDict(order["container"], api_pb2.ContainerConfig())
        self._numbers = itertools.count(1)
        self._output = threading.Lock()
        self._ended = threading.Event()
        self._events: grpc.Call | None = None
        self._lost_streams = 0

    def run_until_eof(self) -> None:
        """Calls until the standard input ends."""
        order = self._order
        turns = [("list", self._list), ("status", self._status), ("create", self._create)]
        counts = [order["lists"], order["statuses"], order["creates"]]
        with ThreadPoolExecutor(sum(counts) + 1) as threads:
            running = [
                threads.submit(self._worker, f"{kind}-{number + 1}", turn)
                for (kind, turn), count in zip(turns, counts, strict=True)
                for number in range(count)
            ]
            if order["events"]:
                running.append(threads.submit(self._worker, "events", self._watch_events))
            sys.stdin.read()
            self._ended.set()
            if self._events is not None:
                self._events.cancel()
        for worker in running:
            worker.result()

    def _worker(self, name: str, turn: Callable[[str], None]) -> None:
        while not self._ended.is_set():
            turn(name)
            self._pause()

    def _list(self, worker: str) -> None:
        self._call(worker, "ListPodSandbox", api_pb2.ListPodSandboxRequest())
        self._call(worker, "ListContainers", api_pb2.ListContainersRequest())

    def _status(self, worker: str) -> None:
        self._call(worker, "Status", api_pb2.StatusRequest())
        request = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=self._order["sandbox_id"])
        self._call(worker, "PodSandboxStatus", request)

    def _create(self, worker: str) -> None:
        """Makes a container, looks how often it is there and with which values, and removes it."""
        number = next(self._numbers)
        label, name = self._order["label"], f"{self._order['name']}-{number}"
        code, made = self._call(worker, "CreateContainer", self._create_request(number, name))
        selector = api_pb2.ContainerFilter(label_selector={label: name})
        found = self._until(worker, "ListContainers", api_pb2.ListContainersRequest(filter=selector))
        ids = [container.id for container in found.containers] if found is not None else []
        shares = self._shares(worker, made.container_id) if code == "OK" else 0
        self._print(kind="created", name=name, code=code, listed=len(ids), cpu_shares=shares)
        for container_id in ids:
            remove = api_pb2.RemoveContainerRequest(container_id=container_id)
            self._until(worker, "RemoveContainer", remove)

    def _create_request(self, number: int, name: str) -> api_pb2.CreateContainerRequest:
        container = api_pb2.ContainerConfig()
        container.CopyFrom(self._container)
        container.metadata.attempt = number
        container.labels[self._order["label"]] = name
        return api_pb2.CreateContainerRequest(
            pod_sandbox_id=self._order["sandbox_id"], config=container, sandbox_config=self._sandbox
        )

    def _shares(self, worker: str, container_id: str) -> int:
        request = api_pb2.ContainerStatusRequest(container_id=container_id)
        answer = self._until(worker, "ContainerStatus", request)
        return answer.status.resources.linux.cpu_shares if answer is not None else 0

    def _watch_events(self, worker: str) -> None:
        """Tries again without a rest as long as the kubelet would."""
        while not self._ended.is_set():
            self._lost_streams = 0 if self._stream_events(worker) else self._lost_streams + 1
            if self._lost_streams >= EVENTED_PLEG_ATTEMPTS:
                return

    def _stream_events(self, worker: str) -> bool:
        """Has events until the stream ends; returns whether any came."""
        came = False
        begun = self._begin(worker, "GetContainerEvents")
        stream = self._runtime.GetContainerEvents(api_pb2.GetEventsRequest())
        self._events = stream
        error: grpc.Call = stream
        try:
            for event in stream:
                came = True
                self._print(kind="event", at=time.monotonic(), container_id=event.container_id)
        except grpc.RpcError as raised:
            error = cast("grpc.Call", raised)
        if not self._ended.is_set():
            self._print_call(worker, "GetContainerEvents", begun, error)
        return came

    def _until(self, worker: str, method: str, request: Any) -> Any:
        """Repeats a call until it succeeds and returns the answer; None if the load ends first."""
        while True:
            code, answer = self._call(worker, method, request)
            if code == "OK":
                return answer
            if self._ended.is_set():
                return None
            self._pause()

    def _call(self, worker: str, method: str, request: Any) -> tuple[str, Any]:
        begun = self._begin(worker, method)
        try:
            answer, call = getattr(self._runtime, method).with_call(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            return self._print_call(worker, method, begun, cast("grpc.Call", error)), None
        return self._print_call(worker, method, begun, call), answer

    def _begin(self, worker: str, method: str) -> float:
        begun = time.monotonic()
        self._print(kind="begun", worker=worker, method=method, at=begun)
        return begun

    def _print_call(self, worker: str, method: str, begun: float, call: grpc.Call) -> str:
        code, ended = _as_go_spells(call.code()), time.monotonic()
        message = call.details() or ""
        about = {"worker": worker, "method": method, "begun": begun, "ended": ended}
        self._print(kind="call", code=code, message=message, **about)
        return code

    def _print(self, **fields: Any) -> None:
        with self._output:
            print(json.dumps(fields), flush=True)

    def _pause(self) -> None:
        self._ended.wait(self._order["pace_ms"] / 1000)


def _as_go_spells(code: grpc.StatusCode) -> str:
    name = code.name
    return name if name == "OK" else "".join(word.capitalize() for word in name.split("_"))


def main() -> None:
    """Reads an order, then calls until the standard input ends."""
    order = json.loads(sys.stdin.readline())
    with grpc.insecure_channel(f"unix://{sys.argv[1]}", options=_OPTIONS) as channel:
        Caller(channel, order).run_until_eof()


if __name__ == "__main__":
    main()
