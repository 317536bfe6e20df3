"""The servers that are in use: which are made, kept and let go as registrations change."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from runtimeproxy.hooks.chain import Chain
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.policy import Policy
from runtimeproxy.hooks.remote.registrations import Registration
from runtimeproxy.hooks.remote.server import FAILURES_TO_OPEN
from runtimeproxy.hooks.remote.server_state import ServerCounts
from runtimeproxy.hooks.remote.servers import MAX_SERVERS, HookServers
from runtimeproxy.hooks.remote.watcher import FolderWatchSettings
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.hooks.workers import Workers
from tests.hooks.asking import decide
from tests.hooks.remote.registration_files import content, write
from tests.lab.deadline import wait_until

DEADLINE_S = 30.0
QUICK = FolderWatchSettings(gather_s=0.001, grace_s=0.02)
ONE, TWO = "/run/one.sock", "/run/two.sock"


@dataclass
class Server:
    """Never answers, and records whether it was closed."""

    registration: Registration
    trouble: str = ""
    openings: int = 0
    is_closed: bool = False
    counts: ServerCounts = field(default_factory=ServerCounts)

    def as_policy(self) -> LoadedPolicy:
        registration = self.registration
        policy = type("Remote", (Policy,), {"name": registration.name})()
        return LoadedPolicy(
            name=registration.name,
            origin=registration.endpoint,
            policy=policy,
            priority=100,
            timeout_s=registration.timeout_s,
        )

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Site:
    """A folder of registrations, and all servers that were made of it."""

    folder: Path
    made: list[Server] = field(default_factory=list)
    seen: list[list[str]] = field(default_factory=list)
    """The policies' origins at each change."""
    closed: list[int] = field(default_factory=list)
    """How many servers had been let go at each change."""

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()
        self._executor = ThreadPoolExecutor(1)
        self.servers = HookServers(self.folder, 2.0, self._executor, self._make, QUICK)
        self.servers.on_change = self._note
        self._task = asyncio.get_running_loop().create_task(self.servers.run())

    async def until(self, *origins: str) -> None:
        await self.until_true(lambda: [policy.origin for policy in self.servers.policies] == [*origins])

    async def until_true(self, condition: Callable[[], bool]) -> None:
        await asyncio.to_thread(wait_until, condition, "registrations", DEADLINE_S)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._executor.shutdown()

    def _make(self, registration: Registration) -> Server:
        if registration.endpoint == "/broken":
            raise RuntimeError("a bug")
        self.made.append(Server(registration))
        return self.made[-1]

    def _note(self) -> None:
        self.seen.append([policy.origin for policy in self.servers.policies])
        self.closed.append(sum(server.is_closed for server in self.made))


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    await made.servers.read()
    yield made
    await made.stop()


async def test_what_is_there_at_the_start_is_there_after_the_first_reading(tmp_path: Path) -> None:
    for name, endpoint in (("b.json", TWO), ("a.json", ONE)):
        write(tmp_path / name, endpoint)
    site = Site(tmp_path)
    await site.servers.read()
    assert [(policy.name, policy.origin) for policy in site.servers.policies] == [
        ("a.json", ONE),
        ("b.json", TWO),
    ]
    await site.stop()
    assert all(server.is_closed for server in site.made)


async def test_a_server_stays_as_long_as_its_registration(site: Site) -> None:
    write(site.folder / "b.json", ONE)
    await site.until(ONE)
    (policy,) = site.servers.policies
    write(site.folder / "a.json", TWO)
    await site.until(TWO, ONE)
    write(site.folder / "b.json", ONE)
    (site.folder / "a.json").unlink()
    await site.until(ONE)
    assert site.servers.policies == (policy,)
    assert [(server.registration.endpoint, server.is_closed) for server in site.made] == [
        (ONE, False),
        (TWO, True),
    ]


async def test_a_changed_registration_makes_another_server(site: Site) -> None:
    texts = [content(ONE), content(ONE, failure_policy="Fail"), content(TWO)]
    for number, text in enumerate(texts, 1):
        (site.folder / "a.json").write_text(text)
        await site.until_true(lambda number=number: len(site.seen) == number)  # type: ignore[misc]
    assert [server.registration.failure_policy for server in site.made] == ["ignore", "fail", "ignore"]
    assert [server.is_closed for server in site.made] == [True, True, False]


async def test_another_default_timeout_makes_another_server(site: Site) -> None:
    write(site.folder / "a.json", ONE)
    await site.until(ONE)
    site.servers.configure(3.0)
    await site.until_true(lambda: [policy.timeout_s for policy in site.servers.policies] == [3.0])
    assert [server.is_closed for server in site.made] == [True, False]


async def test_one_that_cannot_be_made_does_not_keep_off_the_others(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    write(site.folder / "a.json", "/broken")
    write(site.folder / "b.json", ONE)
    await site.until(ONE)
    assert caplog.messages == ["hook server a.json cannot be used"]


async def test_what_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (site.folder / "a.json").write_text(content(ONE, failure_policy="Fail"))
    await site.until(ONE)
    (site.folder / "a.json").unlink()
    await site.until()
    await site.until_true(lambda: len(caplog.messages) == 2)
    assert caplog.messages == [
        f"hook server a.json is used: {ONE} for pre_create_container, failure policy fail",
        "hook server a.json is no longer used",
    ]


async def test_the_summary(site: Site) -> None:
    assert site.servers.summary == ""
    write(site.folder / "a.json", ONE)
    await site.until(ONE)
    assert site.servers.summary == "1 hook server"
    write(site.folder / "b.json", TWO)
    await site.until(ONE, TWO)
    assert site.servers.summary == "2 hook servers"
    site.made[1].trouble = "not called since noon: no such file"
    assert site.servers.summary == "2 hook servers (b.json not called since noon: no such file)"


async def test_of_many_registrations_a_bounded_number_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(MAX_SERVERS + 3):
        write(tmp_path / f"{number:03}.json", f"/run/{number}.sock")
    site = Site(tmp_path)
    await site.servers.read()
    assert [policy.origin for policy in site.servers.policies] == [
        f"/run/{n}.sock" for n in range(MAX_SERVERS)
    ]
    assert f"3 of {MAX_SERVERS + 3} are not used" in caplog.text
    assert "3 more are registered and not used" in site.servers.summary
    await site.stop()


async def test_many_dead_servers_cost_a_call_no_thread_and_no_time(tmp_path: Path) -> None:
    executor = ThreadPoolExecutor(1)
    for number in range(MAX_SERVERS):
        write(tmp_path / f"{number:03}.json", str(tmp_path / f"{number}.sock"))
    servers = HookServers(tmp_path, 2.0, executor)
    following = asyncio.get_running_loop().create_task(servers.run())
    await servers.read()
    workers = Workers(1)
    chain = Chain(servers.policies, workers)
    # Threads of earlier tests may still end.
    before = set(threading.enumerate())
    for _ in range(FAILURES_TO_OPEN + 1):
        # Less than a dead server's timeout for all of them.
        decision = await decide(chain, view=ContainerView(), budget_s=2.0)
        assert decision.change is None
        assert not any("spent" in entry.reason for entry in decision.audit)
    assert not any(policy.selector.matches(PodView()) for policy in servers.policies)
    assert workers.threads == 0
    assert set(threading.enumerate()) <= before
    following.cancel()
    await asyncio.wait([following])
    executor.shutdown()
