"""Scripts and locks of the packages; `tests/node/guest/packages.py` installs the Debian package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.version import Version

from tests.lab.programs import REPOSITORY, debian_program

FOLDER = REPOSITORY / "systemd" / "packages"
SCRIPTS = (FOLDER / "build_deb.sh", *sorted((FOLDER / "debian").glob("p*")))


def locked(path: Path) -> dict[str, set[str]]:
    """The hashes of each distribution of a lock, by its name with version."""
    entries = re.findall(r"^(\S+==[^\s;\\]+)((?:.*\\\n)*.*)", path.read_text(), flags=re.MULTILINE)
    return {name: set(re.findall(r"--hash=(\S+)", lines)) for name, lines in entries}


def test_packages_have_the_dependencies_that_are_tested() -> None:
    tested, packaged = locked(REPOSITORY / "requirements.lock"), locked(FOLDER / "requirements.lock")
    assert packaged.items() <= tested.items()
    assert all(packaged.values())
    names = {re.sub(r"[-_.]+", "-", name.partition("==")[0]).lower() for name in packaged}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=]", each)[0].replace("_", "-").lower() for each in project["dependencies"]}
    assert wanted <= names


def test_the_package_is_built_for_each_python_that_is_declared() -> None:
    (built,) = re.findall(r"PYTHONS:-([\d. ]+)\}", (FOLDER / "build_deb.sh").read_text())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    declared = [each.rpartition(" ")[2] for each in project["classifiers"] if ":: 3." in each]
    assert built.split() == declared == ["3.11", "3.12", "3.13"]


def test_each_override_of_lintian_is_explained() -> None:
    lines = (FOLDER / "debian" / "lintian-overrides").read_text().splitlines()
    overrides = [line for line in lines if not line.startswith("#")]
    assert lines[0].startswith("# ")
    assert all(re.fullmatch(r"koord-runtime-proxy: [a-z-]+ (\* ?)?(\[.*\])?", line) for line in overrides)
    document = (FOLDER / "README.md").read_text()
    assert all(f"`{line.split()[1]}`" in document for line in overrides)


@pytest.mark.debian
def test_debian_sorts_versions_as_pip_does() -> None:
    (edited,) = re.findall(r"sed '(s/rc/.*)'", (FOLDER / "build_deb.sh").read_text())
    versions = [
        "0.2.0.dev985",
        "0.2.0",
        "0.2.1.dev986",
        "0.2.1rc1.dev987",
        "0.2.1rc1",
        "0.2.1",
        "0.10.0.dev988",
    ]
    assert sorted(versions, key=Version) == versions
    text = "\n".join(versions)
    done = subprocess.run(["sed", edited], input=text, capture_output=True, text=True, check=True)
    for earlier, later in pairwise(f"{version}-1" for version in done.stdout.splitlines()):
        subprocess.run([debian_program("dpkg"), "--compare-versions", earlier, "lt", later], check=True)


@pytest.mark.debian
def test_shellcheck_finds_nothing_wrong_with_the_scripts() -> None:
    assert {path.name for path in SCRIPTS} == {"build_deb.sh", "postinst", "postrm", "prerm"}
    done = subprocess.run(
        [debian_program("shellcheck"), *SCRIPTS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_package_ends_with_what_the_unit_makes() -> None:
    """`purge` removes the folders that systemd makes for the service, but for the hook servers'."""
    unit = (REPOSITORY / "systemd" / "koord-runtime-proxy.service").read_text()
    roots = {"Runtime": "/run", "State": "/var/lib", "Configuration": "/etc", "Logs": "/var/log"}
    made = {
        f"{root}/{name.partition('/')[0]}"
        for kind, root in roots.items()
        for names in re.findall(rf"^{kind}Directory=(.*)$", unit, flags=re.MULTILINE)
        for name in names.split()
    }
    (removed,) = re.findall(r"rm -rf ((?:.*\\\n)*.*)", (FOLDER / "debian" / "postrm").read_text())
    assert made - {"/etc/runtime"} <= set(removed.split())


class Installed:
    """The package's scripts in a folder of their own, with a program that says what it is asked to do."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "var/lib/koord-runtime-proxy"
        self.state.mkdir(parents=True)
        (root / "run/systemd/system").mkdir(parents=True)
        (root / "opt/koord-runtime-proxy/lib").mkdir(parents=True)
        self.program("exit 0")
        self._write(root / "commands/systemctl", "exit 0")

    def program(self, restore: str) -> None:
        """Makes the program, whose `restore` does this."""
        body = f'[ "$1" != restore ] || {{ {restore}; }}'
        self._write(self.root / "opt/koord-runtime-proxy/bin/koord-runtime-proxy", body)

    def run(self, script: str, word: str) -> subprocess.CompletedProcess[str]:
        """Runs a script as dpkg does."""
        text = (FOLDER / "debian" / script).read_text()
        moved = re.sub(r"(?<=[ =])/(opt|var|etc|run)/", rf"{self.root}/\1/", text)
        assert not re.search(r"rm [^|]*[ =]/(opt|var|etc|run)/", moved)
        return subprocess.run(
            ["sh", "-c", moved, script, word],
            env={"PATH": f"{self.root}/commands:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )

    def _write(self, path: Path, body: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$(basename "$0") $*" >>{self.root}/log\n{body}\n')
        path.chmod(0o755)

    def log(self) -> list[str]:
        """What was called, in order."""
        return (self.root / "log").read_text().splitlines()


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def test_values_are_given_back_before_the_program_goes(installed: Installed) -> None:
    (installed.state / "records.db").touch()
    installed.program("echo /kubepods cpu.cfs_quota_us 50000 -1 restored")
    removed = installed.run("prerm", "remove")
    assert (removed.returncode, removed.stderr) == (0, "")
    assert "50000 -1 restored" in removed.stdout
    stop, restore = installed.log()[-2:]
    assert stop.startswith("systemctl --quiet disable --now")
    assert restore == "koord-runtime-proxy restore"
    purged = installed.run("postrm", "purge")
    assert (purged.returncode, purged.stdout, purged.stderr) == (0, "", "")
    assert not installed.state.exists()


def test_a_purge_says_which_values_stay(installed: Installed) -> None:
    (installed.state / "records.db").touch()
    installed.program("echo /kubepods cpu.cfs_quota_us 50000 -1 not restored: busy; exit 1")
    removed = installed.run("prerm", "remove")
    assert removed.returncode == 0
    assert "not restored: busy" in removed.stderr
    assert "not all values were given back" in removed.stderr
    purged = installed.run("postrm", "purge")
    assert purged.returncode == 0
    assert "stay in force" in purged.stderr
    assert "not restored: busy" in purged.stderr
    assert not installed.state.exists()


@pytest.mark.parametrize(("word", "has_records"), [("upgrade", True), ("remove", False)])
def test_nothing_is_given_back_by_an_upgrade_or_without_records(
    installed: Installed, word: str, has_records: bool
) -> None:
    if has_records:
        (installed.state / "records.db").touch()
    done = installed.run("prerm", word)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (installed.root / "log").exists() or "koord-runtime-proxy restore" not in installed.log()
    assert not (installed.state / "not-restored").exists()


@pytest.mark.parametrize(
    ("upgrade", "check_config", "restarts", "warns"),
    [(0, 0, False, False), (1, 0, False, True), (5, 0, True, False), (5, 2, False, True)],
)
def test_an_upgrade_restarts_a_daemon_without_calls(
    installed: Installed, upgrade: int, check_config: int, *, restarts: bool, warns: bool
) -> None:
    case = f'case "$1" in upgrade) exit {upgrade} ;; check-config) exit {check_config} ;; esac'
    installed._write(installed.root / "opt/koord-runtime-proxy/bin/koord-runtime-proxy", case)
    installed._write(installed.root / "opt/koord-runtime-proxy/bin/python3", "exit 0")
    done = installed.run("postinst", "configure")
    assert done.returncode == 0
    assert ("systemctl restart koord-runtime-proxy.service" in installed.log()) is restarts
    assert ("the process of the former version serves on" in done.stderr) is warns


def test_a_wheel_has_man_pages_and_completions_where_shells_look_for_them(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path), "-t", "wheel"]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        shared = {name.partition(".data/data/")[2] for name in archive.namelist()}
    for program in ("koord-runtime-proxy", "koord-qos-manager"):
        assert {
            f"share/man/man8/{program}.8",
            f"share/bash-completion/completions/{program}",
            f"share/zsh/site-functions/_{program}",
            f"share/fish/vendor_completions.d/{program}.fish",
            f"share/koord-runtime-proxy/systemd/man/{program}.8",
        } <= shared


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*build, "-t", "sdist", "-t", "wheel"], cwd=REPOSITORY, check=True, capture_output=True)
    (archive,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", tmp_path], check=True)
    again = tmp_path / "again"
    (sources,) = (path for path in tmp_path.iterdir() if path.is_dir())
    subprocess.run([*build[:-1], str(again), "-t", "wheel"], cwd=sources, check=True, capture_output=True)
    assert (again / wheel.name).read_bytes() == wheel.read_bytes()
    names = {str(path.relative_to(sources)) for path in sources.rglob("*") if path.is_file()}
    assert {"systemd/man/koord-runtime-proxy.8", "systemd/completions/_koord-runtime-proxy"} <= names
