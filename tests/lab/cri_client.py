"""A client of the CRI over one connection, with the settings of the kubelet's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from cri_api.runtime.v1 import api_pb2, api_pb2_grpc

CALL_TIMEOUT_S = 30.0
NOT_YET = "server is not initialized yet"
"""What a call gets when containerd's socket is there, and its CRI is not yet.

Source: containerd internal/cri/instrument/instrumented_service.go, checkInitialized."""
_PACE_S = 0.02

# Source: k8s.io/cri-client: authority `localhost`. The bounds of a message are the server's only.
_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


class CriClient:
    """Both services on one socket; ends its connection at the end of its `with` block."""

    def __init__(self, socket: Path) -> None:
        self.channel = grpc.insecure_channel(f"unix://{socket}", options=_OPTIONS)
        self.runtime = api_pb2_grpc.RuntimeServiceStub(self.channel)
        self.images = api_pb2_grpc.ImageServiceStub(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()

    def wait_until_serving(self, timeout_s: float) -> api_pb2.VersionResponse:
        """Waits for the socket and for the service behind it, and returns its version."""
        end = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, end - time.monotonic())
            try:
                return self.runtime.Version(api_pb2.VersionRequest(), timeout=left_s, wait_for_ready=True)
            except grpc.RpcError as error:
                # containerd's socket is there before its CRI, which waits for the plugins that it starts.
                is_too_early = error.code() is grpc.StatusCode.UNAVAILABLE or NOT_YET in str(error.details())
                if not is_too_early or time.monotonic() > end:
                    raise
                time.sleep(_PACE_S)

    def has_image(self, name: str) -> bool:
        """Whether the image service knows the image."""
        spec = api_pb2.ImageSpec(image=name)
        answer = self.images.ImageStatus(api_pb2.ImageStatusRequest(image=spec), timeout=CALL_TIMEOUT_S)
        return answer.HasField("image")

    def exec(self, container_id: str, *command: str) -> str:
        """Runs a command in a container and returns its output. Raises RuntimeError if it failed."""
        answer = self.runtime.ExecSync(
            api_pb2.ExecSyncRequest(container_id=container_id, cmd=command, timeout=30),
            timeout=CALL_TIMEOUT_S,
        )
        if answer.exit_code != 0:
            raise RuntimeError(f"{command}: exit code {answer.exit_code}: {answer.stderr!r}")
        return answer.stdout.decode()

    def raw(self, path: str, request: bytes = b"") -> bytes:
        """Calls any unary method with encoded messages; the empty message by default."""
        call = self.channel.unary_unary(
            path, request_serializer=lambda message: message, response_deserializer=lambda raw: raw
        )
        return call(request, timeout=CALL_TIMEOUT_S)


def outcome_of(call: Callable[[], object]) -> tuple[str, str]:
    """Status code and text of a call that is made by calling the argument."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""
