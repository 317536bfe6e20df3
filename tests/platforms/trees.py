"""Trees of nodes, recorded by `doctor --record-tree` or described by documents, and the node that each is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from runtimeproxy.doctor.tree import CGROUPS, RecordedFile, Tree, parse_tree
from runtimeproxy.node.facts import NodeReader
from runtimeproxy.node.inputs import InputPlaces, NodeInputs
from runtimeproxy.node.machine import WithoutFiles
from runtimeproxy.node.snapshot import Node

FOLDER: Final = Path(__file__).parent / "trees"
_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A kind of node, with one tree of it."""

    name: str
    """Of the distribution, such as Debian 12."""
    file: str
    """That the tree is in."""
    tree: Tree
    is_seen: bool = True
    """Whether the tree is of a node, not of documents."""
    sources: tuple[str, ...] = ()
    """The documents."""
    assumed: tuple[str, ...] = ()
    """What no document says."""

    @property
    def architecture(self) -> str:
        return _NAMES.get(self.tree.machine, self.tree.machine)

    @property
    def cgroup_version(self) -> int:
        return 2 if f"{CGROUPS}/cgroup.controllers" in self.tree.files else 1


def platforms(folder: Path = FOLDER) -> list[Platform]:
    """All of a folder, by name of the file: recorded ones (`.json`) and described ones (`.yaml`)."""
    found: list[Platform] = []
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            found.append(_recorded(path))
        elif path.suffix == ".yaml":
            found += _described(path)
    return found


def _recorded(path: Path) -> Platform:
    try:
        tree = parse_tree(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    system = {"debian": "Debian", "ubuntu": "Ubuntu", "anolis": "Anolis OS", "alinux": "Alibaba Cloud Linux"}
    identity = tree.about.get("ID", "unknown")
    name = f"{system.get(identity, identity)} {tree.about.get('VERSION_ID', '')}".strip()
    return Platform(name=name, file=path.name, tree=tree)


def _described(path: Path) -> Iterator[Platform]:
    """A platform by machine: the files of another tree, but for what is said."""
    described: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for machine, like in described["like"].items():
        yield Platform(
            name=described["platform"],
            file=path.name,
            tree=_changed(_recorded(path.parent / like).tree, machine, described),
            is_seen=False,
            sources=tuple(described["sources"]),
            assumed=tuple(described.get("assumed", ())),
        )


def _changed(tree: Tree, machine: str, described: Mapping[str, Any]) -> Tree:
    files = {
        path: each
        for path, each in tree.files.items()
        if path.rpartition("/")[2] not in described.get("without", ())
    }
    for controller, names in described.get("cgroup_files", {}).items():
        for folder in _folders_with(files, controller):
            files |= {f"{folder}/{name}": RecordedFile(0o644, "0\n") for name in names}
    for controller, names in described.get("root_files", {}).items():
        files |= {f"{CGROUPS}/{controller}/{name}": RecordedFile(0o644, "0\n") for name in names}
    for path, text in described.get("files", {}).items():
        files[path] = RecordedFile(0o644, text)
    options = {f"CONFIG_{name}": value for name, value in described.get("config", {}).items()}
    return replace(
        tree,
        machine=machine,
        kernel=str(described["kernel"]),
        without_files=WithoutFiles(has_cookies=described.get("core_scheduling", False)),
        config={**tree.config, **options},
        files=files,
        unread={},
    )


def _folders_with(files: Iterable[str], controller: str) -> set[str]:
    """The cgroups, but for those at a root, that have files of a controller."""
    folders = {
        path.rpartition("/")[0] for path in files if path.rpartition("/")[2].startswith(f"{controller}.")
    }
    is_unified = f"{CGROUPS}/cgroup.controllers" in files
    depth = CGROUPS.count("/") + (1 if is_unified else 2)
    return {each for each in folders if each.startswith(f"{CGROUPS}/") and each.count("/") >= depth}


def unpack(tree: Tree, folder: Path) -> None:
    """Makes plain files of a tree."""
    for parent in {(folder / path).parent for path in tree.files}:
        parent.mkdir(parents=True, exist_ok=True)
    for path, each in tree.files.items():
        file = folder / path
        file.write_text(each.text or "")
        file.chmod(each.mode)
    for path, target in tree.links.items():
        link = folder / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def node_of(tree: Tree, folder: Path) -> Node:
    """The node that the daemon would see there, by its own code on plain files."""
    unpack(tree, folder)
    sysfs, cgroups = folder / "sys", folder / CGROUPS
    places = InputPlaces(sysfs, folder / "proc", folder / "dev", cgroups, without_files=tree.without_files)
    return NodeInputs(places, NodeReader(sysfs, cgroups, devfs=folder / "dev")).look(0.0, is_first=True).node
