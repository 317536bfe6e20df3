"""Calls on bytes, and what they end with."""

from typing import Any

import grpc

VERSION_PATH = "/runtime.v1.RuntimeService/Version"


# The types of gRPC's stubs do not know that an RpcError is a Call, nor calls on bytes.
def error_of(error: Any) -> tuple[grpc.StatusCode, str]:
    return error.code(), error.details()


def trailers_of(call: Any) -> list[tuple[str, str | bytes]]:
    return [(entry[0], entry[1]) for entry in call.trailing_metadata()]


def bytes_call(channel: Any, path: str, kind: str = "unary_unary") -> Any:
    return getattr(channel, kind)(path)
