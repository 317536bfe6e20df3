"""Which folders of the cgroup tree are watched, and when."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from runtimeproxy.frontends.standalone import cgroup_tree
from runtimeproxy.frontends.standalone.cgroup_tree import CgroupTree, kubelet_folders


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


async def test_a_kubelet_below_a_prefix_is_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup_tree, "RENEW_S", 0.02)
    monkeypatch.setattr(cgroup_tree, "GATHER_S", 0.0)
    (tmp_path / "kubelet").mkdir()
    changed = asyncio.Event()
    with ThreadPoolExecutor(1) as executor:
        tree = CgroupTree(tmp_path, changed.set, executor)
        running = asyncio.get_running_loop().create_task(tree.run())
        async with asyncio.timeout(30):
            number = 0
            while not changed.is_set():
                # The first ones may come before the folder is watched.
                (tmp_path / "kubelet" / "kubepods" / f"pod{number}").mkdir(parents=True)
                number += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 0.05)
        assert not running.done()
        assert tree.problem == ""
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
