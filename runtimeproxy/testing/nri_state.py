"""The state of a fake runtime that has NRI plugins: they are asked about each step of pods and containers.

Source: github.com/containerd/containerd/v2 v2.4.2, internal/cri/server and internal/nri; what replies do to a
container: github.com/containerd/nri v0.12.5, pkg/adaptation/result.go.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from google.protobuf.message import Message

from cri_api.nri.v1alpha1 import api_pb2 as nri
from cri_api.runtime.v1 import api_pb2
from runtimeproxy.testing.behaviours import CallError
from runtimeproxy.testing.cgroups import PodCgroups
from runtimeproxy.testing.nri_messages import (
    Owners,
    adjust,
    created_resources,
    cri_resources,
    merge,
    more_files,
    new_container_message,
    pod_message,
    pod_resources,
    set_state,
    spec_resources,
)
from runtimeproxy.testing.nri_runtime import NriAdaptation, method_name
from runtimeproxy.testing.state import (
    KILLED_EXIT_CODE,
    FakeContainer,
    Resources,
    RuntimeState,
    Sandbox,
    find_or_none,
)


class NriRuntimeState(RuntimeState):
    """The state of a runtime whose plugins are asked about each step. Nothing is asked under the lock.

    Attributes:
        nri: The plugins.
        specs: The containers by id as they are after all adjustments, with the resources that they have now.
    """

    def __init__(
        self,
        adaptation: NriAdaptation,
        cgroups: PodCgroups | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        super().__init__(cgroups, clock_ns)
        self.nri = adaptation
        self.specs: dict[str, nri.Container] = {}
        self._stopped: set[str] = set()

    def open(self) -> None:
        """Listens for plugins."""
        self.nri.start(self)

    def close(self) -> None:
        """Cuts the connections of all plugins."""
        self.nri.stop()

    def listed(self) -> tuple[list[nri.PodSandbox], list[nri.Container]]:
        """What a plugin is synchronized with: all but the containers that have ended."""
        with self.lock:
            pods = [pod_message(each, self.cgroups.driver) for each in self.sandboxes.values()]
            running = (each for each in self.containers.values() if each.state != api_pb2.CONTAINER_EXITED)
            return pods, [self._message(each) for each in running]

    def apply_updates(self, updates: Iterable[nri.ContainerUpdate]) -> list[nri.ContainerUpdate]:
        """Updates containers as plugins want it; returns the updates that failed and should not."""
        failed = []
        for update in updates:
            try:
                with self.lock:
                    container = self.find_container(update.container_id)
                    annotations = container.update_annotations
                    self._update(container, cri_resources(update.linux.resources), annotations)
            except CallError:
                if not update.ignore_failure:
                    failed.append(update)
        return failed

    def run_sandbox(self, config: api_pb2.PodSandboxConfig, runtime_handler: str = "") -> Sandbox:
        """Creates a sandbox; one that a plugin refuses is gone again."""
        made = self._make_sandbox(config, runtime_handler)
        pod = pod_message(made, self.cgroups.driver)
        try:
            self.nri.ask(nri.RUN_POD_SANDBOX, nri.RunPodSandboxRequest(pod=pod), nri.RunPodSandboxResponse)
        except CallError:
            self._tell_pod(nri.STOP_POD_SANDBOX, pod)
            self._tell_pod(nri.REMOVE_POD_SANDBOX, pod)
            self.cgroups.remove(made.config, made.id)
            raise
        self._add_sandbox(made)
        return made

    def stop_sandbox(self, sandbox_id: str) -> None:
        """Stops a sandbox and its containers; plugins are told then."""
        with self.lock:
            sandbox = find_or_none(self.sandboxes, sandbox_id, "sandbox")
            if sandbox is None or not sandbox.ready:
                return
            containers = self.containers_of(sandbox.id)
        for container in containers:
            self.stop_container(container.id)
        super().stop_sandbox(sandbox.id)
        self._tell_pod(nri.STOP_POD_SANDBOX, pod_message(sandbox, self.cgroups.driver))

    def remove_sandbox(self, sandbox_id: str) -> None:
        """Stops and removes a sandbox and its containers; plugins are told then."""
        with self.lock:
            sandbox = find_or_none(self.sandboxes, sandbox_id, "sandbox")
            if sandbox is None:
                return
            containers = self.containers_of(sandbox.id)
        self.stop_sandbox(sandbox.id)
        for container in containers:
            self.remove_container(container.id)
        super().remove_sandbox(sandbox.id)
        self._tell_pod(nri.REMOVE_POD_SANDBOX, pod_message(sandbox, self.cgroups.driver))

    def update_sandbox(self, sandbox_id: str, overhead: Resources, resources: Resources) -> None:
        """Keeps new pod-level resources unless a plugin refuses."""
        sandbox = self.find_sandbox(sandbox_id)
        request = nri.UpdatePodSandboxRequest(
            pod=pod_message(sandbox, self.cgroups.driver),
            overhead_linux_resources=pod_resources(overhead),
            linux_resources=pod_resources(resources),
        )
        self.nri.ask(nri.UPDATE_POD_SANDBOX, request, nri.UpdatePodSandboxResponse)
        super().update_sandbox(sandbox.id, overhead, resources)
        self._tell_pod(nri.POST_UPDATE_POD_SANDBOX, pod_message(sandbox, self.cgroups.driver))

    def create_container(
        self,
        sandbox_id: str,
        config: api_pb2.ContainerConfig,
        sandbox_config: api_pb2.PodSandboxConfig | None = None,
    ) -> FakeContainer:
        """Creates a container as plugins adjust it; one that a plugin refuses is in no list."""
        made = self._make_container(sandbox_id, config, sandbox_config)
        spec = new_container_message(made, self.cgroups.driver)
        try:
            updates = self._adjust(self._pod(made), spec)
        except CallError:
            self._tell(nri.STOP_CONTAINER, made, spec)
            self._tell(nri.REMOVE_CONTAINER, made, spec)
            raise
        made.resources.CopyFrom(spec_resources(spec.linux))
        with self.lock:
            self.specs[made.id] = spec
            self._add_container(made)
        self.apply_updates(updates)
        self._tell(nri.POST_CREATE_CONTAINER, made)
        return made

    def start_container(self, container_id: str) -> None:
        """Starts a container; plugins are asked while its cgroup is there and its program is not."""
        with self.lock:
            container = self._make_task(container_id)
            files, resources = self.cgroups.files, self.specs[container.id].linux.resources
            if files is not None and files.version == 1 and resources.unified:
                self._end_task(container)
                raise CallError("UNKNOWN", "unified resources need cgroup version 2")
            path = self.cgroups.path(container.sandbox_config, container.id)
            if files is not None and files.version == 2 and path:
                for name, value in more_files(resources).items():
                    files.write(path, name, value)
        request = nri.StartContainerRequest(pod=self._pod(container), container=self._message(container))
        try:
            self.nri.ask(nri.START_CONTAINER, request, nri.StartContainerResponse)
        except CallError:
            self._end_task(container)
            self._tell_stopped(container)
            raise
        self._run(container)
        self._tell(nri.POST_START_CONTAINER, container)

    def update_container(
        self, container_id: str, resources: Resources, annotations: Mapping[str, str]
    ) -> None:
        """Updates a container with what plugins make of the resources."""
        container = self.find_container(container_id)
        pod, spec = self._pod(container), self._message(container)
        wanted, updates = pod_resources(resources), _Updates()

        def on_reply(plugin: str, reply: nri.UpdateContainerResponse) -> None:
            for update in updates.claim(reply.update, plugin):
                if update.container_id == container.id:
                    merge(wanted, update.linux.resources)

        self.nri.ask_each(
            nri.UPDATE_CONTAINER,
            lambda: nri.UpdateContainerRequest(pod=pod, container=spec, linux_resources=wanted),
            nri.UpdateContainerResponse,
            on_reply,
        )
        is_changed = updates.by_id.pop(container.id, None) is not None
        self.apply_updates(updates.by_id.values())
        self._update(container, cri_resources(wanted) if is_changed else resources, annotations)
        self._tell(nri.POST_UPDATE_CONTAINER, container)

    def stop_container(self, container_id: str) -> None:
        """Kills a running container; plugins are told then."""
        with self.lock:
            container = find_or_none(self.containers, container_id, "container")
        if container is not None and container.state == api_pb2.CONTAINER_RUNNING:
            # It may end by itself just now.
            with contextlib.suppress(CallError):
                self.exit_container(container.id, KILLED_EXIT_CODE)

    def exit_container(self, container_id: str, exit_code: int = 0, reason: str = "") -> None:
        """Ends a running container by itself; plugins are told then."""
        container = self.find_container(container_id)
        super().exit_container(container.id, exit_code, reason)
        self._tell_stopped(container)

    def remove_container(self, container_id: str) -> None:
        """Stops and removes a container; plugins are told before."""
        with self.lock:
            container = find_or_none(self.containers, container_id, "container")
        if container is None:
            return
        self.stop_container(container.id)
        self._tell_stopped(container)
        self._tell(nri.REMOVE_CONTAINER, container)
        super().remove_container(container.id)
        with self.lock:
            self.specs.pop(container.id, None)
            self._stopped.discard(container.id)

    def _adjust(self, pod: nri.PodSandbox, spec: nri.Container) -> Iterable[nri.ContainerUpdate]:
        """Asks plugins about a new container and applies what they say; returns what they want of others."""
        owners, whole, updates = Owners(), nri.ContainerAdjustment(), _Updates()
        asked: list[str] = []

        def on_reply(plugin: str, reply: nri.CreateContainerResponse) -> None:
            asked.append(plugin)
            for place in self.nri.options.ignored:
                _clear(reply.adjust, place)
            owners.claim(reply.adjust, plugin)
            adjust(spec, reply.adjust)
            merge(whole, reply.adjust)
            for update in updates.claim(reply.update, plugin):
                if update.container_id == spec.id:
                    raise CallError(
                        "UNKNOWN", f'plugin "{plugin}" asked update of "{spec.id}" during creation'
                    )

        self.nri.ask_each(
            nri.CREATE_CONTAINER,
            lambda: nri.CreateContainerRequest(pod=pod, container=spec),
            nri.CreateContainerResponse,
            on_reply,
        )
        request = nri.ValidateContainerAdjustmentRequest(
            pod=pod,
            container=spec,
            adjust=whole,
            update=updates.by_id.values(),
            plugins=[nri.PluginInstance(index=each[:2], name=each[3:]) for each in asked],
        )
        request.owners.owners[spec.id].CopyFrom(owners.message())
        self.nri.validate(request)
        return updates.by_id.values()

    def _update(self, container: FakeContainer, resources: Resources, annotations: Mapping[str, str]) -> None:
        with self.lock:
            super().update_container(container.id, resources, annotations)
            merge(self.specs[container.id].linux.resources, created_resources(resources))

    def _pod(self, container: FakeContainer) -> nri.PodSandbox:
        with self.lock:
            return pod_message(self.find_sandbox(container.sandbox_id), self.cgroups.driver)

    def _message(self, container: FakeContainer) -> nri.Container:
        with self.lock:
            message = nri.Container()
            message.CopyFrom(self.specs[container.id])
            set_state(message, container)
            return message

    def _end_task(self, container: FakeContainer) -> None:
        with self.lock:
            container.pid = 0
            self.cgroups.remove(container.sandbox_config, container.id)

    def _tell_pod(self, event: nri.Event.ValueType, pod: nri.PodSandbox) -> None:
        """Tells plugins of a pod; an error has no consequence."""
        self._notify(event, _request(event)(pod=pod))

    def _tell(
        self, event: nri.Event.ValueType, container: FakeContainer, spec: nri.Container | None = None
    ) -> None:
        """Tells plugins of a container; an error has no consequence."""
        message = spec if spec is not None else self._message(container)
        self._notify(event, _request(event)(pod=self._pod(container), container=message))

    def _tell_stopped(self, container: FakeContainer) -> None:
        """Tells plugins that a container has ended, once."""
        with self.lock:
            if container.id in self._stopped:
                return
            self._stopped.add(container.id)
        self._tell(nri.STOP_CONTAINER, container)

    def _notify(self, event: nri.Event.ValueType, request: Message) -> None:
        try:
            replies = self.nri.ask(event, request, _reply(event))
        except CallError as error:
            self.nri.record.add_problem(f"{method_name(event)}: {error.message}")
            return
        for reply in replies:
            if isinstance(reply, nri.StopContainerResponse):
                self.apply_updates(reply.update)


class _Updates:
    """What plugins want of containers that exist, while one request is handled."""

    def __init__(self) -> None:
        self.by_id: dict[str, nri.ContainerUpdate] = {}
        self._owners: dict[str, Owners] = {}

    def claim(self, updates: Iterable[nri.ContainerUpdate], plugin: str) -> Iterator[nri.ContainerUpdate]:
        """Adds updates of a plugin, and gives those that count; raises CallError for another one's field."""
        for update in updates:
            owners = self._owners.setdefault(update.container_id, Owners())
            try:
                owners.claim(update.linux, plugin, "linux.")
            except CallError:
                if not update.ignore_failure:
                    raise
                continue
            known = self.by_id.setdefault(update.container_id, update)
            if known is not update:
                known.ignore_failure = known.ignore_failure and update.ignore_failure
                merge(known.linux, update.linux)
            yield update


def _request(event: nri.Event.ValueType) -> Any:  # noqa: ANN401 - a class of its own for each event
    return getattr(nri, f"{method_name(event)}Request")


def _reply(event: nri.Event.ValueType) -> type[Message]:
    return cast("type[Message]", getattr(nri, f"{method_name(event)}Response"))


def _clear(message: Message, place: str) -> None:
    """Clears a field of a message, given by its place."""
    *parents, name = place.split(".")
    for parent in parents:
        if not message.HasField(parent):
            return
        message = getattr(message, parent)
    message.ClearField(name)
