"""A policy that lets the test decide, in the daemon's process, by a socket that the pod's annotation
names.

`site_folder` makes it a third party's policy of the daemon, by an entry point as an installed package has
it.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from runtimeproxy.errors import RefusalError, StatusCode
from runtimeproxy.hooks import ContainerChange, ContainerView, Policy, ResourceChange
from runtimeproxy.hooks.loading import ENTRY_POINT_GROUP
from runtimeproxy.node.snapshot import Node
from tests.peers.bytes_client import WAIT_S

ANNOTATION = "conformance/ask"
"""Names the socket of the test; pods without it are left alone."""

_END = b"\n"
_MOST_BYTES = 4096


class AskingPolicy(Policy):
    """Asks the test about each container that is created."""

    name: ClassVar[str] = "asking"
    timeout_s: ClassVar[float] = 60.0

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Does what the test says."""
        path = container.pod.annotations.get(ANNOTATION)
        return None if path is None else carried_out(_asked(path, container.name))


def carried_out(answer: Mapping[str, Any]) -> ContainerChange | None:
    """What the test's answer means; no answer means no change."""
    if "refuse" in answer:
        raise RefusalError(answer["refuse"], StatusCode[answer["code"]])
    if "raise" in answer:
        raise RuntimeError(answer["raise"])
    if "env" in answer:
        return ContainerChange(env=answer["env"])
    if "resources" in answer:
        return ContainerChange(resources=ResourceChange(**answer["resources"]))
    return None


def _asked(path: str, name: str) -> Mapping[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as desk:
        desk.connect(path)
        desk.sendall(name.encode() + _END)
        answer: Mapping[str, Any] = json.loads(desk.recv(_MOST_BYTES) or b"{}")
        return answer


@dataclass(frozen=True)
class Question:
    """A container that the policy asks about; it waits until `answer` or the desk's end."""

    name: str
    _socket: socket.socket

    def answer(self, **answer: object) -> None:
        """Answers with the change of the container; without arguments nothing changes."""
        # The daemon may have given the call up and ended.
        with suppress(OSError):
            self._socket.sendall(json.dumps(answer).encode() + _END)

    def close(self) -> None:
        """Ends the waiting."""
        self._socket.close()


class PolicyDesk:
    """The test's side, from `with` to the end of its block, when all waiting policies continue."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._questions: queue.Queue[Question] = queue.Queue()
        self._all: list[Question] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(128)
        self._thread = threading.Thread(target=self._serve, name="policy-desk")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        for question in self._all:
            question.close()

    @property
    def annotations(self) -> dict[str, str]:
        """What a pod has for the policy to ask here."""
        return {ANNOTATION: str(self.path)}

    def question(self) -> Question:
        """Waits for the policy's next question."""
        return self._questions.get(timeout=WAIT_S)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            sock.settimeout(WAIT_S)
            question = Question(sock.recv(_MOST_BYTES).decode().strip(), sock)
            self._all.append(question)
            self._questions.put(question)


def site_folder(folder: Path) -> Path:
    """Makes a folder for `PYTHONPATH` in which the policy is installed."""
    about = folder / "site" / "conformance_policies-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: conformance-policies\nVersion: 1.0\n")
    place = f"{__name__}:{AskingPolicy.__qualname__}"
    (about / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nasking = {place}\n")
    return about.parent
