"""The folders of resctrl: control groups, monitoring groups, `info`, and what each file does.

Source: Linux, fs/resctrl/rdtgroup.c (rdtgroup_mkdir, rdtgroup_rmdir, rdtgroup_tasks_write,
rdtgroup_cpus_write), monitor.c (mon_event_count).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.resctrl.fuse import Caller, Node
from tests.resctrl.schemata import (
    Division,
    RefusedError,
    Resource,
    Variant,
    cpu_list,
    cpu_mask,
    refuse,
    shown_list,
    shown_mask,
)
from tests.resctrl.tasks import Tasks, all_tasks, owner_of, process_of

OCCUPIED_BYTES_PER_TASK: Final = 1 << 20
TRAFFIC_BYTES_PER_S: Final = 100 << 20
"""Of each task, through each cache, in total; half of it is local."""


@dataclass(eq=False)
class Group:
    """A control group, or a monitoring group if it has a parent."""

    name: str
    closid: int
    rmid: int
    parent: Group | None = None
    cpus: set[int] = field(default_factory=set)
    monitoring: dict[str, Group] = field(default_factory=dict)
    traffic_bytes: float = 0.0
    """Through each cache since it was made."""
    seen_at_s: float = 0.0

    @property
    def path(self) -> str:
        return f"{self.parent.path}/mon_groups/{self.name}".lstrip("/") if self.parent else self.name


class Resctrl:
    """The whole file system: its tree of nodes, and what is behind it."""

    def __init__(self, variant: Variant, tasks: Tasks[Group]) -> None:
        """Makes it as it is after a mount.

        Args:
            variant: Processor and kernel.
            tasks: Where tasks are.
        """
        self.variant = variant
        self.tasks = tasks
        self.division = Division(variant)
        self.commands: list[list[Any]] = []
        """All writes, mkdir and rmdir: process, path, text (None of folders), errno or 0."""
        self.counters: dict[str, str] = {}
        """What is shown in place of a counter, by event, GROUP/event or GROUP/CACHE/event."""
        self.denied: dict[str, int] = {}
        """The errno of writes, mkdir and rmdir, by path."""
        self.keeps_rmids = False
        """Whether RMIDs of groups that are gone stay in limbo."""
        self.status = ""
        self._online = sorted(os.sched_getaffinity(0) | set(range(os.cpu_count() or 1)))
        self._free_rmids = list(range(1, variant.rmids))
        self._limbo = 0
        self._max_occupancy = 65536
        self.default = Group("", 0, 0, cpus=set(self._online))
        self.groups: dict[str, Group] = {"": self.default}
        self.root = Node(0o755, children={})
        self.root.children = self._control_files(self.default)
        self.root.children["info"] = self._info()
        self.root.mkdir = self._mkdir_control if self.division.resources else None

    # Files.

    def _file(
        self, path: str, show: Callable[[], str], store: Callable[[str, Caller], None] | None = None
    ) -> Node:
        if store is None:
            return Node(0o444, show)

        def write(raw: bytes, caller: Caller) -> None:
            text = raw.decode("utf-8", "replace")
            self._command(path, text, caller, lambda: store(text, caller))

        return Node(0o644, show, write)

    def _command(self, path: str, text: str | None, caller: Caller, act: Callable[[], None]) -> None:
        code = 0
        self.tasks.follow()
        try:
            self._check_denied(path)
            self.status = ""
            act()
        except OSError as error:
            code = error.errno or errno.EIO
            self.status = error.status if isinstance(error, RefusedError) else ""
            raise
        finally:
            self.commands.append([process_of(caller.tid), path, text, code])

    def _check_denied(self, path: str) -> None:
        if (code := self.denied.get(path, 0)) != 0:
            raise OSError(code, "denied")

    def _control_files(self, group: Group) -> dict[str, Node]:
        prefix = f"{group.name}/" if group.name else ""

        files = self._common_files(group, prefix)
        if self.division.resources:
            closid, division = group.closid, self.division
            files |= {
                "schemata": self._file(
                    f"{prefix}schemata",
                    lambda: division.schemata(closid),
                    lambda text, _: division.write(closid, text),
                ),
                "mode": self._file(
                    f"{prefix}mode",
                    lambda: division.mode(closid),
                    lambda text, _: division.set_mode(closid, text),
                ),
                "size": self._file(f"{prefix}size", lambda: division.size(closid)),
            }
        if self.variant.rmids:
            files["mon_groups"] = Node(
                0o755, children={}, mkdir=lambda name, caller: self._mkdir_monitoring(group, name, caller)
            )
            files["mon_data"] = self._mon_data(group)
        return files

    def _common_files(self, group: Group, prefix: str) -> dict[str, Node]:
        online = self._online
        return {
            "tasks": self._file(
                f"{prefix}tasks",
                lambda: self._shown_tasks(group),
                lambda text, caller: self._move_tasks(group, text, caller),
            ),
            "cpus": self._file(
                f"{prefix}cpus",
                lambda: shown_mask(group.cpus, online),
                lambda text, _: self._set_cpus(group, cpu_mask(text, online)),
            ),
            "cpus_list": self._file(
                f"{prefix}cpus_list",
                lambda: shown_list(group.cpus),
                lambda text, _: self._set_cpus(group, cpu_list(text, online)),
            ),
        }

    def _mon_data(self, group: Group) -> Node:
        caches = {}
        for cache in self.variant.caches:
            events = {
                each: Node(0o444, self._counter(group, cache, each)) for each in self.variant.mon_features
            }
            caches[f"mon_L3_{cache:02d}"] = Node(0o555, children=events)
        return Node(0o555, children=caches)

    def _counter(self, group: Group, cache: int, event: str) -> Callable[[], str]:
        return lambda: f"{self._counted(group, cache, event)}\n"

    def _info(self) -> Node:
        folders = {each.name: self._resource_info(each) for each in self.division.resources}
        if self.variant.rmids:
            features = "".join(f"{each}\n" for each in self.variant.mon_features)
            folders["L3_MON"] = {
                "num_rmids": Node(0o444, lambda: f"{self.variant.rmids}\n"),
                "mon_features": Node(0o444, lambda: features),
                "max_threshold_occupancy": self._file(
                    "info/L3_MON/max_threshold_occupancy",
                    lambda: f"{self._max_occupancy}\n",
                    self._set_max_occupancy,
                ),
            }
        # No group can be made in `info`.
        children = {name: Node(0o555, children=files, mkdir=_no_device) for name, files in folders.items()}
        status = Node(0o444, lambda: f"{self.status}\n" if self.status else "ok\n")
        return Node(0o555, children={**children, "last_cmd_status": status}, mkdir=_no_device)

    def _resource_info(self, resource: Resource) -> dict[str, Node]:
        variant = self.variant
        constants = {"num_closids": resource.closids}
        if resource.is_mask:
            constants |= {"min_cbm_bits": resource.min_cbm_bits, "sparse_masks": int(variant.is_amd)}
            masks = {"cbm_mask": resource.largest, "shareable_bits": variant.shareable_bits}
            files = {name: Node(0o444, lambda mask=mask: f"{mask:x}\n") for name, mask in masks.items()}  # type: ignore[misc]
            files["bit_usage"] = Node(0o444, lambda: self.division.bit_usage(resource))
        else:
            constants |= {
                "min_bandwidth": resource.min_bandwidth,
                "bandwidth_gran": resource.bandwidth_gran,
                "delay_linear": int(not variant.is_amd),
            }
            files = {} if variant.is_amd else {"thread_throttle_mode": Node(0o444, lambda: "max\n")}
        return files | {name: Node(0o444, lambda n=number: f"{n}\n") for name, number in constants.items()}  # type: ignore[misc]

    def _set_max_occupancy(self, text: str, _: Caller) -> None:
        if not re.fullmatch(r"[0-9]+\n?", text):
            refuse()
        self._max_occupancy = int(text)

    # Groups.

    def _mkdir_control(self, name: str, caller: Caller) -> Node:
        def make() -> Group:
            closid = self.division.allocate()
            try:
                group = Group(name, closid, self._allocate_rmid(), seen_at_s=time.monotonic())
            except OSError:
                del self.division.shares[closid]
                raise
            self.groups[name] = group
            return group

        group = self._made(name, name, caller, make)
        return self._folder(group, self._control_files(group))

    def _mkdir_monitoring(self, parent: Group, name: str, caller: Caller) -> Node:
        def make() -> Group:
            if name == "mon_groups":
                raise PermissionError(errno.EPERM, name)
            group = Group(name, parent.closid, self._allocate_rmid(), parent, seen_at_s=time.monotonic())
            parent.monitoring[name] = group
            return group

        path = f"{parent.name}/mon_groups/{name}".lstrip("/")
        group = self._made(path, name, caller, make)
        return self._folder(
            group, {**self._common_files(group, f"{path}/"), "mon_data": self._mon_data(group)}
        )

    def _made(self, path: str, name: str, caller: Caller, make: Callable[[], Group]) -> Group:
        made: list[Group] = []
        if "\n" in name:
            raise OSError(errno.EINVAL, name)
        self._command(path, None, caller, lambda: made.append(make()))
        return made[0]

    def _folder(self, group: Group, children: dict[str, Node]) -> Node:
        return Node(
            0o755, children=children, mkdir=_not_permitted, rmdir=lambda caller: self._rmdir(group, caller)
        )

    def _rmdir(self, group: Group, caller: Caller) -> None:
        def remove() -> None:
            self._account()
            for tid, each in list(self.tasks.members().items()):
                if each is group or each.parent is group:
                    self._put(tid, group.parent or self.default)
            (group.parent or self.default).cpus |= group.cpus
            for gone in (group, *group.monitoring.values()):
                if self.keeps_rmids:
                    self._limbo += 1
                else:
                    self._free_rmids.append(gone.rmid)
            if group.parent:
                del group.parent.monitoring[group.name]
            else:
                del self.groups[group.name]
                del self.division.shares[group.closid]

        self._command(group.path, None, caller, remove)

    def _allocate_rmid(self) -> int:
        if not self.variant.rmids:
            return 0
        if not self._free_rmids:
            refuse("Out of RMIDs", errno.EBUSY if self._limbo else errno.ENOSPC)
        return self._free_rmids.pop(0)

    def _set_cpus(self, group: Group, wanted: set[int]) -> None:
        if group.parent:
            siblings = [each for each in group.parent.monitoring.values() if each is not group]
            if wanted - group.parent.cpus:
                refuse("Can only add CPUs to mongroup that belong to parent")
        else:
            siblings = [
                each
                for other in self.groups.values()
                if other is not group
                for each in (other, *other.monitoring.values())
            ]
            if group is self.default and self.default.cpus - wanted:
                refuse("Can't drop CPUs from default group")
            self.default.cpus |= group.cpus - wanted
            for child in group.monitoring.values():
                child.cpus = set()
        for each in siblings:
            each.cpus -= wanted
        group.cpus = wanted
        self.default.cpus = (
            self.default.cpus if group.parent or group is self.default else self.default.cpus - wanted
        )

    # Tasks.

    def _members(self, group: Group) -> list[int]:
        """Those of a control group are also in its monitoring groups."""
        members = self.tasks.members()
        if group is self.default:
            outside = {tid for tid, each in members.items() if (each.parent or each) is not self.default}
            return [each for each in all_tasks() if each not in outside]
        return sorted(tid for tid, each in members.items() if each is group or each.parent is group)

    def _shown_tasks(self, group: Group) -> str:
        self.tasks.follow()
        return "".join(f"{each}\n" for each in self._members(group))

    def _move_tasks(self, group: Group, text: str, caller: Caller) -> None:
        self._account()
        if self.variant.single_id:
            self._move(group, _task_id(text.strip(), ""), caller)
            return
        rest = text.split("\n")[0]
        while rest:
            one, _, rest = rest.partition(",")
            tid = _task_id(one.strip(), f"Task list parsing error pid {one.strip()}")
            try:
                self._move(group, tid, caller)
            except RefusedError as error:
                refuse(f"{error.status}\nError while processing task {tid}", error.errno or errno.EIO)

    def _move(self, group: Group, tid: int, caller: Caller) -> None:
        tid = tid or caller.tid
        owner = owner_of(tid)
        if owner is None:
            refuse(f"No task {tid}", errno.ESRCH)
        if caller.uid not in {0, owner}:
            refuse(f"No permission to move task {tid}", errno.EPERM)
        now = self.tasks.of(tid)
        if group.parent and (now.closid if now else 0) != group.closid:
            refuse("Can't move task to different control group")
        self._put(tid, group)

    def _put(self, tid: int, group: Group) -> None:
        self.tasks.move(tid, None if group is self.default else group)

    # Counters.

    def _counted(self, group: Group, cache: int, event: str) -> str:
        for key in (f"{group.path}/{cache}/{event}", f"{group.path}/{event}", event):
            if (shown := self.counters.get(key)) is not None:
                return shown
        self.tasks.follow()
        if event == "llc_occupancy":
            occupied = OCCUPIED_BYTES_PER_TASK * len(self._members(group))
            limit = (
                self.division.cache_bytes(group.closid, cache)
                if self.variant.has_l3
                else self.variant.cache_bytes
            )
            return str(min(occupied, limit))
        self._account()
        traffic = sum(each.traffic_bytes for each in (group, *group.monitoring.values()))
        return str(int(traffic / 2 if event == "mbm_local_bytes" else traffic))

    def _account(self) -> None:
        """Adds what tasks have moved since the last time, before any of them goes to another group."""
        now_s = time.monotonic()
        numbers: dict[Group, int] = {}
        for each in self.tasks.members().values():
            numbers[each] = numbers.get(each, 0) + 1
        for control in self.groups.values():
            for group in (control, *control.monitoring.values()):
                number = 1 if group is self.default else numbers.get(group, 0)
                group.traffic_bytes += TRAFFIC_BYTES_PER_S * number * (now_s - group.seen_at_s)
                group.seen_at_s = now_s


def _task_id(text: str, status: str) -> int:
    """Source: kstrtoint with base 0."""
    if not re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)", text):
        refuse(status)
    tid = int(text, 8) if re.fullmatch(r"0[0-7]+", text) else int(text, 0)
    if tid < 0:
        refuse(status and f"Invalid pid {tid}")
    return tid


def _no_device(name: str, _: Caller) -> Node:
    raise OSError(errno.ENODEV, name)


def _not_permitted(name: str, _: Caller) -> Node:
    raise PermissionError(errno.EPERM, name)
