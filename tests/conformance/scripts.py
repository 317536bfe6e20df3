"""What a scripted server answers; a call names its script in the header field `script`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import partial

from runtimeproxy.http2.frames import ErrorCode
from tests.peers import wire
from tests.peers.blocking import Fields
from tests.peers.scripted_server import RESPONSE, Script, ServerEnd, silent
from tests.peers.wire import DATA, END_STREAM, PADDED, Frame, goaway

TRAILERS_ONLY: Fields = (
    *RESPONSE,
    ("grpc-status", "5"),
    ("grpc-message", "no%20such"),
    ("twice", "1"),
    ("twice", "2"),
)


def answer(connection: ServerEnd, stream_id: int) -> None:
    """A success, with the request's message, which must not be long."""
    connection.headers(stream_id, RESPONSE)
    connection.send(Frame(DATA, 0, stream_id, bytes(connection.stream(stream_id).data)))
    connection.headers(stream_id, (("grpc-status", "0"),), end=True)


def trailers_only(connection: ServerEnd, stream_id: int) -> None:
    """One header block for all."""
    connection.headers(stream_id, TRAILERS_ONLY, end=True)


def end_with(fields: Fields, connection: ServerEnd, stream_id: int) -> None:
    """One header block with these fields."""
    connection.headers(stream_id, fields, end=True)


def end_after_message(fields: Fields, connection: ServerEnd, stream_id: int) -> None:
    """A message, and trailers with these fields."""
    connection.headers(stream_id, RESPONSE)
    connection.data(stream_id, b"message")
    connection.headers(stream_id, fields, end=True)


def reset(code: int, connection: ServerEnd, stream_id: int) -> None:
    """RST_STREAM instead of an answer."""
    connection.send(wire.reset(stream_id, code))


def reset_in_message(connection: ServerEnd, stream_id: int) -> None:
    """RST_STREAM in the middle of a message."""
    connection.headers(stream_id, RESPONSE)
    connection.send(Frame(DATA, 0, stream_id, wire.message(b"half a message")[:-5]))
    connection.send(wire.reset(stream_id, ErrorCode.INTERNAL_ERROR))


def end_in_message(connection: ServerEnd, stream_id: int) -> None:
    """END_STREAM in the middle of a message, without trailers."""
    connection.headers(stream_id, RESPONSE)
    connection.send(Frame(DATA, END_STREAM, stream_id, wire.message(b"half a message")[:-5]))


def goaway_and_close(connection: ServerEnd, stream_id: int) -> None:
    """GOAWAY that counts the call as begun, then the end of the connection."""
    connection.send(goaway(stream_id, ErrorCode.ENHANCE_YOUR_CALM, b"calm down"))
    close(connection, stream_id)


def answer_after_goaway(connection: ServerEnd, stream_id: int) -> None:
    """A server that stops gracefully."""
    connection.send(goaway(stream_id, ErrorCode.NO_ERROR))
    connection.answer(stream_id, b"the last")


def close(connection: ServerEnd, stream_id: int) -> None:
    """The end of the connection."""
    connection.sock.shutdown(socket.SHUT_RDWR)


def padded(connection: ServerEnd, stream_id: int) -> None:
    """A message cut into padded frames."""
    connection.headers(stream_id, RESPONSE)
    message = wire.message(b"0123456789")
    for octet in message:
        connection.send(Frame(DATA, PADDED, stream_id, bytes((3, octet, 0, 0, 0))))
    connection.headers(stream_id, (("grpc-status", "0"),), end=True)


def headers_then_message(connection: ServerEnd, stream_id: int) -> None:
    """Headers at once; the rest when the test sends it."""
    connection.headers(stream_id, (*RESPONSE, ("early", "yes")))


def status(*fields: tuple[str, str]) -> Script:
    """A whole answer of one header block."""
    return partial(end_with, (*RESPONSE, *fields))


ENDS: Mapping[str, Script] = {
    "trailers only": trailers_only,
    "code 17": status(("grpc-status", "17"), ("grpc-message", "later")),
    "code 99999999999": status(("grpc-status", "99999999999")),
    "code -1": status(("grpc-status", "-1")),
    "code no number": status(("grpc-status", "oops")),
    "code 17 after a message": partial(end_after_message, (("grpc-status", "17"),)),
    "no code": partial(end_after_message, (("other", "field"),)),
    "http 404": partial(end_with, ((":status", "404"), ("content-type", "text/plain"))),
    "http 503": partial(end_with, ((":status", "503"),)),
    "not gRPC": partial(end_with, ((":status", "200"), ("content-type", "text/html"))),
    "reset in message": reset_in_message,
    "end in message": end_in_message,
    "goaway and close": goaway_and_close,
    "answer after goaway": answer_after_goaway,
    "close": close,
    **{f"reset {code}": partial(reset, code) for code in (0, 1, 2, 3, 7, 8, 11, 12, 14)},
}
"""All ways to end a call that a gRPC server does not show."""

SCRIPTS: Mapping[str, Script] = {**ENDS, "answer": answer, "padded": padded, "silent": silent}

EARLY_SCRIPTS: Mapping[str, Script] = {
    **{f"early {name}": script for name, script in ENDS.items()},
    "early answer": partial(end_after_message, (("grpc-status", "0"),)),
    "early headers": headers_then_message,
}
"""The same before the message has come."""
