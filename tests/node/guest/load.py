"""Calls as a kubelet makes them all the time, from several connections, and how they ended."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import grpc

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from tests.lab.cri_client import outcome_of
from tests.node.guest.machine import ENDPOINT, PATIENCE_S, UnexpectedError

CONNECTIONS = 2
_PAUSE_S = 0.1
# How long a client waits for the first frame of a connection: 20 s by default, in which a real proxy starts
# many times and an emulated one hardly once.
_OPTIONS = [("grpc.min_reconnect_backoff_ms", int(PATIENCE_S * 1000)), ("grpc.use_local_subchannel_pool", 1)]


class Load:
    """Runs Version, Status and the lists in turn on each connection, from `with` to its end."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.calls = 0
        self.slowest_s = 0.0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(CONNECTIONS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.wait_for_calls()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def wait_for_calls(self, count: int = 5 * CONNECTIONS) -> None:
        """Waits until so many more calls have ended."""
        goal = self.calls + count
        end = time.monotonic() + PATIENCE_S
        while self.calls < goal:
            if time.monotonic() > end:
                raise UnexpectedError(f"no {count} calls ended within {PATIENCE_S} s")
            self._end.wait(_PAUSE_S)

    def no_failures(self) -> str:
        """Says how many calls there were. Raises UnexpectedError if one failed."""
        if self.failures:
            raise UnexpectedError(f"{len(self.failures)} of {self.calls} calls failed: {self.failures[:5]}")
        return f"{self.calls} calls, 0 failed, slowest {self.slowest_s:.1f} s"

    def _call(self) -> None:
        with grpc.insecure_channel(f"unix://{ENDPOINT}", options=_OPTIONS) as channel:
            runtime = api_pb2_grpc.RuntimeServiceStub(channel)
            calls: dict[str, Callable[[], object]] = {
                "Version": lambda: runtime.Version(api_pb2.VersionRequest(), timeout=PATIENCE_S),
                "Status": lambda: runtime.Status(api_pb2.StatusRequest(), timeout=PATIENCE_S),
                "pods": lambda: runtime.ListPodSandbox(api_pb2.ListPodSandboxRequest(), timeout=PATIENCE_S),
                "containers": lambda: runtime.ListContainers(
                    api_pb2.ListContainersRequest(), timeout=PATIENCE_S
                ),
            }
            names = itertools.cycle(calls)
            while not self._end.wait(_PAUSE_S):
                name, began = next(names), time.monotonic()
                code, text = outcome_of(calls[name])
                self._count(time.monotonic() - began, "" if code == "OK" else f"{name}: {code}: {text}")

    def _count(self, took_s: float, failure: str) -> None:
        with self._lock:
            self.calls += 1
            self.slowest_s = max(self.slowest_s, took_s)
            if failure:
                self.failures.append(failure)
