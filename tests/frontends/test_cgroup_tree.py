"""What is told of the kubelet's cgroup tree, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import rmtree

import pytest
from inotify_simple import Event, INotify, flags

from runtimeproxy.frontends import cgroup_tree
from runtimeproxy.frontends.cgroup_tree import (
    CgroupListener,
    CgroupTree,
    ContainerCgroup,
    container_id,
    kubelet_folders,
    pod_uid,
)
from tests.frontends.test_processes import CLONED, RUNC, SLEEP, add
from tests.hooks.asking import until

ID = "0123456789abcdef" * 4
OTHER_ID = "fedcba9876543210" * 4
POD = "/kubepods/besteffort/pod1"
BOX = ContainerCgroup(ID, "1", f"{POD}/{ID}")


@pytest.mark.parametrize(
    ("paths", "watched"),
    [
        (["kubepods/burstable/pod1/box"], [".", "kubepods", "kubepods/burstable", "kubepods/burstable/pod1"]),
        (
            ["kubepods.slice/kubepods-pod1.slice/cri-box.scope"],
            [".", "kubepods.slice", "kubepods.slice/kubepods-pod1.slice"],
        ),
        # With `--cgroup-root`, as in kind.
        (
            ["kubelet/kubepods/burstable/pod1/box"],
            [
                ".",
                "kubelet",
                "kubelet/kubepods",
                "kubelet/kubepods/burstable",
                "kubelet/kubepods/burstable/pod1",
            ],
        ),
        (
            [
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice",
                "kubelet.slice/kubelet.service",
            ],
            [
                ".",
                "kubelet.slice",
                "kubelet.slice/kubelet-kubepods.slice",
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1.slice",
            ],
        ),
        (["system.slice/kubelet.service", "system.slice/a/kubepods"], ["."]),
        ([], ["."]),
    ],
)
def test_folders(tmp_path: Path, paths: list[str], watched: list[str]) -> None:
    for path in paths:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    assert [str(each.relative_to(tmp_path)) for each in kubelet_folders(tmp_path)] == watched


UID = "0f7d21c4-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"pod{UID}", UID),
        (f"kubepods-burstable-pod{UID.replace('-', '_')}.slice", UID),
        (f"kubepods-pod{UID.replace('-', '_')}.slice", UID),
        (f"kubelet-kubepods-besteffort-pod{UID.replace('-', '_')}.slice", UID),
        ("pod1", "1"),
        ("kubepods", ""),
        ("kubepods-besteffort.slice", ""),
        ("burstable", ""),
    ],
)
def test_uids_of_pods(name: str, uid: str) -> None:
    assert pod_uid(name) == uid


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        (ID, ID),
        (f"cri-containerd-{ID}.scope", ID),
        (f"crio-{ID}", ID),
        (f"crio-{ID}.scope", ID),
        (f"docker-{ID}.scope", ID),
        (f"crio-conmon-{ID}.scope", ""),
        ("init.scope", ""),
        (ID[1:], ""),
    ],
)
def test_ids_of_containers(name: str, identity: str) -> None:
    assert container_id(name) == identity


class Listener(CgroupListener):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.running: set[ContainerCgroup] = set()
        self.kubelet_root = ""
        self._changed = asyncio.Event()

    def on_scanned(self, found: Sequence[ContainerCgroup]) -> None:
        self._note("scanned")

    def on_kubelet(self, cgroup: str) -> None:
        self.kubelet_root = cgroup

    def is_running(self, container: ContainerCgroup) -> bool:
        return container in self.running

    def on_made(self, container: ContainerCgroup) -> None:
        self._note("made", container)

    def on_started(self, container: ContainerCgroup) -> None:
        self._note("started", container)

    def on_removed(self, container: ContainerCgroup) -> None:
        self._note("removed", container)

    def on_written(self, cgroup: str, container: ContainerCgroup | None) -> None:
        self._note("written", (cgroup, container))

    def _note(self, what: str, about: object = None) -> None:
        self.told.append((what, about))
        self._changed.set()

    async def wait_for(self, what: str, about: object = None) -> None:
        async with asyncio.timeout(30):
            while (what, about) not in self.told:
                self._changed.clear()
                await self._changed.wait()


class Cgroups:
    """A tree of plain files in the layout of version 1 or 2."""

    def __init__(self, folder: Path, version: int = 2) -> None:
        self.root = folder / "cgroup"
        self.proc = folder / "proc"
        controllers = ("cpu", "cpuset", "memory") if version == 1 else ("",)
        self._bases = [self.root / each for each in controllers]
        self._base = self._bases[0]
        self._weight = "cpu.shares" if version == 1 else "cpu.weight"
        for each in (*self._bases, self.proc):
            each.mkdir(parents=True)
        self._pids = 0

    def folder(self, cgroup: str) -> Path:
        return self._base / cgroup.strip("/")

    def make(self, cgroup: str) -> None:
        for each in self._bases:
            (each / cgroup.strip("/")).mkdir(parents=True)
        self.write(cgroup)
        (self.folder(cgroup) / "cgroup.procs").write_text("")

    def write(self, cgroup: str) -> None:
        (self.folder(cgroup) / self._weight).write_text("2\n")

    def remove(self, cgroup: str) -> None:
        for each in self._bases:
            rmtree(each / cgroup.strip("/"))

    def run(self, cgroup: str, flags: int = 0, arguments: bytes = SLEEP) -> None:
        self._pids += 1
        add(self.proc, self._pids, flags, arguments)
        (self.folder(cgroup) / "cgroup.procs").write_text(f"{self._pids}\n")

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[tuple[CgroupTree, Listener]]:
        listener = Listener()
        with ThreadPoolExecutor(1) as executor:
            tree = CgroupTree(self.root, listener, executor, self.proc)
            running = asyncio.get_running_loop().create_task(tree.run())
            try:
                await listener.wait_for("scanned")
                yield tree, listener
                assert not running.done()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_container_from_its_cgroup_to_its_end(tmp_path: Path, version: int) -> None:
    cgroups = Cgroups(tmp_path, version)
    cgroups.make(POD)
    async with cgroups.followed() as (tree, listener):
        assert (tree.is_followed, tree.problem, listener.kubelet_root) == (True, "", "/kubepods")
        cgroups.make(BOX.cgroup)
        await listener.wait_for("made", BOX)
        cgroups.run(BOX.cgroup, CLONED, RUNC)
        # What the runtime writes before the start is not told.
        cgroups.write(BOX.cgroup)
        cgroups.run(BOX.cgroup)
        await listener.wait_for("started", BOX)
        assert not [about for what, about in listener.told if what == "written"]
        cgroups.write(BOX.cgroup)
        await listener.wait_for("written", (BOX.cgroup, BOX))
        cgroups.write(POD)
        await listener.wait_for("written", (POD, None))
        if version == 1:
            listener.told = [each for each in listener.told if each[0] != "written"]
            (cgroups.root / "memory" / POD[1:] / "memory.limit_in_bytes").write_text("1\n")
            await listener.wait_for("written", (POD, None))
        cgroups.remove(BOX.cgroup)
        await listener.wait_for("removed", BOX)
    names = [what for what, _ in listener.told if what != "written"]
    assert names == ["scanned", "made", "started", "removed"]


async def test_a_pod_that_comes_with_containers_and_goes_with_them(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    cgroups.make("/kubepods/besteffort")
    async with cgroups.followed() as (_, listener):
        cgroups.make(BOX.cgroup)
        await listener.wait_for("made", BOX)
        cgroups.remove(POD)
        await listener.wait_for("removed", BOX)
        # A static pod has the same uid again.
        listener.told.clear()
        cgroups.make(BOX.cgroup)
        await listener.wait_for("made", BOX)


async def test_what_is_there_already_is_told_once_it_has_started(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    other = ContainerCgroup(OTHER_ID, "1", f"{POD}/{OTHER_ID}")
    for each in (BOX, other):
        cgroups.make(each.cgroup)
    cgroups.run(BOX.cgroup)
    async with cgroups.followed() as (_, listener):
        await listener.wait_for("started", BOX)
        assert ("started", other) not in listener.told
        cgroups.run(other.cgroup)
        await listener.wait_for("started", other)
    assert not [about for what, about in listener.told if what == "made"]


async def test_a_container_whose_start_the_runtime_tells(tmp_path: Path) -> None:
    """Those of virtual machines have no process in their cgroups."""
    cgroups = Cgroups(tmp_path)
    cgroups.make(POD)
    async with cgroups.followed() as (_, listener):
        cgroups.make(BOX.cgroup)
        await listener.wait_for("made", BOX)
        listener.running.add(BOX)
        await listener.wait_for("started", BOX)
        cgroups.write(BOX.cgroup)
        await listener.wait_for("written", (BOX.cgroup, BOX))


async def test_processes_that_are_not_visible(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    cgroups.make(POD)
    async with cgroups.followed() as (tree, listener):
        cgroups.make(BOX.cgroup)
        (cgroups.folder(BOX.cgroup) / "cgroup.procs").write_text("0\n")
        await listener.wait_for("made", BOX)
        await until(lambda: not tree.sees_processes)
        cgroups.write(BOX.cgroup)
        await listener.wait_for("written", (BOX.cgroup, BOX))
    assert not [about for what, about in listener.told if what == "started"]


async def test_a_kubelet_below_a_prefix_is_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_tree, "RENEW_S", 0.02)
    cgroups = Cgroups(tmp_path)
    (cgroups.root / "kubelet").mkdir()
    async with cgroups.followed() as (_, listener):
        cgroups.make(f"/kubelet{BOX.cgroup}")
        await listener.wait_for("made", BOX._replace(cgroup=f"/kubelet{BOX.cgroup}"))
        assert listener.kubelet_root == "/kubelet/kubepods"


async def test_a_queue_that_has_overflowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroups = Cgroups(tmp_path)
    cgroups.make(BOX.cgroup)
    read: Callable[..., list[Event]] = INotify.read
    is_lost = False

    def lossy(inotify: INotify, timeout: int) -> list[Event]:
        found = read(inotify, timeout=timeout)
        return [Event(-1, int(flags.Q_OVERFLOW), 0, "")] if found and is_lost else found

    monkeypatch.setattr(INotify, "read", lossy)
    async with cgroups.followed() as (_, listener):
        is_lost = True
        other = ContainerCgroup(OTHER_ID, "2", f"/kubepods/pod2/{OTHER_ID}")
        cgroups.make(other.cgroup)
        await listener.wait_for("made", other)
        cgroups.remove(BOX.cgroup)
        await listener.wait_for("removed", BOX)


@pytest.mark.parametrize(("version", "more"), [(1, 4), (2, 2)])
async def test_watches_of_what_is_gone_are_given_back(tmp_path: Path, version: int, more: int) -> None:
    cgroups = Cgroups(tmp_path, version)
    cgroups.make("/kubepods/besteffort")
    async with cgroups.followed() as (tree, listener):
        before = len(tree._watches)
        for number in range(5):
            box = ContainerCgroup(ID, str(number), f"/kubepods/besteffort/pod{number}/{ID}")
            cgroups.make(f"/kubepods/besteffort/pod{number}")
            cgroups.make(box.cgroup)
            cgroups.run(box.cgroup)
            await listener.wait_for("started", box)
            assert len(tree._watches) == len(tree._watched) == before + more
            cgroups.remove(f"/kubepods/besteffort/pod{number}")
            await listener.wait_for("removed", box)
            await until(lambda: len(tree._watched) == len(tree._watches) == before)


async def test_a_kernel_without_inotify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> INotify:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(cgroup_tree, "open_inotify", refuse)
    listener = Listener()
    with ThreadPoolExecutor(1) as executor:
        tree = CgroupTree(tmp_path, listener, executor)
        await tree.run()
    assert "Too many open files" in tree.problem
    assert (listener.told, tree.is_followed) == ([("scanned", None)], False)
