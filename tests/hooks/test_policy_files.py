"""Policies in files: their permitted writers, how they are run, and their changes."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.errors import PolicyLoadError
from runtimeproxy.hooks import ContainerView, Hook
from runtimeproxy.hooks.loaded import FILE_MODULE_PREFIX, LoadedPolicy
from runtimeproxy.hooks.loading import LoadResult, PolicyLoader, PolicySources
from runtimeproxy.hooks.policy_files import read_trusted
from runtimeproxy.hooks.settings import PolicySettings
from runtimeproxy.node.snapshot import Node

QUIET = """
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from runtimeproxy.hooks import ContainerChange, ContainerView, Policy, ResourceChange


@dataclass(frozen=True)
class Options:
    shares: int = SHARES
    also: tuple[Options, ...] = ()


class Quiet(Policy):
    name = "NAME"
    options_type = Options

    def __init__(self, options: Options) -> None:
        self.options = options

    def container(self, container: ContainerView, node) -> ContainerChange | None:
        return ContainerChange(resources=ResourceChange(cpu_shares=self.options.shares))
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def quiet(name: str = "quiet", shares: int = 2) -> str:
    return QUIET.replace("NAME", name).replace("SHARES", str(shares))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "policies.d"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def loader() -> Iterator[PolicyLoader]:
    yield PolicyLoader()
    for name in [name for name in sys.modules if name.startswith(FILE_MODULE_PREFIX)]:
        del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


def load(loader: PolicyLoader, folder: Path, timeout_s: float = 60, **settings: PolicySettings) -> LoadResult:
    result = loader.load(
        PolicySources(third_party=False, directory=str(folder), timeout_s=timeout_s),
        {name.replace("_", "-"): chosen for name, chosen in settings.items()},
    )
    loader.use(result)
    return result


def of_files(result: LoadResult) -> dict[str, LoadedPolicy]:
    return {policy.name: policy for policy in result.policies if policy.origin.startswith("/")}


def shares(policy: LoadedPolicy) -> int:
    change: Any = policy.methods[Hook.PRE_CREATE_CONTAINER](ContainerView(), Node())
    return int(change.resources.cpu_shares)


def test_a_file_is_a_policy_with_options_and_origin(loader: PolicyLoader, folder: Path) -> None:
    path = write(folder / "quiet.py", quiet())
    result = load(loader, folder, quiet=PolicySettings(options={"shares": 3}))
    policy = of_files(result)["quiet"]
    assert result.problems == ()
    assert policy.origin == f"{path}:Quiet"
    assert shares(policy) == 3


@pytest.mark.parametrize("directory", ["", "absent"])
def test_no_folder_has_no_policies(loader: PolicyLoader, folder: Path, directory: str) -> None:
    sources = PolicySources(third_party=False, directory=directory and str(folder / directory))
    assert loader.load(sources, {}).problems == ()


def test_files_with_the_same_names_of_classes_do_not_meet(loader: PolicyLoader, folder: Path) -> None:
    write(folder / "one.py", quiet("one", 11))
    write(folder / "two.py", quiet("two", 22))
    found = of_files(load(loader, folder))
    assert {name: shares(policy) for name, policy in found.items()} == {"one": 11, "two": 22}
    first, second = (type(found[name].policy) for name in ("one", "two"))
    assert first.__module__ != second.__module__


def test_a_module_works_as_others_do(loader: PolicyLoader, folder: Path) -> None:
    write(folder / "with-hyphen.and.dots.py", quiet())
    policy: Any = of_files(load(loader, folder))["quiet"].policy
    options = type(policy.options)
    assert pickle.loads(pickle.dumps(options(7))) == options(7)  # noqa: S301 - its own
    assert typing.get_type_hints(options)["also"].__args__[0] is options
    assert [field.name for field in fields(options)] == ["shares", "also"]
    assert policy.__module__ in sys.modules
    assert not policy.__module__.isidentifier()


def test_no_file_hides_a_module(loader: PolicyLoader, folder: Path) -> None:
    import json

    write(folder / "json.py", quiet("json"))
    assert "json" in of_files(load(loader, folder))
    assert sys.modules["json"] is json


def test_bases_and_what_is_imported_are_no_policies(loader: PolicyLoader, folder: Path) -> None:
    text = quiet().replace("class Quiet(", "from policies.template import Template\nclass _Base(")
    write(folder / "two.py", text + "\nclass A(_Base):\n  name = 'a'\n\nclass B(_Base):\n  name = 'b'\n")
    assert set(of_files(load(loader, folder))) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("x = 1\ndef\n", 2, "SyntaxError: invalid syntax"),
        ("\n\nimport no_such_thing\n", 3, "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("\ndef fail():\n    1 / 0\nfail()\n", 3, "ZeroDivisionError"),
        ("raise SystemExit(1)\n", 1, "SystemExit: 1"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
        (
            quiet().replace("def container", "def containr"),
            16,
            "Quiet: containr: no such method; did you mean container?",
        ),
        (
            quiet().replace("def container", "def pre_create_container"),
            16,
            "Quiet: pre_create_container: policies have no hooks any more; its successor is container",
        ),
        ("x = 1\n", None, "defines no class derived from runtimeproxy.hooks.policy:Policy"),
        ("x = '\0'\n", None, "null bytes"),
    ],
)
def test_a_bad_file_is_left_out_with_path_line_and_reason(
    loader: PolicyLoader, folder: Path, text: str, line: int | None, reason: str
) -> None:
    bad = write(folder / "bad_one.py", text)
    write(folder / "quiet.py", quiet())
    result = load(loader, folder, bad_one=PolicySettings())
    assert set(of_files(result)) == {"quiet"}
    (problem,) = result.problems
    assert problem.name == "bad-one"
    assert problem.text.startswith(f"{bad}:{line}: " if line else f"{bad}: ")
    assert reason in problem.text


def test_a_file_that_hangs_keeps_no_other_waiting(loader: PolicyLoader, folder: Path) -> None:
    gate, is_late = threading.Event(), threading.Event()
    sys.policy_file_gate = gate  # type: ignore[attr-defined]
    loader.on_late = is_late.set
    write(folder / "hangs.py", quiet("hangs") + "\nimport sys\nsys.policy_file_gate.wait()\n")
    write(folder / "quiet.py", quiet())
    try:
        # Enough for the other one, also on a busy machine.
        assert set(of_files(load(loader, folder, timeout_s=1.0))) == {"quiet"}
    finally:
        gate.set()
    assert is_late.wait(60)
    assert set(of_files(load(loader, folder))) == {"hangs", "quiet"}


def test_new_changed_and_removed_files_count(loader: PolicyLoader, folder: Path) -> None:
    path = write(folder / "quiet.py", quiet(shares=2))
    first = of_files(load(loader, folder))["quiet"]
    unchanged = of_files(load(loader, folder))["quiet"]
    assert type(unchanged.policy) is type(first.policy)
    write(path, quiet(shares=5))
    write(folder / "other.py", quiet("other"))
    second = of_files(load(loader, folder))
    assert set(second) == {"quiet", "other"}
    assert shares(second["quiet"]) == 5
    assert type(second["quiet"].policy).__module__ != type(first.policy).__module__
    path.unlink()
    assert set(of_files(load(loader, folder))) == {"other"}
    assert set(of_files(load(loader, Path("/nonexistent")))) == set()


def test_what_no_version_uses_any_more_is_forgotten(loader: PolicyLoader, folder: Path) -> None:
    path = write(folder / "quiet.py", quiet())
    for number in range(3, 6):
        write(path, quiet(shares=number))
        load(loader, folder)
    write(path, "1 / 0\n")
    load(loader, folder)
    assert len([name for name in sys.modules if name.startswith(FILE_MODULE_PREFIX)]) == 1
    path.unlink()
    load(loader, folder)
    assert not [name for name in sys.modules if name.startswith(FILE_MODULE_PREFIX)]


@pytest.mark.parametrize("change", ["text", "mode", "folder", "link"])
def test_the_last_good_version_of_a_bad_file_stays(loader: PolicyLoader, folder: Path, change: str) -> None:
    path = write(folder / "quiet.py", quiet(shares=4))
    load(loader, folder)
    if change == "text":
        write(path, "1 / 0\n")
    elif change == "mode":
        path.chmod(0o666)
    elif change == "folder":
        folder.chmod(0o777)
    else:
        path.unlink()
        path.symlink_to(folder / "absent")
    result = load(loader, folder)
    assert shares(of_files(result)["quiet"]) == 4
    (problem,) = result.problems
    assert problem.is_kept or change == "folder"
    folder.chmod(0o755)
    path.unlink()
    write(path, quiet(shares=6))
    assert shares(of_files(load(loader, folder))["quiet"]) == 6


def test_a_name_that_is_taken_is_the_earlier_ones(loader: PolicyLoader, folder: Path) -> None:
    write(folder / "cpuset.py", quiet("cpuset"))
    write(folder / "a.py", quiet("twice", 1))
    write(folder / "b.py", quiet("twice", 2))
    result = load(loader, folder)
    assert {name: shares(policy) for name, policy in of_files(result).items()} == {"twice": 1}
    taken, twice = sorted(problem.text for problem in result.problems)[::-1]
    assert "cpuset.py:Quiet: name cpuset is taken by policies.cpuset:Cpuset" in taken
    assert "b.py:Quiet: name twice is taken by" in twice


def refused(path: Path) -> str:
    with pytest.raises(PolicyLoadError) as caught:
        read_trusted(str(path))
    return str(caught.value)


@pytest.mark.parametrize(
    ("mode", "is_refused"), [(0o644, False), (0o600, False), (0o664, True), (0o646, True)]
)
def test_only_the_owner_may_write_to_a_file(folder: Path, mode: int, is_refused: bool) -> None:
    path = write(folder / "quiet.py", "text")
    path.chmod(mode)
    if is_refused:
        assert f"{path}: refused: group or others may write to it (mode {mode:04o})" in refused(path)
    else:
        assert read_trusted(str(path)) == b"text"


@needs_root
@pytest.mark.parametrize("what", ["file", "folder", "parent"])
def test_file_and_folders_belong_to_root(folder: Path, what: str) -> None:
    path = write(folder / "quiet.py", "text")
    given = {"file": path, "folder": folder, "parent": folder.parent}[what]
    os.chown(given, 12345, -1)
    assert f"{given}: refused: belongs to user 12345, not to root" in refused(path)


def test_nobody_else_may_write_to_a_folder_on_the_way(folder: Path) -> None:
    path = write(folder / "quiet.py", "text")
    folder.parent.chmod(0o777)
    assert f"{folder.parent}: refused: group or others may write" in refused(path)
    folder.parent.chmod(0o1777)
    assert read_trusted(str(path)) == b"text"


def test_the_folder_itself_is_not_even_a_sticky_one(loader: PolicyLoader, folder: Path) -> None:
    write(folder / "quiet.py", quiet())
    folder.chmod(0o1777)
    (problem,) = load(loader, folder).problems
    assert f"{folder}: refused: group or others may write to it (mode 1777)" in problem.text


def test_a_link_leads_only_to_what_is_as_safe(folder: Path, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    path = write(shelf / "quiet.py", "text")
    link = folder / "link.py"
    link.symlink_to("../shelf/quiet.py")
    assert read_trusted(str(link)) == b"text"
    shelf.chmod(0o777)
    assert f"{shelf}: refused: group or others may write" in refused(link)
    shelf.chmod(0o755)
    path.chmod(0o666)
    assert f"{path}: refused: group or others may write" in refused(link)


@needs_root
def test_a_link_of_somebody_else_is_refused(folder: Path) -> None:
    path = write(folder / "quiet.py", "text")
    link = folder / "link.py"
    link.symlink_to(path)
    os.chown(link, 12345, -1, follow_symlinks=False)
    assert f"{link}: refused: belongs to user 12345" in refused(link)


def test_what_is_no_regular_file_is_refused(folder: Path) -> None:
    fifo, loop = folder / "fifo.py", folder / "loop.py"
    os.mkfifo(fifo, 0o600)
    loop.symlink_to(loop)
    (folder / "folder.py").mkdir()
    assert "is not a regular file" in refused(fifo)
    assert "is not a regular file" in refused(folder / "folder.py")
    assert "too many symbolic links" in refused(loop)
    assert "has more than" in refused(write(folder / "long.py", "#" * (1024 * 1024 + 1)))


def test_hidden_files_and_other_files_are_left_alone(loader: PolicyLoader, folder: Path) -> None:
    for name in (".quiet.py", "quiet.py.bak", "README.md"):
        write(folder / name, "1 / 0\n")
    assert load(loader, folder).problems == ()
