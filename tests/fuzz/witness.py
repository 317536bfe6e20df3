"""`python -m tests.fuzz.witness SOCKET WHAT PACE`: a client that behaves, as a process beside a fuzzer.

It runs whole lives of pods, or asks for images, and looks at what came of it, until its standard input ends;
then it prints one line of JSON: what it called, what failed, and how long calls took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc
from tests.daemon.driving import BATCH_SHARES, batch_pod, shares_of
from tests.lab.cri_client import CALL_TIMEOUT_S, CriClient
from tests.lab.programs import REPOSITORY

IMAGES: Final = "images"
"""The other service, which another runtime may serve."""
PODS: Final = "pods"
PACE_S: Final = 0.02
"""Between two calls of a client that is there to see, not to add load."""
LINES: Final = 50
"""Of what failed; the rest is counted."""
_END_S: Final = 2 * CALL_TIMEOUT_S


class Calls:
    """The calls of one client, one after the other."""

    def __init__(self, client: CriClient, socket_path: Path, pace_s: float = 0.0) -> None:
        self._socket_path = socket_path
        self._pace_s = pace_s
        self.failed: list[str] = []
        self.failures = 0
        self._first_images: api_pb2.ListImagesResponse | None = None
        self.taken_ms: list[float] = []
        self._client = client

    def life(self, number: int) -> None:
        """A whole life of a pod that a policy changes; each step is tried, and looked at."""
        name = f"witness-{number}"
        pod = batch_pod(self._client, name)
        if not self._ok("RunPodSandbox", pod.run):
            return
        if self._ok("CreateContainer", pod.create):
            self._ok("StartContainer", pod.start)
            self._ok("ContainerStatus", lambda: self._expect(name, shares_of(pod), BATCH_SHARES))
            self._ok("ListContainers", lambda: self._expect(name, self._listed(pod.id), [pod.container]))
            self._ok("UpdateContainerResources", lambda: pod.update(64 << 20))
        self._ok("RemovePodSandbox", pod.remove)
        self._ok("ListPodSandbox", lambda: self._expect(name, self._sandboxes(pod.id), 0))

    def images(self, number: int) -> None:
        """What there is of images: the same every time, over a connection of its own."""
        with CriClient(self._socket_path) as client:
            self._images(number, client.images)

    def _images(self, number: int, answers: api_pb2_grpc.ImageServiceStub) -> None:
        filesystems = api_pb2.ImageFsInfoRequest()
        listed = api_pb2.ListImagesRequest()
        self._ok("ImageFsInfo", lambda: answers.ImageFsInfo(filesystems, timeout=CALL_TIMEOUT_S))
        self._ok(
            "ListImages",
            lambda: self._expect_images(number, answers.ListImages(listed, timeout=CALL_TIMEOUT_S)),
        )

    def _expect_images(self, number: int, answer: api_pb2.ListImagesResponse) -> None:
        self._first_images = self._first_images or answer
        self._expect(f"images {number}", answer, self._first_images)

    def _listed(self, sandbox_id: str) -> list[str]:
        only = api_pb2.ContainerFilter(pod_sandbox_id=sandbox_id)
        request = api_pb2.ListContainersRequest(filter=only)
        answer = self._client.runtime.ListContainers(request, timeout=CALL_TIMEOUT_S)
        return [container.id for container in answer.containers]

    def _sandboxes(self, sandbox_id: str) -> int:
        request = api_pb2.ListPodSandboxRequest(filter=api_pb2.PodSandboxFilter(id=sandbox_id))
        return len(self._client.runtime.ListPodSandbox(request, timeout=CALL_TIMEOUT_S).items)

    def _expect(self, name: str, found: object, expected: object) -> None:
        if found != expected:
            self._fail(f"{name}: {found} in place of {expected}")

    def _ok(self, what: str, call: Callable[[], object]) -> bool:
        began_s = time.monotonic()
        try:
            call()
        except grpc.RpcError as error:
            self._fail(f"{what}: {error.code().name}: {error.details()}")
            return False
        finally:
            self.taken_ms.append((time.monotonic() - began_s) * 1000)
            time.sleep(self._pace_s)
        return True

    def _fail(self, text: str) -> None:
        self.failures += 1
        if len(self.failed) < LINES:
            self.failed.append(text)


def main() -> None:
    """Calls until the standard input ends."""
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        is_over.set()

    reader = threading.Thread(target=wait_for_the_end, daemon=True)
    with CriClient(Path(sys.argv[1])) as client:
        ready = api_pb2.ImageFsInfoRequest()
        client.images.ImageFsInfo(ready, timeout=CALL_TIMEOUT_S, wait_for_ready=True)
        reader.start()
        calls, number = Calls(client, Path(sys.argv[1]), float(sys.argv[3])), 0
        turn = calls.images if sys.argv[2] == IMAGES else calls.life
        while not is_over.is_set():
            turn(number)
            number += 1
    print(json.dumps({"failures": calls.failures, "failed": calls.failed, "taken_ms": calls.taken_ms}))


@dataclass(frozen=True, slots=True)
class Seen:
    """What a witness has seen."""

    calls: int
    failures: int
    failed: tuple[str, ...]
    p50_ms: float
    p99_ms: float
    most_ms: float

    def __str__(self) -> str:
        """For one line of a report."""
        times = f"p50 {self.p50_ms:.1f}, p99 {self.p99_ms:.1f}, most {self.most_ms:.0f} ms"
        return f"{self.calls} calls beside it: {self.failures} failed; {times}"


class Witness:
    """The process, from `with` to the end of its block; `seen` is there afterwards."""

    def __init__(self, socket_path: Path, what: str = PODS, pace_s: float = PACE_S) -> None:
        self.seen: Seen | None = None
        arguments = (str(socket_path), what, str(pace_s))
        self._command = [sys.executable, "-m", "tests.fuzz.witness", *arguments]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            output, _ = self._process.communicate(timeout=_END_S)
        finally:
            self._process.kill()
            self._process.wait()
        told = json.loads(output)
        taken = sorted(told["taken_ms"]) or [0.0]
        self.seen = Seen(
            len(taken),
            told["failures"],
            tuple(told["failed"]),
            taken[len(taken) // 2],
            taken[len(taken) * 99 // 100],
            taken[-1],
        )


if __name__ == "__main__":
    main()
