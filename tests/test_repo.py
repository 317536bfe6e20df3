"""The repository as a whole: every module tested, every key documented, nothing of a developer's machine."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from runtimeproxy import __version__
from runtimeproxy.config import FLAGS, Settings
from runtimeproxy.hooks.loading import built_in

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

TESTED_AS_ONE = {
    "policies": "tests/policies",
    "runtimeproxy/calls": "tests/calls",
    "runtimeproxy/cgroups": "tests/cgroups",
    "runtimeproxy/config": "tests/config",
    "runtimeproxy/demo": "tests/demo",
    "runtimeproxy/hooks/remote": "tests/hooks/remote",
    "runtimeproxy/node": "tests/node",
    "runtimeproxy/pods": "tests/pods",
    "runtimeproxy/pods/checkpoint": "tests/pods",
    "runtimeproxy/restore": "tests/restore",
    "runtimeproxy/service/handover": "tests/service/handover",
    "runtimeproxy/relay": "tests/relay",
    "runtimeproxy/testing": "tests/testing",
}
"""Packages whose modules are tested together, by what they do."""

TESTED_ELSEWHERE = {
    "runtimeproxy/commands.py": "tests/test_cli.py",
    "runtimeproxy/__main__.py": "tests/test_cli.py",
    "runtimeproxy/service/signals.py": "tests/daemon/test_reload.py",
    "runtimeproxy/service/daemon.py": "tests/daemon/test_start.py",
    "runtimeproxy/service/engine.py": "tests/daemon/test_records.py",
    "runtimeproxy/errors.py": "tests/conformance/test_status.py",
    "runtimeproxy/hooks/call.py": "tests/hooks/test_chain.py",
    "runtimeproxy/hooks/changes.py": "tests/hooks/test_fields.py",
    "runtimeproxy/hooks/decision.py": "tests/hooks/test_chain.py",
    "runtimeproxy/hooks/loaded.py": "tests/hooks/test_loading.py",
    "runtimeproxy/hooks/policy.py": "tests/hooks/test_checks.py",
    "runtimeproxy/hooks/reports.py": "tests/hooks/test_chain.py",
    "runtimeproxy/hooks/settings.py": "tests/hooks/test_loading.py",
    "runtimeproxy/hooks/views.py": "tests/hooks/test_fields.py",
    "runtimeproxy/interception.py": "tests/service/test_gate.py",
    "runtimeproxy/service/bypass.py": "tests/daemon/test_switch.py",
    "runtimeproxy/service/event_loop.py": "tests/daemon/test_start.py",
    "runtimeproxy/service/running.py": "tests/daemon/test_start.py",
}
"""Modules whose tests have another name."""

MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:root|work|home/\w+|Users/\w+)/[\w.]")
"""Folders that exist on a developer's machine only."""


def tracked(*patterns: str) -> list[Path]:
    """The repository's files, new ones included."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [path for line in done.stdout.splitlines() if (path := ROOT / line).is_file()]


def modules() -> list[str]:
    names = (path.relative_to(ROOT) for path in tracked("runtimeproxy/*.py", "policies/*.py"))
    return [str(name) for name in names if name.name != "__init__.py"]


@pytest.mark.parametrize("module", modules())
def test_every_module_has_tests(module: str) -> None:
    path = Path(module)
    together = TESTED_AS_ONE.get(str(path.parent))
    if together is not None:
        assert (ROOT / together).exists()
        return
    folder = Path("tests", *path.parent.parts[1:])
    assert (ROOT / TESTED_ELSEWHERE.get(module, folder / f"test_{path.name}")).is_file()


def test_the_mapping_names_only_what_is_there() -> None:
    assert set(TESTED_ELSEWHERE) <= set(modules())
    assert all((ROOT / folder).is_dir() for folder in TESTED_AS_ONE)


def test_the_changelog_ends_at_this_version() -> None:
    versions = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions[0] == __version__
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_every_key_is_in_the_sample_configuration() -> None:
    sample = (ROOT / "systemd" / "config.toml").read_text()
    defaults = Settings()
    for group in ("proxy", "hooks", "cgroups", "state", "log"):
        _, _, table = sample.partition(f"\n[{group}]\n")
        table = table.partition("\n[")[0]
        for key in vars_of(getattr(defaults, group)):
            assert re.search(rf"^#{key} = ", table, flags=re.MULTILINE), f"{group}.{key}"


def vars_of(settings: object) -> list[str]:
    return list(type(settings).__annotations__)


def test_every_flag_sets_a_key_and_says_what_it_does() -> None:
    for flag in FLAGS:
        assert flag.key in vars_of(getattr(Settings(), flag.group))
        assert flag.help


def test_every_policy_is_in_the_readmes() -> None:
    table = re.findall(r"^\| `([\w-]+)` \|", README, flags=re.MULTILINE)
    assert set(table) >= {policy.name for policy in built_in()}


@pytest.mark.parametrize("document", tracked("*.md"), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if not re.match(r"[a-z]+:", target):
            assert (document.parent / target).exists(), target


def test_no_file_holds_a_path_of_a_developers_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]
    assert found == []
