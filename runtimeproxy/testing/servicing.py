"""Decorators of the servicers' methods: a ``CallError`` becomes the status of the call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import grpc

from runtimeproxy.testing.failures import CallError

Servicer = TypeVar("Servicer")
Request = TypeVar("Request")
Response = TypeVar("Response")
Item = TypeVar("Item")

Unary = Callable[[Servicer, Request, grpc.ServicerContext], Response]
Stream = Callable[[Servicer, Request, grpc.ServicerContext], Iterator[Response]]

STREAM_CHUNK = 100
"""Items in one message of a streamed list."""


def unary(method: Unary[Servicer, Request, Response]) -> Unary[Servicer, Request, Response]:
    """Marks a method with one answer."""

    @functools.wraps(method)
    def call(servicer: Servicer, request: Request, context: grpc.ServicerContext, /) -> Response:
        try:
            return method(servicer, request, context)
        except CallError as error:
            error.abort(context)

    return call


def stream(method: Stream[Servicer, Request, Response]) -> Stream[Servicer, Request, Response]:
    """Marks a method with a stream of answers."""

    @functools.wraps(method)
    def call(servicer: Servicer, request: Request, context: grpc.ServicerContext, /) -> Iterator[Response]:
        try:
            yield from method(servicer, request, context)
        except CallError as error:
            error.abort(context)

    return call


def chunks(items: Iterable[Item], size: int = STREAM_CHUNK) -> Iterator[Sequence[Item]]:
    """Cuts items into lists of at most ``size``; no items give no list."""
    source = iter(items)
    while chunk := list(islice(source, size)):
        yield chunk
