"""A runtime that listens is not yet one that answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from runtimeproxy.frontends.cri_proxy.relay.upstream import answers_calls
from runtimeproxy.testing import CallError, FakeRuntime

METHOD = "runtime.v1.RuntimeService/Version"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(None, True, id="answers"),
        pytest.param(CallError("UNAVAILABLE", "server is not initialized yet"), False, id="starting"),
        pytest.param(CallError("UNKNOWN", "server is not initialized yet"), False, id="starting 1.6"),
        pytest.param(CallError("DEADLINE_EXCEEDED", "context deadline exceeded"), False, id="hangs"),
        pytest.param(CallError("UNIMPLEMENTED", "an old one"), True, id="old"),
        pytest.param(CallError("INTERNAL", "broken"), True, id="broken"),
    ],
)
async def test_what_it_says_of_version_counts(
    tmp_path: Path, error: CallError | None, expected: bool
) -> None:
    with FakeRuntime(tmp_path / "runtime.sock") as runtime:
        if error is not None:
            runtime.on("Version", error=error)
        assert await answers_calls(str(tmp_path / "runtime.sock"), 30) is expected


async def test_one_that_hangs_does_not_answer(tmp_path: Path) -> None:
    with FakeRuntime(tmp_path / "runtime.sock") as runtime:
        runtime.on("Version", hang=True)
        assert not await answers_calls(str(tmp_path / "runtime.sock"), 0.05)


async def test_nobody_listens(tmp_path: Path) -> None:
    assert not await answers_calls(str(tmp_path / "runtime.sock"), 30)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="another protocol"),
        pytest.param(b"", id="closes"),
        pytest.param(b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\xff", id="no header block"),
        pytest.param(b"\x00\x00\x00\x01\x0c\x00\x00\x00\x01", id="padding without end"),
        pytest.param(b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x07", id="refused stream"),
    ],
)
async def test_one_that_talks_nonsense_does_not_answer(tmp_path: Path, reply: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(24)
        writer.write(reply)
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "runtime.sock")
    async with server:
        assert not await answers_calls(str(tmp_path / "runtime.sock"), 30)
