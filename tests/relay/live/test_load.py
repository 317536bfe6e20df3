"""A load generator of another HTTP/2 implementation through the relay."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from tests.lab.programs import missing
from tests.relay.live.harness import WAIT_S, StartRelay
from tests.relay.live.test_grpc import ECHO, HELD_ECHO, Services, services
from tests.relay.playbook import forward_as_it_came
from tests.relay.wire import message

__all__ = ["services"]

REQUESTS = 2_000


@pytest.fixture
def h2load() -> str:
    """The program; only a machine that is not for tests may lack it."""
    found = shutil.which("h2load")
    if found is None:
        missing("h2load is missing: run tests/lab/install.sh")
    return found


@pytest.mark.debian
@pytest.mark.parametrize("path", [ECHO, HELD_ECHO], ids=["passing", "held"])
async def test_all_requests_succeed(
    start_relay: StartRelay, services: Services, h2load: str, folder: Path, path: str
) -> None:
    relay = await start_relay(decide=forward_as_it_came)
    (folder / "request").write_bytes(message(b"x" * 300))
    options = ["-n", str(REQUESTS), "-c", "4", "-m", "8", "-d", str(folder / "request")]
    fields = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    child = await asyncio.create_subprocess_exec(
        h2load,
        *options,
        *fields,
        f"--base-uri=unix:{relay.path}",
        f"http://localhost{path}",
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await child.communicate()
    found = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", out.decode())
    assert found is not None, out.decode()
    assert found.groups() == (str(REQUESTS), "0", "0")
    assert services.requests == [300] * REQUESTS
