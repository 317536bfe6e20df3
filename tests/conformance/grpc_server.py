"""A grpcio server of a test's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc


@contextmanager
def grpc_server(
    path: Path, handler: grpc.GenericRpcHandler, options: Sequence[tuple[str, Any]] = ()
) -> Iterator[Path]:
    """Serves on a socket for the time of the block."""
    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, handlers=[handler], options=options)
        server.add_insecure_port(f"unix://{path}")
        server.start()
        try:
            yield path
        finally:
            server.stop(None).wait()
