"""Each asynchronous test of this folder runs in both event loops."""

from tests.event_loops import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
