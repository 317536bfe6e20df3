"""Sandboxes, containers and images of the fake runtime, and the rules by which they change. No gRPC here.

The rules are containerd's (2.x): an id may be shortened while it is unique; stopping or removing what
does not exist succeeds; removing stops first; stopping a sandbox stops its containers.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

from cri_api.runtime.v1 import api_pb2
from runtimeproxy.fields.tables import CRI_FIELDS
from runtimeproxy.testing.behaviours import CallError, not_found
from runtimeproxy.testing.cgroups import PodCgroups

DEFAULT_SIZE_BYTES = 2_000_000
"""Size of an image for which none is given."""


@dataclass(frozen=True)
class Image:
    """One image.

    Attributes:
        id: ``sha256:`` and 64 hexadecimal digits.
        tag: Full reference with tag.
        digest: Full reference with digest.
        size_bytes: Size.
    """

    id: str
    tag: str
    digest: str
    size_bytes: int = DEFAULT_SIZE_BYTES


def normalized(reference: str) -> str:
    """Full form of an image reference: ``busybox`` is ``docker.io/library/busybox:latest``."""
    if reference.startswith("sha256:"):
        return reference
    registry, slash, rest = reference.partition("/")
    if not slash:
        reference = f"docker.io/library/{reference}"
    elif not (set(registry) & {".", ":"}) and registry != "localhost":
        reference = f"docker.io/{registry}/{rest}"
    has_tag = "@" in reference or ":" in reference.rsplit("/", 1)[-1]
    return reference if has_tag else f"{reference}:latest"


@lru_cache(maxsize=256)
def image_of(reference: str, size_bytes: int = DEFAULT_SIZE_BYTES) -> Image:
    """An image for a reference; the same reference always gives the same ids."""
    tag = normalized(reference)
    name = tag.split("@", 1)[0].rsplit(":", 1)[0]
    return Image(f"sha256:{_hash(tag)}", tag, f"{name}@sha256:{_hash(tag + '@')}", size_bytes)


class ImageStore:
    """Images that were pulled, found by id, tag or digest."""

    def __init__(self) -> None:
        self._images: dict[str, Image] = {}

    def __iter__(self) -> Iterator[Image]:
        return iter(list(self._images.values()))

    def find(self, reference: str) -> Image | None:
        """The image with this id, tag or digest, or ``None``."""
        wanted = normalized(reference)
        images = (image for image in self if wanted in {image.id, image.tag, image.digest})
        return next(images, None)

    def add(self, reference: str, size_bytes: int = DEFAULT_SIZE_BYTES) -> Image:
        """Adds the image of a reference, as a pull does, and returns it."""
        image = self.find(reference) or image_of(reference, size_bytes)
        self._images[image.id] = image
        return image

    def remove(self, reference: str) -> bool:
        """Removes an image; False if there was none."""
        image = self.find(reference)
        return image is not None and self._images.pop(image.id, None) is not None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


Resources = api_pb2.LinuxContainerResources

_Entry = TypeVar("_Entry")


@dataclass
class Sandbox:
    """One pod sandbox; times are Unix nanoseconds.

    Attributes:
        ips: Its addresses, the main one first; none on the host's network.
    """

    id: str
    config: api_pb2.PodSandboxConfig
    runtime_handler: str
    created_at_ns: int
    pid: int
    ips: tuple[str, ...]
    ready: bool = True


@dataclass
class FakeContainer:
    """One container; times are Unix nanoseconds, 0 before they are known.

    Attributes:
        config: As it was created; updates do not change it.
        resources: As applied, with the updates.
        update_annotations: Annotations of the last update.
    """

    id: str
    sandbox_id: str
    config: api_pb2.ContainerConfig
    sandbox_config: api_pb2.PodSandboxConfig
    resources: Resources
    created_at_ns: int
    state: api_pb2.ContainerState.ValueType = api_pb2.CONTAINER_CREATED
    started_at_ns: int = 0
    finished_at_ns: int = 0
    exit_code: int = 0
    reason: str = ""
    pid: int = 0
    update_annotations: dict[str, str] = field(default_factory=dict)


def merge_resources(into: Resources, update: Resources) -> None:
    """Applies an update: what is set replaces, ``unified`` by key; what only a creation sets never changes.

    Source: containerd, updateOCIResource of the CRI plugin.
    """
    kept = {name: getattr(into, name) for name in _CREATION_ONLY}
    if update.hugepage_limits:
        del into.hugepage_limits[:]
    into.MergeFrom(update)
    for name, value in kept.items():
        setattr(into, name, value)


_CREATION_ONLY: Final = tuple(field.cri for field in CRI_FIELDS.values() if field.creation_only)


def find(entries: Mapping[str, _Entry], wanted: str, kind: str) -> _Entry:
    """The entry with this id or unique prefix of one; raises ``CallError`` if there is none."""
    entry = find_or_none(entries, wanted, kind)
    if entry is None:
        raise not_found(kind, wanted)
    return entry


def find_or_none(entries: Mapping[str, _Entry], wanted: str, kind: str) -> _Entry | None:
    """As ``find``, but ``None`` if nothing has the id; an ambiguous prefix still fails."""
    if wanted in entries:
        return entries[wanted]
    matching = [entry for key, entry in entries.items() if wanted and key.startswith(wanted)]
    if len(matching) > 1:
        raise CallError("UNKNOWN", f"multiple {kind} ids begin with {wanted!r}")
    return matching[0] if matching else None


EventType: TypeAlias = api_pb2.ContainerEventType.ValueType

KILLED_EXIT_CODE = 137
"""Exit code of a process that SIGKILL ended: 128 and the signal's number."""

_FIRST_PID = 2**22 + 1
"""Above the largest possible pid (Source: kernel, PID_MAX_LIMIT), so never that of a process."""


class RuntimeState:
    """Sandboxes, containers and images of one runtime, safe to use from several threads.

    Attributes:
        cgroups: Paths of cgroups, and their files if there are any.
        lock: Held while anything is read or changed; hold it to see several things at one time.
        generation: Grows with every change.
        listeners: Called under the lock with an id and the kind of each life-cycle event.
        pod_ips: By pod uid, the addresses that its next sandbox gets; other pods get one of 10.88.0.0/16.
    """

    def __init__(
        self,
        cgroups: PodCgroups | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.cgroups = cgroups or PodCgroups()
        self.clock_ns = clock_ns
        self.lock = threading.RLock()
        self.generation = 0
        self.listeners: list[Callable[[str, EventType], None]] = []
        self.sandboxes: dict[str, Sandbox] = {}
        self.containers: dict[str, FakeContainer] = {}
        self.images = ImageStore()
        self.checkpoints: dict[str, tuple[Sandbox, list[FakeContainer]]] = {}
        self.pod_cidr = ""
        self.pod_ips: dict[str, tuple[str, ...]] = {}
        self._made = 0

    def find_sandbox(self, sandbox_id: str) -> Sandbox:
        """The sandbox with this id or unique prefix of one; raises ``CallError`` if there is none."""
        with self.lock:
            return find(self.sandboxes, sandbox_id, "sandbox")

    def find_container(self, container_id: str) -> FakeContainer:
        """The container with this id or unique prefix; raises ``CallError`` if there is none."""
        with self.lock:
            return find(self.containers, container_id, "container")

    def containers_of(self, sandbox_id: str) -> list[FakeContainer]:
        """Containers of a sandbox in the order of creation; the full id is needed."""
        with self.lock:
            return [entry for entry in self.containers.values() if entry.sandbox_id == sandbox_id]

    def open(self) -> None:
        """Called when the runtime begins to serve."""

    def close(self) -> None:
        """Called when the runtime has ended."""

    def run_sandbox(self, config: api_pb2.PodSandboxConfig, runtime_handler: str = "") -> Sandbox:
        """Creates a sandbox, which is ready at once."""
        with self.lock:
            made = self._make_sandbox(config, runtime_handler)
            self._add_sandbox(made)
            return made

    def _make_sandbox(self, config: api_pb2.PodSandboxConfig, runtime_handler: str) -> Sandbox:
        """Makes a sandbox with its cgroup, that nobody sees yet."""
        if not config.HasField("metadata"):
            raise CallError("INVALID_ARGUMENT", "sandbox config has no metadata")
        with self.lock:
            pid = self._next_pid()
            number = self._made
            host_network = config.linux.security_context.namespace_options.network == api_pb2.NODE
            usual = (f"10.88.{number // 254 % 256}.{number % 254 + 1}",)
            ips = () if host_network else self.pod_ips.get(config.metadata.uid, usual)
            copy = api_pb2.PodSandboxConfig()
            copy.CopyFrom(config)
            made = Sandbox(_new_id(), copy, runtime_handler, self.clock_ns(), pid, ips)
            # What cannot be made is not there.
            self.cgroups.make_sandbox(made.config, made.id)
            return made

    def _add_sandbox(self, made: Sandbox) -> None:
        with self.lock:
            self.sandboxes[made.id] = made
            self._changed(made.id, api_pb2.CONTAINER_CREATED_EVENT)
            self._changed(made.id, api_pb2.CONTAINER_STARTED_EVENT)

    def stop_sandbox(self, sandbox_id: str) -> None:
        """Stops a sandbox and its containers; nothing happens if it is stopped or does not exist."""
        with self.lock:
            sandbox = find_or_none(self.sandboxes, sandbox_id, "sandbox")
            if sandbox is None or not sandbox.ready:
                return
            for container in self.containers_of(sandbox.id):
                self.stop_container(container.id)
            sandbox.ready = False
            self.cgroups.remove(sandbox.config, sandbox.id)
            self._changed(sandbox.id, api_pb2.CONTAINER_STOPPED_EVENT)

    def remove_sandbox(self, sandbox_id: str) -> None:
        """Stops and removes a sandbox and its containers; a missing one is not an error."""
        with self.lock:
            sandbox = find_or_none(self.sandboxes, sandbox_id, "sandbox")
            if sandbox is None:
                return
            self.stop_sandbox(sandbox.id)
            for container in self.containers_of(sandbox.id):
                self.remove_container(container.id)
            del self.sandboxes[sandbox.id]
            if not self._shares_cgroup_parent(sandbox):
                self.cgroups.drop_pod(sandbox.config)
            self._changed(sandbox.id, api_pb2.CONTAINER_DELETED_EVENT)

    def update_sandbox(self, sandbox_id: str, overhead: Resources, resources: Resources) -> None:
        """Keeps the new pod-level resources; the kubelet has written the cgroup itself."""
        with self.lock:
            linux = self.find_sandbox(sandbox_id).config.linux
            merge_resources(linux.overhead, overhead)
            merge_resources(linux.resources, resources)
            self.generation += 1

    def create_container(
        self,
        sandbox_id: str,
        config: api_pb2.ContainerConfig,
        sandbox_config: api_pb2.PodSandboxConfig | None = None,
    ) -> FakeContainer:
        """Creates a container; without a sandbox config that of the sandbox is taken."""
        with self.lock:
            made = self._make_container(sandbox_id, config, sandbox_config)
            self._add_container(made)
            return made

    def _make_container(
        self,
        sandbox_id: str,
        config: api_pb2.ContainerConfig,
        sandbox_config: api_pb2.PodSandboxConfig | None,
    ) -> FakeContainer:
        """Makes a container that nobody sees yet."""
        if not config.HasField("metadata"):
            raise CallError("INVALID_ARGUMENT", "container config has no metadata")
        with self.lock:
            sandbox = self.find_sandbox(sandbox_id)
            if not sandbox.ready:
                raise CallError("UNKNOWN", f"sandbox {sandbox.id!r} is not running")
            copies = api_pb2.CreateContainerRequest(config=config, sandbox_config=sandbox_config)
            resources = Resources()
            resources.CopyFrom(config.linux.resources)
            return FakeContainer(
                _new_id(),
                sandbox.id,
                copies.config,
                copies.sandbox_config if sandbox_config is not None else sandbox.config,
                resources,
                self.clock_ns(),
            )

    def _add_container(self, made: FakeContainer) -> None:
        with self.lock:
            self.containers[made.id] = made
            self._changed(made.id, api_pb2.CONTAINER_CREATED_EVENT)

    def start_container(self, container_id: str) -> None:
        """Starts a created container and makes its cgroup; in any other state this fails."""
        with self.lock:
            self._run(self._make_task(container_id))

    def _make_task(self, container_id: str) -> FakeContainer:
        """Makes the cgroup and first process of a created container; its program does not run yet."""
        with self.lock:
            container = self.find_container(container_id)
            if container.state != api_pb2.CONTAINER_CREATED or container.pid:
                raise CallError("UNKNOWN", f"container {container.id!r} is not in created state")
            container.pid = self._next_pid()
            self.cgroups.make_container(container.sandbox_config, container.id, container.resources)
            return container

    def _run(self, container: FakeContainer) -> None:
        with self.lock:
            container.state = api_pb2.CONTAINER_RUNNING
            container.started_at_ns = self.clock_ns()
            self._changed(container.id, api_pb2.CONTAINER_STARTED_EVENT)

    def stop_container(self, container_id: str) -> None:
        """Kills a running container; nothing happens if it does not run or does not exist."""
        with self.lock:
            container = find_or_none(self.containers, container_id, "container")
            if container is not None and container.state == api_pb2.CONTAINER_RUNNING:
                self.exit_container(container.id, KILLED_EXIT_CODE)

    def exit_container(self, container_id: str, exit_code: int = 0, reason: str = "") -> None:
        """Ends a running container by itself, as when its process exits."""
        with self.lock:
            container = self.find_container(container_id)
            if container.state != api_pb2.CONTAINER_RUNNING:
                raise CallError("UNKNOWN", f"container {container.id!r} is not running")
            container.state = api_pb2.CONTAINER_EXITED
            container.finished_at_ns = self.clock_ns()
            container.exit_code = exit_code
            container.reason = reason or ("Error" if exit_code else "Completed")
            container.pid = 0
            self.cgroups.remove(container.sandbox_config, container.id)
            self._changed(container.id, api_pb2.CONTAINER_STOPPED_EVENT)

    def remove_container(self, container_id: str) -> None:
        """Stops and removes a container; a missing one is not an error."""
        with self.lock:
            container = find_or_none(self.containers, container_id, "container")
            if container is None:
                return
            self.stop_container(container.id)
            del self.containers[container.id]
            self._changed(container.id, api_pb2.CONTAINER_DELETED_EVENT)

    def update_container(
        self, container_id: str, resources: Resources, annotations: Mapping[str, str]
    ) -> None:
        """Merges the parameters that are set into the container's resources and its cgroup."""
        with self.lock:
            container = self.find_container(container_id)
            merge_resources(container.resources, resources)
            container.update_annotations = dict(annotations)
            if container.pid:
                self.cgroups.update_container(container.sandbox_config, container.id, container.resources)
            self.generation += 1

    def cgroup_path(self, owner_id: str) -> str:
        """Path below the cgroup root of a sandbox's or container's cgroup; "" without a parent."""
        with self.lock:
            container = self.containers.get(owner_id)
            config = self.find_sandbox(owner_id).config if container is None else container.sandbox_config
            return self.cgroups.path(config, owner_id)

    def _shares_cgroup_parent(self, sandbox: Sandbox) -> bool:
        parent = sandbox.config.linux.cgroup_parent
        return any(other.config.linux.cgroup_parent == parent for other in self.sandboxes.values())

    def _next_pid(self) -> int:
        self._made += 1
        return _FIRST_PID + self._made

    def _changed(self, owner_id: str, event: EventType) -> None:
        self.generation += 1
        for listener in self.listeners:
            listener(owner_id, event)


def _new_id() -> str:
    return secrets.token_hex(32)
