"""Regenerates the stubs beside each .proto file: ``python -m cri_api.generate [--check]``.

With ``--check`` nothing is written; the exit code is 1 and the files are named if any differ from
what the .proto files give. Needs the ``dev`` extra (grpcio-tools and mypy-protobuf). The generated
code starts with the versions that made it: regenerate with the versions of the lock file.
"""

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
"""Folder that holds the ``cri_api`` package; paths of .proto files are relative to it."""

PROTOS: Final = (
    "cri_api/runtime/v1/api.proto",
    "cri_api/koordinator/v1alpha1/api.proto",
    "cri_api/runtimeproxy/v1/api.proto",
    "cri_api/runtimeproxy/v1/plugin.proto",
    "cri_api/nri/v1alpha1/api.proto",
    "cri_api/ttrpc/request.proto",
)
"""The .proto files, relative to the root; these names are also their names as descriptors."""

_TTRPC_PROTOS: Final = ("cri_api/nri/v1alpha1/api.proto", "cri_api/ttrpc/request.proto")
"""Those whose calls, if any, do not go by gRPC: they have no stubs of it."""

_PLUGINS: Final = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")

_MESSAGE_SUFFIXES: Final = ("_pb2.py", "_pb2.pyi")
_GRPC_SUFFIXES: Final = ("_pb2_grpc.py", "_pb2_grpc.pyi")


class GenerateError(Exception):
    """The stubs cannot be generated; the message says why."""


def stub_paths(protos: Sequence[str] = PROTOS) -> list[str]:
    """Paths of the generated files of the .proto files, relative to the root."""
    return [
        proto.removesuffix(".proto") + suffix
        for proto in protos
        for suffix in (_MESSAGE_SUFFIXES if proto in _TTRPC_PROTOS else _MESSAGE_SUFFIXES + _GRPC_SUFFIXES)
    ]


def generate(into: Path, root: Path = ROOT, protos: Sequence[str] = PROTOS) -> None:
    """Writes all stubs below the folder ``into``, under their paths relative to the root.

    Raises:
        GenerateError: A plugin is missing or the compiler refuses a .proto file.
    """
    _compile(root, [f"--python_out={into}", f"--mypy_out=quiet:{into}", *protos])
    with_grpc = [proto for proto in protos if proto not in _TTRPC_PROTOS]
    _compile(root, [f"--grpc_python_out={into}", f"--mypy_grpc_out=quiet:{into}", *with_grpc])


def _compile(root: Path, arguments: Sequence[str]) -> None:
    """Runs the compiler; raises GenerateError."""
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={root}"),
        *(f"--plugin={name}={_plugin(name)}" for name in _PLUGINS),
        *arguments,
    ]
    # S603: the arguments are this module's constants and folders, and no shell is involved.
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603
    if run.returncode:
        raise GenerateError(run.stderr.strip() or f"the compiler ended with {run.returncode}")


def drift(root: Path = ROOT, protos: Sequence[str] = PROTOS) -> list[str]:
    """Paths, relative to the root, of the stubs that are missing or differ from their .proto file.

    Raises:
        GenerateError: A plugin is missing or the compiler refuses a .proto file.
    """
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), root, protos)
        return [path for path in stub_paths(protos) if not _same(Path(folder, path), root / path)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; ``None`` takes the process's arguments."""
    parser = argparse.ArgumentParser(prog="python -m cri_api.generate", description=_DESCRIPTION)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 on drift")
    try:
        if not parser.parse_args(arguments).check:
            generate(ROOT)
            return 0
        stale = drift()
    except GenerateError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for path in stale:
        sys.stderr.write(f"{path} differs from its .proto file: run python -m cri_api.generate\n")
    return 1 if stale else 0


_DESCRIPTION: Final = "Regenerates the stubs beside each .proto file."


def _plugin(name: str) -> str:
    """Path of a compiler plugin: of this interpreter's environment, or else of ``PATH``."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise GenerateError(f"{name} is missing: install the dev extra (mypy-protobuf)")
    return found


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


if __name__ == "__main__":
    sys.exit(main())
