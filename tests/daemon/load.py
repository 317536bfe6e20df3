"""Clients that call without a pause, and remember what failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import grpc.aio

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from tests.daemon.driving import BATCH_SHARES, batch_pod, shares_of
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.deadline import wait_until

LIST = api_pb2.ListContainersRequest()
STATUS = api_pb2.StatusRequest()


class Load:
    """Threads with a connection each: lists, status calls, whole lives of pods; and an asyncio client.

    Attributes:
        done: how many calls have succeeded.
        failed: what went wrong.
    """

    def __init__(self, socket_path: Path) -> None:
        self.done = 0
        self.failed: list[str] = []
        self._socket_path = socket_path
        self._is_over = threading.Event()
        targets = (self._lists, self._lists, self._pods, self._asyncio)
        self._threads = [threading.Thread(target=self._guarded, args=(each,)) for each in targets]

    def wait_for_more(self, calls: int = 50) -> None:
        """Waits until so many more calls have succeeded."""
        most = self.done + calls
        wait_until(lambda: self.done >= most or self.failed, "calls", 30)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # reported to the test that made the load
            self.failed.append(repr(error))

    def _called(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except grpc.RpcError as error:
            self.failed.append(f"{name}: {error.code().name}: {error.details()}")
        else:
            self.done += 1

    def _lists(self) -> None:
        with CriClient(self._socket_path) as client:
            runtime = client.runtime
            while not self._is_over.is_set():
                self._called("list", lambda: runtime.ListContainers(LIST, timeout=CALL_TIMEOUT_S))
                self._called("status", lambda: runtime.Status(STATUS, timeout=CALL_TIMEOUT_S))

    def _pods(self) -> None:
        with CriClient(self._socket_path) as client:
            number = 0
            while not self._is_over.is_set():
                number += 1
                self._called("pod", lambda: self._live(client, f"load-{number}"))  # noqa: B023

    def _live(self, client: CriClient, name: str) -> None:
        pod = batch_pod(client, name).run().create()
        if shares_of(pod) != BATCH_SHARES:
            self.failed.append(f"{name}: {shares_of(pod)} shares")
        pod.start().update(64 << 20)
        pod.remove()

    def _asyncio(self) -> None:
        asyncio.run(self._asyncio_calls())

    async def _asyncio_calls(self) -> None:
        async with grpc.aio.insecure_channel(f"unix://{self._socket_path}") as channel:
            runtime: api_pb2_grpc.RuntimeServiceAsyncStub = api_pb2_grpc.RuntimeServiceStub(channel)
            while not self._is_over.is_set():
                try:
                    await asyncio.gather(
                        *(runtime.Version(api_pb2.VersionRequest(), timeout=CALL_TIMEOUT_S) for _ in range(4))
                    )
                except grpc.aio.AioRpcError as error:
                    self.failed.append(f"version: {error.code().name}: {error.details()}")
                else:
                    self.done += 4
