"""A gRPC client that sends and receives messages as bytes, and shows everything that a call brings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

Metadata = tuple[tuple[str, str | bytes], ...]

WAIT_S = 30.0
"""How long a test waits for what must happen, before it fails."""

_OPTIONS: Mapping[str, Any] = {
    # Source: k8s.io/cri-client, authority `localhost`.
    "grpc.default_authority": "localhost",
    "grpc.use_local_subchannel_pool": 1,
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    "grpc.max_metadata_size": 1024 * 1024,
    "grpc.absolute_max_metadata_size": 1024 * 1024,
    # Source: k8s.io/cri-client: BaseDelay, MinConnectTimeout and MaxDelay.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 5000,
    "grpc.max_reconnect_backoff_ms": 3000,
}


@dataclass(frozen=True)
class Answer:
    """All that a client sees of a call that is over; equal answers cannot be told apart."""

    code: str
    text: str
    messages: tuple[bytes, ...]
    initial: Metadata
    trailing: Metadata

    @property
    def message(self) -> bytes:
        """The only message of a successful answer."""
        assert self.code == "OK", f"{self.code}: {self.text}"
        assert len(self.messages) == 1
        return self.messages[0]


class BytesClient:
    """One connection; ends with its `with` block."""

    def __init__(self, socket: Path, options: Sequence[tuple[str, Any]] = ()) -> None:
        self.channel = grpc.insecure_channel(
            f"unix://{socket}", options=list({**_OPTIONS, **dict(options)}.items())
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()

    def call(
        self,
        path: str,
        request: bytes = b"",
        *,
        metadata: Metadata = (),
        timeout_s: float | None = WAIT_S,
        compression: grpc.Compression | None = None,
        wait_for_ready: bool | None = None,
    ) -> Answer:
        """Makes a call of any kind with one request message and returns all of its answer."""
        call = self.channel.unary_stream(path, _same, _same)(
            request,
            metadata=metadata,
            timeout=timeout_s,
            compression=compression,
            wait_for_ready=wait_for_ready,
        )
        return answer_of(call)

    def start(
        self, path: str, request: bytes = b"", *, timeout_s: float | None = WAIT_S, metadata: Metadata = ()
    ) -> Any:
        """Begins a call and returns it: an iterator over its messages that can be cancelled."""
        return self.channel.unary_stream(path, _same, _same)(request, timeout=timeout_s, metadata=metadata)

    def converse(self, path: str, requests: Iterable[bytes]) -> Any:
        """Begins a call with many request messages."""
        return self.channel.stream_stream(path, _same, _same)(iter(requests), timeout=WAIT_S)


def answer_of(call: Any) -> Answer:
    """Waits for the end of a call that was begun."""
    messages = tuple(_messages(call))
    return Answer(
        code=call.code().name,
        text=call.details() or "",
        messages=messages,
        initial=_metadata(call.initial_metadata()),
        trailing=_metadata(call.trailing_metadata()),
    )


def _messages(call: Any) -> Iterator[bytes]:
    try:
        yield from call
    except grpc.RpcError as error:
        if error is not call:
            raise


def _metadata(entries: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    return tuple((entry[0], entry[1]) for entry in entries or ())


def _same(message: bytes) -> bytes:
    return message
