"""Files that are given on the command line: objects of Kubernetes, and the node that they describe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from runtimeproxy.documents.files import read_file
from runtimeproxy.documents.reading import InputError, parse_documents, printable
from runtimeproxy.errors import RuntimeProxyError
from runtimeproxy.hooks.loaded import MAX_PRIORITY, LoadedPolicy, RemoteRequest
from runtimeproxy.hooks.policy import Policy
from runtimeproxy.hooks.remote.registrations import MAX_TIMEOUT_S
from runtimeproxy.node.inputs import InputPlaces
from runtimeproxy.node.object_folder import MAX_FILE_BYTES, SUFFIXES
from runtimeproxy.node.snapshot import Input, InputState, Node
from runtimeproxy.offline import look_at, registrations_in

STANDARD_INPUT: Final = "-"
_PAIR_SEPARATOR: Final = re.compile(r",(?=[^,={}\"]+=)")
_NOWHERE: Final = Path(os.devnull)
"""Not a folder: nothing of this machine counts."""
_OF_KINDS: Final = ("Node", "NodeSLO", "NodeResourceTopology")
"""The objects that have the name of their node."""


class UnusableInputError(RuntimeProxyError):
    """A file or argument that cannot be used."""


def content(path: Path) -> bytes:
    """Reads a file. Raises UnusableInputError if it cannot be read, or is too large."""
    try:
        data, _ = read_file(path, MAX_FILE_BYTES)
    except (FileNotFoundError, InputError) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else str(error)
        raise UnusableInputError(f"{printable(path)}: {reason}") from None
    return data


def content_or_input(name: str) -> tuple[bytes, str]:
    """Reads a file, or standard input for `-`; returns also its name for people.

    Raises:
        UnusableInputError: it cannot be read, or is too large.
    """
    if name != STANDARD_INPUT:
        return content(Path(name)), name
    data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise UnusableInputError(f"standard input: has more than {MAX_FILE_BYTES} bytes")
    return data, "standard input"


def object_files(names: Iterable[str]) -> Iterator[Path]:
    """Yields the files themselves, and those of folders that the daemon would read.

    Raises:
        UnusableInputError: a folder cannot be read.
    """
    for name in names:
        path = Path(name)
        try:
            found = sorted(filter(_is_read, path.iterdir())) if path.is_dir() else [path]
        except OSError as error:
            raise UnusableInputError(f"{path}: cannot be read: {error.strerror}") from None
        yield from found


def _is_read(path: Path) -> bool:
    is_hidden = path.name.startswith(".")
    return not is_hidden and path.is_file() and (path.name.endswith(SUFFIXES) or "." not in path.name)


def node_name(documents: Iterable[object]) -> str:
    """Returns the name of the first object of a node: of several nodes the first one counts."""
    for document in documents:
        items = document.get("items") if isinstance(document, dict) else None
        for each in items if isinstance(items, list) else [document]:
            if isinstance(each, dict) and each.get("kind") in _OF_KINDS:
                metadata = each.get("metadata")
                return str(metadata.get("name")) if isinstance(metadata, dict) else ""
    return ""


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Returns the pairs of `KEY=VALUE,...`. Raises UnusableInputError if a text is not such a list."""
    found: dict[str, str] = {}
    for text in texts:
        for pair in _PAIR_SEPARATOR.split(text):
            key, equals, value = pair.partition("=")
            if not (key.strip() and equals):
                raise UnusableInputError(f"{option}: {pair!r} is not KEY=VALUE")
            found[key.strip()] = value
    return found


def node_of_files(folder: Path | None, name: str = "", labels: Mapping[str, str] | None = None) -> Node:
    """Returns the node that a folder of objects describes, read as the daemon reads it.

    Nothing of this machine counts: CPUs, cgroups and the kubelet's own state are not known. What the folder
    has no object for is withdrawn, not unknown. Without a folder nothing is known.

    Args:
        folder: see `node.objects_dir` of the configuration; None for none.
        name: of the node; empty for that of the first object of a node in the folder.
        labels: of the node, beside those of its Node object.

    Raises:
        UnusableInputError: the folder or an object in it cannot be used; with all reasons.
    """
    if folder is None:
        return Node(labels=labels or {})
    if not folder.is_dir():
        raise UnusableInputError(f"{printable(folder)}: is not a folder with the objects of a node")
    places = InputPlaces(
        sysfs=_NOWHERE,
        procfs=_NOWHERE,
        devfs=_NOWHERE,
        cgroup_root=_NOWHERE,
        kubelet_dir=_NOWHERE,
        objects_dir=folder,
        node_name=name or _name_in(folder),
        node_labels=labels or {},
    )
    look = look_at(places)
    problems = [each for each in look.problems if not each.startswith(f"{_NOWHERE}/")]
    if problems:
        raise UnusableInputError("; ".join(problems))
    states = {**look.node.states, Input.POD_REQUESTS: InputState.UNKNOWN}
    if look.node.kubelet is None:
        states[Input.KUBELET] = InputState.UNKNOWN
    return replace(look.node, states=states)


def registered_servers(folder: Path) -> list[LoadedPolicy]:
    # To be named, not called.
    return [
        LoadedPolicy(
            name=printable(name),
            origin=each.registration.endpoint,
            policy=Policy(),
            priority=MAX_PRIORITY,
            timeout_s=each.registration.timeout_s,
            remote_hooks=dict.fromkeys(each.registration.hooks, _not_called),
        )
        for name, each in registrations_in(folder, MAX_TIMEOUT_S).items()
        if each.registration is not None
    ]


def _not_called(_view: object) -> RemoteRequest:
    raise AssertionError("a simulation calls no hook server")


def _name_in(folder: Path) -> str:
    found = (path for path in object_files([str(folder)]) if path.name.endswith(SUFFIXES))
    try:
        return node_name(document for path in found for document in parse_documents(content(path)))
    except InputError:
        return ""  # reported with the file when it is read as the daemon reads it
