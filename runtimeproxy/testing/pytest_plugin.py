"""Pytest fixtures. Pytest loads this through the ``pytest11`` entry point, so nothing heavy here."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from runtimeproxy.config.settings import HooksSettings
    from runtimeproxy.hooks import Policy
    from runtimeproxy.hooks.settings import PolicySettings
    from runtimeproxy.testing.koord_proxy import StartProxy
    from runtimeproxy.testing.server import FakeRuntime


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, which pytest's ``tmp_path`` may not be."""
    folder = Path(tempfile.mkdtemp(prefix="cri-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def fake_runtime(socket_folder: Path) -> Iterator[FakeRuntime]:
    """An empty fake runtime that serves for the time of the test."""
    from runtimeproxy.testing.server import FakeRuntime

    with FakeRuntime(socket_folder / "runtime.sock") as runtime:
        yield runtime


@pytest.fixture
def fake_nri_runtime(socket_folder: Path) -> Iterator[FakeRuntime]:
    """As ``fake_runtime``, with NRI plugins: its ``state`` is an ``NriRuntimeState``."""
    from runtimeproxy.testing.nri_runtime import NriAdaptation
    from runtimeproxy.testing.nri_state import NriRuntimeState
    from runtimeproxy.testing.server import FakeRuntime

    state = NriRuntimeState(NriAdaptation(socket_folder / "nri.sock"))
    with FakeRuntime(socket_folder / "runtime.sock", state=state) as runtime:
        yield runtime


@pytest.fixture
def koord_proxy(fake_runtime: FakeRuntime, socket_folder: Path) -> Iterator[StartProxy]:
    """Starts the proxy before ``fake_runtime``: ``koord_proxy(policies=[QuietNeighbour])``."""
    from runtimeproxy.testing.koord_proxy import KoordProxy

    with contextlib.ExitStack() as proxies:

        def start(
            policies: Iterable[type[Policy] | Policy],
            *,
            settings: Mapping[str, PolicySettings] | None = None,
            hooks: HooksSettings | None = None,
        ) -> KoordProxy:
            proxy = KoordProxy(fake_runtime, socket_folder, policies, settings=settings, hooks=hooks)
            return proxies.enter_context(proxy)

        yield start
