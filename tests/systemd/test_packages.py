"""Scripts and locks of the packages; `tests/node/guest/packages.py` installs the Debian package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
