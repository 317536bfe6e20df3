"""A build hook: the documents of an installation, in the folders of the repository.

Links to what an installation does not have, such as tests, become plain text. hatchling runs it
(`tool.hatch.build.hooks.custom` of pyproject.toml).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHARE = "share/koord-runtime-proxy"
FOLDERS = ("systemd",)
"""Installed with all their files."""
DOCUMENTS = ("*.md", "cri_api/**/*.md", "policies/**/*.md", "runtimeproxy/**/*.md")
LEFT_OUT = frozenset({"CONTRIBUTING.md"})
"""What only a clone can follow."""
PACKAGES = PurePosixPath("systemd/packages")
"""Of this folder the documents only: the rest builds packages, of a clone."""

_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_IMAGE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]*)\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
_URL = re.compile(r"[a-z]+:")


def installed_files(root: Path) -> Iterator[PurePosixPath]:
    """Yield the files, by their names in the repository."""
    patterns = (*DOCUMENTS, *(f"{folder}/**/*" for folder in FOLDERS))
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        name = PurePosixPath(path.relative_to(root).as_posix())
        if PACKAGES in name.parents and name.suffix != ".md":
            continue
        if path.is_file() and "__pycache__" not in name.parts and str(name) not in LEFT_OUT:
            yield name


def installed_text(text: str, name: PurePosixPath, installed: frozenset[PurePosixPath]) -> str:
    """Return a document without links to what is not installed; code blocks stay as they are."""

    def replaced(match: re.Match[str]) -> str:
        target = match["target"]
        if _URL.match(target) or _is_installed(name.parent, target, installed):
            return match[0]
        return match["text"]

    def without(part: str) -> str:
        # Images first: one may be the text of a link.
        return _LINK.sub(replaced, _IMAGE.sub(replaced, part))

    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [without(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join((*parts, without(text[end:])))


def _is_installed(folder: PurePosixPath, target: str, installed: frozenset[PurePosixPath]) -> bool:
    parts: list[str] = []
    for part in (*folder.parts, *PurePosixPath(target).parts):
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    path = PurePosixPath(*parts)
    return path in installed or any(path in each.parents for each in installed)


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root, self._made = Path(self.root), tempfile.mkdtemp()
        installed = frozenset(installed_files(root))
        for number, name in enumerate(sorted(installed)):
            # Copies: hatchling installs a file once, and pyproject.toml has places of their own for some.
            path = Path(self._made, str(number))
            shutil.copy(root / name, path)
            if name.suffix == ".md":
                text = path.read_text(encoding="utf-8")
                path.write_text(installed_text(text, name, installed), encoding="utf-8")
            build_data["shared_data"][str(path)] = f"{SHARE}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._made)
