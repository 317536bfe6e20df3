"""Declares a field of each kind; as `sitecustomize` it does so at the start of each process.

The CRI gets scalars, too, as if it were a newer one; other fields only NRI carries.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool

from runtimeproxy.fields import declared, formats
from runtimeproxy.fields.declaration import Declaration, Direction, Kind

SYNTHETIC = (
    Declaration(
        name="cpu.made_up_ns",
        neutral=0,
        minimum=-5,
        maximum=1_000,
        v1=formats.number("cpu.made_up_ns"),
        v2=formats.number("cpu.made_up_ns"),
    ),
    Declaration(
        name="cpuset.cpus.made_up",
        kind=Kind.CPUS,
        neutral="",
        v2=formats.cpu_list("cpuset.cpus.made_up"),
        direction=Direction.UNION,
    ),
    Declaration(
        name="cpuset.mems.made_up",
        kind=Kind.MEMORY_NODES,
        neutral="",
        v2=formats.cpu_list("cpuset.mems.made_up"),
        direction=Direction.UNION,
    ),
    Declaration(
        name="cpuset.made_up_kind",
        kind=Kind.TEXT,
        neutral="member",
        texts=("member", "root"),
        v2=formats.text("cpuset.made_up_kind"),
    ),
    Declaration(
        name="memory.made_up_in_bytes",
        neutral=-1,
        unlimited=True,
        v1=formats.memory_v1("memory.made_up_in_bytes"),
        v2=formats.memory_v2("memory.made_up"),
        direction=Direction.LARGER,
        resource="made_up_bytes",
        cri="made_up_in_bytes",
        oci=("memory", "madeUp"),
    ),
    Declaration(
        name="made_up_score",
        neutral=0,
        minimum=-10,
        maximum=10,
        only_set=True,
        resource="made_up_score",
        cri="made_up_score",
        creation_only=True,
    ),
    Declaration(
        name="memory.made_up.max",
        neutral=-1,
        unlimited=True,
        v2=formats.number_or_max("memory.made_up.max"),
        only_unified=True,
    ),
    Declaration(
        name="pids.made_up.max",
        neutral=-1,
        unlimited=True,
        policy_minimum=1,
        v2=formats.number_or_max("pids.made_up.max"),
        resource="made_up_pids",
    ),
    Declaration(
        name="made_up_class",
        kind=Kind.TEXT,
        pattern="[a-z]+",
        only_set=True,
        resource="made_up_class",
        creation_only=True,
    ),
)
FILES = {
    "cpu.made_up_ns": "0",
    "cpuset.cpus.made_up": "",
    "cpuset.mems.made_up": "",
    "cpuset.made_up_kind": "member",
    "memory.made_up": "max",
    "memory.made_up.max": "max",
    "pids.made_up.max": "max",
}
"""What a kernel has that knows them, in a new cgroup of version 2."""


class _Pool:
    """Descriptors in which the CRI's resources have one more field for each of these names."""

    def __init__(self, pool: Any, names: tuple[str, ...]) -> None:
        self._pool, self._names = pool, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def AddSerializedFile(self, data: bytes) -> Any:  # noqa: N802 - protobuf's name
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
        for message in file.message_type:
            if file.package.startswith("runtime.") and message.name == "LinuxContainerResources":
                for number, name in enumerate(self._names, 500):
                    message.field.add(name=name, number=number, type="TYPE_INT64", label="LABEL_OPTIONAL")
        return self._pool.AddSerializedFile(file.SerializeToString())


def declare() -> None:
    """Before any module reads them; those that a checkout declares itself are there already."""
    known = {field.name for field in declared.DECLARED}
    declared.DECLARED += tuple(field for field in SYNTHETIC if field.name not in known)
    pool = _Pool(descriptor_pool.Default(), tuple(field.cri for field in SYNTHETIC if field.cri))
    descriptor_pool.Default = lambda: pool  # type: ignore[assignment, return-value]


if __name__ == "sitecustomize":
    declare()
