"""The repository as a whole: every module tested, every key documented, nothing of a developer's machine."""

import os
import re
import subprocess
from pathlib import Path

from runtimeproxy.config.settings import Settings
from runtimeproxy.config.sources import FLAGS
from runtimeproxy.hooks.loading import built_in

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

TESTED_ELSEWHERE = {
    "__main__": "tests/test_cli.py",
    "errors": "tests/conformance/test_status.py",
    "interception": "tests/frontends/cri_proxy/relay",
}
"""Tests of the modules at the top; a package has a folder of its name, and the daemon as a whole
`tests/daemon`."""

MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:root|work|home/\w+|Users/\w+)/[\w.]")
"""Folders that exist on a developer's machine only."""


def tracked(*patterns: str) -> list[Path]:
    """The repository's files, new ones included."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [path for line in done.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_every_module_has_tests() -> None:
    for path in tracked("runtimeproxy/*.py", "policies/*.py"):
        package = path.relative_to(ROOT).parent
        if package == Path("runtimeproxy"):
            tests = TESTED_ELSEWHERE.get(path.stem, f"tests/test_{path.stem}.py")
        else:
            tests = str(Path("tests", *package.parts[package.parts[0] == "runtimeproxy" :][:1]))
        assert path.name == "__init__.py" or (ROOT / tests).exists(), path


def test_the_changelog_has_its_releases_in_order_below_what_comes() -> None:
    headings = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    found = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?: - \d{4}-\d{2}-\d{2})?", each) for each in headings[1:]]
    releases = [tuple(map(int, each.groups())) for each in found if each is not None]
    assert len(releases) == len(headings) - 1
    assert releases == sorted(releases, reverse=True)
    assert releases[0] >= (0, 2, 0)


def test_every_flag_sets_a_key_and_says_what_it_does() -> None:
    for flag in FLAGS:
        group, _, key = flag.name.partition(".")
        assert hasattr(getattr(Settings(), group), key)
        assert flag.help


def test_every_policy_is_in_the_readmes() -> None:
    table = re.findall(r"^\| `([\w-]+)` \|", README, flags=re.MULTILINE)
    assert set(table) >= {policy.name for policy in built_in()}


PYTHON = """\
#!/bin/sh
# The interpreter and pip of an environment in the last argument, or of nothing.
case "$*" in
*venv*) for folder; do :; done; mkdir -p "$folder/bin"
    for name in pip python; do cp "$0" "$folder/bin/$name"; done ;;
*requirements.lock) echo "pip: dependencies" >&2 ;;
*" -e .") echo "pip: project" >&2 ;;
"-m runtimeproxy demo") echo ran ;;
esac
"""


def test_make_says_what_it_does_while_it_installs(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "systemd/packages/requirements.lock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    command = ["make", "-C", str(tmp_path), "--no-print-directory", f"PYTHON={tmp_path}/python"]
    # Without what a make that runs the tests hands down.
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "VENV"))
    }

    def made(target: str) -> tuple[str, list[str]]:
        done = subprocess.run([*command, target], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr.splitlines()

    shown, (environment, dependencies, pip) = made("run")
    assert shown == "ran\n"
    assert environment == "making a Python environment in .venv"
    assert re.fullmatch(r"installing \d\d packages into \.venv: once, .*", dependencies)
    assert pip == "pip: dependencies"
    # The next time nothing is installed.
    assert made("run") == ("ran\n", [])
    # What tests need as well comes into the same environment, which the demo then takes as it is.
    _, (dependencies, pip, project, after) = made(".venv/.installed")
    assert re.fullmatch(r"installing \d\d packages .* into \.venv: once, half a minute to two", dependencies)
    assert (pip, project, after) == (
        "pip: dependencies",
        "installing this project into .venv",
        "pip: project",
    )
    assert made("run") == ("ran\n", [])


def test_links_lead_somewhere() -> None:
    for document in tracked("*.md"):
        text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            assert re.match(r"[a-z]+:", target) or (document.parent / target).exists(), (document, target)


def test_no_file_holds_a_path_of_a_developers_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]
    assert found == []


def test_ci_runs_the_fast_tests_on_the_pythons_of_debian_12_and_13() -> None:
    """The first is the system's own where CI runs."""
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "make test" in commands
    assert "make test-python VERSION=3.13" in commands
    assert "make test-slow" in commands
