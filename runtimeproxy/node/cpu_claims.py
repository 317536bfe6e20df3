"""CPUs that a DRA driver has given to claims, from its files in the CDI folder.

dra-driver-cpu writes one file for each prepared claim: a CDI device named by the claim's uid, with the CPUs
in an environment variable. The kubelet names the device in the container's request, and the driver, a plugin
of the runtime's NRI, binds the container. Only the kubelet can name devices, and only root can write the
files, so that no author of a pod takes CPUs that way. The files are there from before the pod's sandbox is
made to after its containers have ended.
Source: kubernetes-sigs/dra-driver-cpu pkg/driver/cdi.go, pkg/driver/dra_hooks.go.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from runtimeproxy.documents.files import read_file
from runtimeproxy.documents.reading import (
    InputError,
    cpus_of,
    list_of,
    mapping_of,
    parse_json,
    printable,
    shortened,
    text_of,
    within,
)
from runtimeproxy.node.snapshot import EMPTY

KIND: Final = "dra.k8s.io/cpu"
"""The CDI kind of the driver's devices."""
_OF_CLAIMS: Final = "dra.k8s.io-cpu_"
"""Begin of the names of files with one claim each."""
_OF_ALL: Final = "dra.cpu.json"
"""The file with all claims, of the driver's first versions."""
_VARIABLE: Final = "DRA_CPUSET"
_MOST_CLAIMS: Final = 64
_MOST_CHARS: Final = 256
"""Of claims of one container, and of a device's name, what is kept; a claim's uid has 36."""
MOST_FILES: Final = 4_096
MAX_BYTES: Final = 1 << 20


class _Seen(NamedTuple):
    """A file as it was read last."""

    stamp: tuple[int, int, int]
    """Time of change in ns, size, inode."""
    cpus: Mapping[str, frozenset[int]]
    problems: tuple[str, ...]


class CpuClaims:
    """Reads the driver's files; used in one thread at a time.

    Attributes:
        cpus: By the name of the CDI device, such as `dra.k8s.io/cpu=claim-UID`; empty for a claim whose CPUs
            cannot be read.
        problems: With files that cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, _Seen] = {}
        self.cpus: Mapping[str, frozenset[int]] = EMPTY
        self.problems: tuple[str, ...] = ()

    def look(self) -> None:
        """Reads the files that have changed."""
        problems: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in entries if _is_of_driver(entry.name)]
        except FileNotFoundError:
            pass
        except OSError as error:
            self.problems = (f"{printable(self._folder)}: cannot be read: {error.strerror}",)
            return
        if len(names) > MOST_FILES:
            problems.append(
                f"{printable(self._folder)}: has {len(names):,} files of claims; {MOST_FILES:,} are read"
            )
        seen: dict[str, _Seen] = {}
        for name in sorted(names)[:MOST_FILES]:
            found = self._read(name)
            if found is not None:
                seen[name] = found
                problems += found.problems
        self._seen = seen
        cpus = {device: each for found in seen.values() for device, each in found.cpus.items()}
        if cpus != self.cpus:
            self.cpus = cpus
        self.problems = tuple(problems)

    def _read(self, name: str) -> _Seen | None:
        """A file of now; None if it is gone."""
        path, before = self._folder / name, self._seen.get(name)
        try:
            about = path.stat()
            stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
            if before is not None and before.stamp == stamp:
                return before
            data, _ = read_file(path, MAX_BYTES)
            return _Seen(stamp, *_claims(path, parse_json(data)))
        except FileNotFoundError:
            return None
        except (OSError, InputError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            # Half a file, as it is while it is written: what it said before is the best guess.
            cpus = before.cpus if before is not None else EMPTY
            return _Seen((0, 0, 0), cpus, (f"{printable(path)}: {reason}",))


def _is_of_driver(name: str) -> bool:
    return name == _OF_ALL or (name.startswith(_OF_CLAIMS) and name.endswith(".json"))


def _claims(path: Path, document: object) -> tuple[dict[str, frozenset[int]], tuple[str, ...]]:
    """The CPUs of the claims in a CDI specification by the device's name, and the problems with some of them.

    Raises:
        InputError: It is none.
    """
    specification = mapping_of(document)
    with within("kind"):
        kind = text_of(specification.get("kind"))
    if kind != KIND:
        return {}, ()
    found: dict[str, frozenset[int]] = {}
    problems: list[str] = []
    with within("devices"):
        for each in list_of(specification.get("devices")):
            device = mapping_of(each)
            with within("name"):
                name = text_of(device.get("name"))
            try:
                with within(shortened(name)):
                    edits = mapping_of(device.get("containerEdits"))
                    found[f"{KIND}={name}"] = _assigned(map(text_of, list_of(edits.get("env"))))
            except InputError as error:
                found[f"{KIND}={name}"] = frozenset()
                problems.append(f"{printable(path)}: {error}: its CPUs stay in the shared pools")
    return found, tuple(problems)


def _assigned(variables: Iterable[str]) -> frozenset[int]:
    """The CPUs in a device's variables: `DRA_CPUSET_UID=2-3`, and in some versions one without the uid."""
    cpus: frozenset[int] = frozenset()
    is_any = False
    for variable in variables:
        name, _, value = variable.partition("=")
        if name.startswith(_VARIABLE):
            with within(shortened(name)):
                cpus |= cpus_of(value)
            is_any = True
    if not is_any:
        raise InputError(f"has no variable {_VARIABLE}_...")
    return cpus


def claims_among(devices: Iterable[str]) -> tuple[str, ...]:
    """The CDI devices that stand for claims, of all devices that the kubelet has asked for."""
    found = [each for each in devices if each.startswith(f"{KIND}=") and len(each) <= _MOST_CHARS]
    return tuple(found[:_MOST_CLAIMS])


def claims_in_env(names: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """The claims whose variables are in a container's environment, of the known ones.

    For runtimes that do not tell the devices. Whatever else is named like that a pod's author has set.
    """
    if not known:
        return ()
    begin = f"{_VARIABLE}_"
    devices = (f"{KIND}=claim-{name.removeprefix(begin)}" for name in names if name.startswith(begin))
    return tuple(each for each in devices if each in known)[:_MOST_CLAIMS]
