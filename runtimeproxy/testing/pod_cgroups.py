"""The cgroups of the fake runtime's sandboxes and containers: their paths and, if wanted, files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtimeproxy.testing.cgroup_paths import CgroupDriver, container_path, parent_path

if TYPE_CHECKING:
    from cri_api.runtime.v1 import api_pb2
    from runtimeproxy.testing.cgroup_files import CgroupFiles
    from runtimeproxy.testing.entries import Container, Sandbox


class PodCgroups:
    """Makes, changes and removes cgroups in step with the life cycle of pods.

    Attributes:
        driver: How cgroup parents are written.
        files: The tree of files; ``None`` writes none. What has no cgroup parent has no files.
    """

    def __init__(
        self, driver: CgroupDriver = CgroupDriver.CGROUPFS, files: CgroupFiles | None = None
    ) -> None:
        self.driver = driver
        self.files = files

    def path(self, config: api_pb2.PodSandboxConfig, owner_id: str) -> str:
        """Path below the cgroup root of a sandbox or container; "" without a cgroup parent."""
        parent = config.linux.cgroup_parent
        return container_path(parent, owner_id, self.driver) if parent else ""

    def make_sandbox(self, sandbox: Sandbox) -> None:
        """Makes the sandbox's cgroup, and that of the pod if the kubelet has not."""
        path = self.path(sandbox.config, sandbox.id)
        if self.files is not None and path:
            self.files.make_pod(parent_path(sandbox.config.linux.cgroup_parent, self.driver))
            self.files.make(path)

    def drop_pod(self, sandbox: Sandbox) -> None:
        """Removes the pod's cgroup if it was made here."""
        parent = sandbox.config.linux.cgroup_parent
        if self.files is not None and parent:
            self.files.drop_pod(parent_path(parent, self.driver))

    def make_container(self, container: Container) -> None:
        """Makes the cgroup of a container that starts, with its resources."""
        path = self.path(container.sandbox_config, container.id)
        if self.files is not None and path:
            self.files.make(path)
            self.files.apply(path, container.resources)

    def update_container(self, container: Container) -> None:
        """Writes the resources of a container; nothing happens unless it runs."""
        path = self.path(container.sandbox_config, container.id)
        if self.files is not None and path and container.pid:
            self.files.apply(path, container.resources)

    def remove(self, config: api_pb2.PodSandboxConfig, owner_id: str) -> None:
        """Removes the cgroup of a sandbox or container that ended."""
        path = self.path(config, owner_id)
        if self.files is not None and path:
            self.files.remove(path)
