"""Long messages read in pieces are those that are read at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from cri_api import parsing
from cri_api.parsing import PIECE_BYTES, SHORT_BYTES, TooManyPartsError, parse
from cri_api.runtime.v1 import api_pb2

MANY = {f"key-{number}": "v" * (number % 50) for number in range(20_000)}


def requests() -> list[api_pb2.CreateContainerRequest]:
    annotated = api_pb2.CreateContainerRequest(pod_sandbox_id="p" * 100_000)
    annotated.config.annotations.update(MANY)
    annotated.sandbox_config.annotations.update(MANY)
    annotated.sandbox_config.labels.update(MANY)
    annotated.config.annotations["long"] = "x" * 300_000
    listed = api_pb2.CreateContainerRequest()
    for number in range(10_000):
        listed.config.envs.add(key="NAME", value=b"%d" % number)
        listed.config.mounts.add(container_path=f"/{number}")
    listed.config.envs.add(key="LONG", value=b"\xff" * 200_000)
    listed.config.linux.resources.unified.update(MANY)
    listed.config.linux.resources.cpu_quota = -1
    listed.config.linux.security_context.supplemental_groups.extend(range(50_000))
    unknown = api_pb2.CreateContainerRequest()
    unknown.config.annotations.update(MANY)
    body = unknown.SerializeToString() + b"\xaa\x7d\x80\x80\x10" + bytes(256 * 1024) + b"\xf8\x7c\x05"
    return [annotated, listed, api_pb2.CreateContainerRequest.FromString(body)]


@pytest.mark.parametrize("request_message", requests(), ids=["annotated", "listed", "unknown"])
def test_a_message_in_pieces_is_the_message(request_message: api_pb2.CreateContainerRequest) -> None:
    body = request_message.SerializeToString()
    assert len(body) > SHORT_BYTES
    pieces: list[None] = []
    found = parse(api_pb2.CreateContainerRequest, body, on_piece=lambda: pieces.append(None))
    assert found == request_message
    assert found.SerializeToString(deterministic=True) == request_message.SerializeToString(
        deterministic=True
    )
    assert len(pieces) > 3


def test_lists_of_long_messages_stay_in_order() -> None:
    request = api_pb2.RestorePodRequest()
    for number in range(5):
        config = request.container_configs.add()
        config.metadata.name = str(number)
        config.annotations.update(MANY)
    assert parse(api_pb2.RestorePodRequest, request.SerializeToString()) == request


def test_a_message_that_comes_twice_is_merged_as_protobuf_does() -> None:
    one, two = api_pb2.RunPodSandboxRequest(), api_pb2.RunPodSandboxRequest()
    one.config.annotations.update(MANY)
    two.config.annotations.update({"key-1": "newer"})
    two.config.labels.update(MANY)
    body = one.SerializeToString() + two.SerializeToString()
    assert parse(api_pb2.RunPodSandboxRequest, body) == api_pb2.RunPodSandboxRequest.FromString(body)


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\x0a\x05x", id="cut"),
        pytest.param(b"\xff" * 11, id="endless-tag"),
        pytest.param(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", id="length-beyond-all"),
        pytest.param(b"\x0b\x0c", id="group"),
        pytest.param(b"\x0f", id="no-wire-type"),
        pytest.param(b"\x0d\x00", id="cut-number"),
    ],
)
def test_broken_long_messages(tail: bytes) -> None:
    request = api_pb2.RunPodSandboxRequest()
    request.config.annotations.update(MANY)
    with pytest.raises(DecodeError):
        parse(api_pb2.RunPodSandboxRequest, request.SerializeToString() + tail)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_garbage_is_read_as_protobuf_reads_it(garbage: bytes) -> None:
    """But for groups, which no message in proto3 has."""
    body = garbage + b"\x12\x80\x80\x08" + b"x" * 131072

    def outcome(read: object) -> object:
        try:
            return read(api_pb2.StopContainerRequest, body)  # type: ignore[operator]
        except DecodeError:
            return None

    found = outcome(parse)
    if found is not None:
        assert found == outcome(lambda kind, data: kind.FromString(data))


@st.composite
def messages(draw: st.DrawFn, kind: Any, depth: int = 0) -> bytes:
    """The bytes of a message: fields in any order and more than once, lists packed or not, unknown fields."""
    body = b""
    for _ in range(draw(st.integers(0, 5))):
        field = draw(st.sampled_from([*kind.fields, None]))
        if field is None:
            unknown = st.tuples(st.sampled_from([0, 2]), st.integers(2000, 2003))
            wire_type, number = draw(unknown)
            body += number_bytes(number << 3 | wire_type)
            body += number_bytes(7) if wire_type == 0 else with_length(draw(st.binary(max_size=40)))
        elif field.message_type is not None:
            part = draw(messages(field.message_type, depth + 1)) if depth < 4 else b""
            body += number_bytes(field.number << 3 | 2) + with_length(part)
        elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            text = draw(st.sampled_from([b"", b"a", b"x" * 100, b"\xff"]))
            body += number_bytes(field.number << 3 | 2) + with_length(text)
        elif field.is_repeated and draw(st.booleans()):
            packed = b"".join(map(number_bytes, draw(st.lists(st.integers(0, 2**20), max_size=30))))
            body += number_bytes(field.number << 3 | 2) + with_length(packed)
        else:
            body += number_bytes(field.number << 3) + number_bytes(draw(st.integers(0, 2**64 - 1)))
    return body


def number_bytes(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(found) + bytes([number])


def with_length(body: bytes) -> bytes:
    return number_bytes(len(body)) + body


KINDS = [
    api_pb2.CreateContainerRequest,
    api_pb2.RestorePodRequest,
    api_pb2.UpdateContainerResourcesRequest,
    api_pb2.ListPodSandboxResponse,
    api_pb2.ContainerStatusResponse,
]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_message_in_pieces_is_the_message(data: st.DataObject) -> None:
    """And one with other bytes in it is never read as something else."""
    kind: type[Message] = data.draw(st.sampled_from(KINDS))
    body = bytearray(data.draw(messages(kind.DESCRIPTOR)))
    changes = data.draw(st.integers(0, 2))
    for _ in range(changes):
        place = data.draw(st.integers(0, len(body)))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=2))

    def outcome(read: Callable[[type[Message], bytes], Message]) -> bytes | None:
        try:
            return read(kind, bytes(body)).SerializeToString(deterministic=True)
        except DecodeError:
            return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "SHORT_BYTES", 0)
        # No number is so long.
        patch.setattr(parsing, "PIECE_BYTES", 12)
        found = outcome(parse)
    whole = outcome(lambda kind, data: kind.FromString(data))
    # Changed bytes may stand for a group, which only protobuf reads.
    assert found == whole or (changes and found is None)


def test_parts_are_counted_before_anything_is_parsed() -> None:
    request = api_pb2.RunPodSandboxRequest()
    request.config.annotations.update(MANY)
    body = request.SerializeToString()
    assert parse(api_pb2.RunPodSandboxRequest, body, max_parts_bytes=len(body)) == request
    pieces: list[None] = []
    with pytest.raises(TooManyPartsError):
        parse(
            api_pb2.RunPodSandboxRequest,
            body,
            max_parts_bytes=len(body) // 2,
            on_piece=lambda: pieces.append(None),
        )
    assert len(pieces) <= len(body) // 2 // PIECE_BYTES + 1


def test_fields_are_counted_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = api_pb2.ListContainersResponse
    body = kind(containers=[api_pb2.Container(id="x" * 10)] * 20_000).SerializeToString()
    assert len(parse(kind, body, max_fields=20_000).containers) == 20_000
    pieces: list[None] = []
    with pytest.raises(TooManyPartsError):
        parse(kind, body, max_fields=19_999, on_piece=lambda: pieces.append(None))
    assert not pieces


@pytest.mark.parametrize("place", ["annotation", "variable", "unknown"])
def test_single_long_texts_are_no_parts(place: str) -> None:
    request = api_pb2.CreateContainerRequest()
    tail = b""
    if place == "annotation":
        request.config.annotations["long"] = "x" * 1_000_000
    elif place == "variable":
        request.config.envs.add(key="LONG", value=b"x" * 1_000_000)
    else:
        tail = b"\xaa\x7d\x80\x80\x40" + bytes(1024 * 1024)
    body = request.SerializeToString() + tail
    found = parse(api_pb2.CreateContainerRequest, body, max_parts_bytes=1000)
    assert found == api_pb2.CreateContainerRequest.FromString(body)


def test_a_number_of_pieces_bounds_what_is_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece is longer than one, but for single texts: each keeps the interpreter while it is parsed."""
    lengths: list[int] = []
    taken = parsing._Pieces._take

    def take(self: parsing._Pieces, message: Message, start: int, end: int) -> None:
        lengths.append(end - start)
        taken(self, message, start, end)

    monkeypatch.setattr(parsing._Pieces, "_take", take)
    request = requests()[0]
    parse(api_pb2.CreateContainerRequest, request.SerializeToString())
    assert sum(length > 2 * PIECE_BYTES for length in lengths) == 2
