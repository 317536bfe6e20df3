"""The READMEs of packages, and CONTRIBUTING.md, name only modules and functions that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READMES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "runtimeproxy").rglob("README.md"))]
MAP = ROOT / "runtimeproxy" / "README.md"

every_readme = pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))


def find(readme: Path, name: str) -> Path | None:
    """A module is named by its path below the README's package, the package or the repository."""
    folders = (readme.parent, ROOT / "runtimeproxy", ROOT)
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def defined(module: Path) -> set[str]:
    """Functions of a module, methods with their class."""
    body = ast.parse(module.read_text()).body
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {each.name for each in body if isinstance(each, functions)}
    for owner in (each for each in body if isinstance(each, ast.ClassDef)):
        found.add(owner.name)
        found |= {f"{owner.name}.{each.name}" for each in owner.body if isinstance(each, functions)}
    return found


@every_readme
def test_modules_are_there(readme: Path) -> None:
    named = set(re.findall(r"`([a-z][\w/]*\.py)\b", readme.read_text()))
    assert {name for name in named if find(readme, name) is None} == set()


@every_readme
def test_functions_are_there(readme: Path) -> None:
    for name, function in re.findall(r"`([a-z][\w/]*\.py):([\w.]+)`", readme.read_text()):
        module = find(readme, name)
        assert module is not None
        assert function in defined(module), f"{name}:{function}"


def test_the_threads_of_the_map_have_these_names() -> None:
    _, _, section = MAP.read_text().partition("\n## Threads\n")
    names = set(re.findall(r"^\| `([a-z-]+?)(?:-N|-1)?`", section.partition("\n## ")[0], re.MULTILINE))
    sources = "".join(path.read_text() for path in (ROOT / "runtimeproxy").rglob("*.py"))
    assert len(names) > 5
    assert {name for name in names if not re.search(rf"\"{name}[\"-]", sources)} == set()


def test_the_tree_of_contributing_is_the_present_one() -> None:
    tree = re.findall(r"^(?:  )?([\w]+)/ ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    packages = {path.parent.name for path in (ROOT / "runtimeproxy").glob("*/__init__.py")}
    assert set(tree) == packages | {"cri_api", "policies", "systemd", "tests"}
