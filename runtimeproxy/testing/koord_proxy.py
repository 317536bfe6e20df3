"""The proxy in front of a fake runtime, with exactly the policies of a test."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol, Self

import grpc

from cri_api.runtime.v1 import api_pb2_grpc
from runtimeproxy.config.settings import (
    ApiSettings,
    CgroupsSettings,
    DaemonSettings,
    HooksSettings,
    NodeSettings,
    ProxySettings,
    Settings,
    StateSettings,
)
from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks.audit import AuditEntry, AuditKind
from runtimeproxy.hooks.loaded import LoadedPolicy, bind
from runtimeproxy.hooks.loading import (
    LoadResult,
    PolicyLoader,
    PolicySources,
    checked,
    is_enabled,
    load,
    unknown_names,
)
from runtimeproxy.hooks.policy import Policy
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.service.daemon import Daemon
from runtimeproxy.testing.server import FakeRuntime

START_TIMEOUT_S: Final = 60.0
"""How long a start may take, on a machine that is busy with other tests."""

_BUDGET_S: Final = 30.0
"""Policies of a test are not hurried, unless the test gives another budget."""


class KoordProxy:
    """The real daemon in front of a fake runtime; serves while the ``with`` block runs.

    It runs in a thread of this process, so policies can be debugged, and instances can be given and
    looked at.

    Attributes:
        socket_path: Absolute path of its socket.
        fake_runtime: The runtime behind it.
    """

    def __init__(
        self,
        fake_runtime: FakeRuntime,
        folder: Path | str,
        policies: Iterable[type[Policy] | Policy],
        *,
        settings: Mapping[str, PolicySettings] | None = None,
        hooks: HooksSettings | None = None,
    ) -> None:
        """Prepares a proxy; nothing happens before ``start``.

        Args:
            fake_runtime: Where calls go. If it has cgroup files, cgroup values are written to them.
            folder: For the socket and the state; its path must be short. What is in its ``node.d`` counts as
                in ``node.objects_dir``.
            policies: Classes, or instances that are made already, and no others.
            settings: Of policies by name, as the configuration has them.
            hooks: Settings of the whole chain; ``None`` gives policies 30 s for each call.
        """
        self.socket_path = Path(folder).absolute() / f"proxy-{os.getpid()}-{id(self):x}.sock"
        self.fake_runtime = fake_runtime
        self._policies = tuple(policies)
        self._policy_settings = dict(settings or {})
        self._settings = self._daemon_settings(Path(folder), hooks or HooksSettings(budget_s=_BUDGET_S))
        self._audit: list[AuditEntry] = []
        self._audited = threading.Condition()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._daemon: Daemon | None = None
        self._ended: Future[None] = Future()

    @property
    def endpoint(self) -> str:
        """The socket as a gRPC target."""
        return f"unix://{self.socket_path}"

    @property
    def audit(self) -> list[AuditEntry]:
        """The audit entries so far; post hooks run after the response."""
        with self._audited:
            return list(self._audit)

    def wait_for_audit(
        self, kind: AuditKind | str, count: int = 1, *, policy: str | None = None, timeout_s: float = 30.0
    ) -> list[AuditEntry]:
        """Waits until there are ``count`` entries of a kind, of one policy if it is named; returns them.

        Raises:
            TimeoutError: There are fewer after the time.
        """
        wanted = AuditKind(kind)

        def found() -> list[AuditEntry]:
            return [each for each in self._audit if each.kind is wanted and policy in (None, each.policy)]

        with self._audited:
            if not self._audited.wait_for(lambda: len(found()) >= count, timeout_s):
                raise TimeoutError(f"{len(found())} of {count} audit entries of kind {wanted}")
            return found()

    @cached_property
    def channel(self) -> grpc.Channel:
        """A channel to the proxy, which ends with it."""
        return grpc.insecure_channel(self.endpoint, options=(("grpc.default_authority", "localhost"),))

    @cached_property
    def runtime(self) -> api_pb2_grpc.RuntimeServiceStub:
        """The CRI's runtime service, through the proxy."""
        return api_pb2_grpc.RuntimeServiceStub(self.channel)

    @cached_property
    def images(self) -> api_pb2_grpc.ImageServiceStub:
        """The CRI's image service, through the proxy."""
        return api_pb2_grpc.ImageServiceStub(self.channel)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Serves, with all policies loaded.

        Raises:
            PolicyLoadError: A policy breaks the contract, its options are wrong, or its constructor raises.
            RuntimeError: It was started before, or has ended.
        """
        if self._thread is not None:
            raise RuntimeError("a proxy is started once")
        serving: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(serving,), name="koord-proxy", daemon=True)
        self._thread.start()
        serving.result(START_TIMEOUT_S)

    def close(self) -> None:
        """Ends it gracefully; nothing happens if it does not run.

        Raises:
            Exception: The error that ended the proxy.
        """
        if self._thread is None:
            return
        if "channel" in vars(self):
            self.channel.close()
        if self._loop is not None and self._daemon is not None and not self._ended.done():
            self._loop.call_soon_threadsafe(self._daemon.finish)
        self._ended.result(START_TIMEOUT_S)
        self._thread.join(START_TIMEOUT_S)

    def _run(self, serving: Future[None]) -> None:
        """In the proxy's own thread."""
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(serving))
            self._ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 - `start` or `close` raises it
            if serving.done():
                self._ended.set_exception(error)
            else:
                self._ended.set_result(None)
                serving.set_exception(error)

    async def _serve(self, serving: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        loader = _Given(self._policies, self._policy_settings)
        daemon = self._daemon = Daemon(
            self._settings, lambda: self._settings, {}, loader=loader, sink=self._on_audit
        )
        ready = self._loop.create_task(daemon.ready.wait())
        ended = self._loop.create_task(daemon.serve())
        await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if not ended.done():
            serving.set_result(None)
        await ended
        if not serving.done():
            raise RuntimeError("the proxy ended before it served")

    def _on_audit(self, entry: AuditEntry) -> None:
        with self._audited:
            self._audit.append(entry)
            self._audited.notify_all()

    def _daemon_settings(self, folder: Path, hooks: HooksSettings) -> Settings:
        files = self.fake_runtime.state.cgroups.files
        nowhere = str(folder.absolute() / "sys")
        return Settings(
            proxy=ProxySettings(
                endpoint=str(self.socket_path),
                runtime_endpoint=str(self.fake_runtime.socket_path),
                own_services=False,
                drain_s=0.5,
            ),
            hooks=replace(
                hooks,
                third_party=False,
                policies_dir="",
                server_config_dir=str(folder.absolute() / "hookserver.d"),
                # Policies are loaded before the socket is there, so no call comes too early for them.
                on_load_error="stop",
            ),
            policies=self._policy_settings,
            cgroups=CgroupsSettings(enabled=False, root=nowhere)
            if files is None
            else CgroupsSettings(root=str(files.root)),
            # Files of the test only, none of this machine. Without any, the node counts as having every CPU.
            node=NodeSettings(
                sysfs_root=nowhere,
                procfs_root=nowhere,
                objects_dir=str(folder.absolute() / "node.d"),
                kubelet_dir=str(folder.absolute() / "kubelet"),
                cdi_dir=str(folder.absolute() / "cdi"),
            ),
            api=ApiSettings(admin_socket=""),
            daemon=DaemonSettings(lock=str(folder.absolute() / "front-end.lock")),
            state=StateSettings(dir=str(folder.absolute() / f"{self.socket_path.stem}.state")),
        )


class StartProxy(Protocol):
    """The fixture ``koord_proxy``."""

    def __call__(
        self,
        policies: Iterable[type[Policy] | Policy],
        *,
        settings: Mapping[str, PolicySettings] | None = None,
        hooks: HooksSettings | None = None,
    ) -> KoordProxy:
        """Returns a proxy before ``fake_runtime`` that serves until the test ends; see ``KoordProxy``."""


class _Given(PolicyLoader):
    """Loads the policies of the test."""

    def __init__(
        self, policies: Sequence[type[Policy] | Policy], settings: Mapping[str, PolicySettings]
    ) -> None:
        super().__init__()
        self._given = policies
        self._settings = settings

    def load(self, sources: PolicySources, settings: Mapping[str, PolicySettings]) -> LoadResult:
        """Loads all of them, or raises PolicyLoadError."""
        made = {type(each): each for each in self._given if isinstance(each, Policy)}
        classes = checked(each if isinstance(each, type) else type(each) for each in self._given)
        for problem in unknown_names(self._settings, [each.name for each in classes]):
            raise PolicyLoadError(str(problem))
        loaded: list[LoadedPolicy] = []
        for each in classes:
            chosen = self._settings.get(each.name, PolicySettings())
            if each not in made:
                loaded += load([each], {each.name: chosen})
            elif chosen.options:
                raise PolicyLoadError(f"policy {each.name} is an instance, which has its own options")
            elif is_enabled(each, chosen):
                loaded.append(bind(made[each], chosen))
        loaded.sort(key=lambda policy: (policy.priority, policy.name))
        return LoadResult(tuple(loaded), (), classes)
