"""The floor: moves bytes between two Unix sockets in uvloop and looks at none of them."""

from __future__ import annotations

import argparse
import asyncio
from typing import cast

import uvloop


class Half(asyncio.Protocol):
    """One end of a spliced pair; what arrives here is written to the peer."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer: Half | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        peer = self.peer
        if peer is not None and peer.transport is not None:
            peer.transport.write(data)

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()
        self.peer = None


class Front(Half):
    """The accepted end; keeps what it reads until its upstream is open."""

    def __init__(self, upstream: str, tasks: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self.upstream = upstream
        self.tasks = tasks
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        task = asyncio.get_running_loop().create_task(self.open())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def data_received(self, data: bytes) -> None:
        peer = self.peer
        if peer is None or peer.transport is None:
            self.early.append(data)
        else:
            peer.transport.write(data)

    async def open(self) -> None:
        """Connects to the upstream and joins the two halves."""
        back = Half()
        back.peer = self
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: back, self.upstream)
        except OSError:
            if self.transport is not None:
                self.transport.close()
            return
        self.peer = back
        if back.transport is not None:
            back.transport.writelines(self.early)
        self.early.clear()


async def serve(listen: str, upstream: str) -> None:
    """Splices every connection on `listen` to a new one to `upstream`, until it is killed."""
    tasks: set[asyncio.Task[None]] = set()
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: Front(upstream, tasks), listen, backlog=128
    )
    await server.serve_forever()


def main() -> None:
    """Command line: `--listen PATH --upstream PATH`."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.splice", description=__doc__)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--upstream", required=True)
    options = parser.parse_args()
    uvloop.run(serve(options.listen, options.upstream))


if __name__ == "__main__":
    main()
