"""Man page and completions are those of the present parser, and shells and man take them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from runtimeproxy.commands.catalog import COMMANDS
from runtimeproxy.commands.exit_codes import MEANINGS
from runtimeproxy.doctor.checks import CHECKS
from tests.lab.programs import missing
from tests.systemd.command_files import COMPLETIONS, FOLDER, MAN_PAGE, PROGRAMS, Program, files


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        missing(f"{name} is missing: run tests/lab/install.sh")
    return path


def test_they_are_up_to_date() -> None:
    for name, text in files().items():
        assert (FOLDER / name).read_text() == text, "run `make command-files`"


def test_the_man_page_has_every_command_argument_and_exit_code() -> None:
    text = (FOLDER / MAN_PAGE).read_text().replace("\\", "")
    for command in COMMANDS:
        assert f"koord-runtime-proxy {command.name}" in text
        for name in command.arguments:
            assert name.split()[-1].upper() in text.upper()
    for code, meaning in MEANINGS.items():
        assert f"{code:<4} {meaning}".replace("-", "") in text.replace("-", "")
    for heading in ("PRECEDENCE", "EXAMPLES", "SIGNALS", "EXIT CODES"):
        assert f"\n.SH {heading}\n" in text


def test_the_document_has_every_command_check_and_exit_code() -> None:
    text = (FOLDER / "COMMANDS.md").read_text()
    for command in COMMANDS:
        assert command.name == "version" or f"| `{command.name}" in text
    for name in CHECKS:
        assert f"| {name} |" in text
    for code, meaning in MEANINGS.items():
        assert f"| {code} | {meaning} |" in text


@pytest.mark.debian
@pytest.mark.parametrize("command", PROGRAMS, ids=lambda each: each.name)
def test_man_finds_nothing_wrong_with_the_pages(command: Program) -> None:
    environ = {**os.environ, "MANROFFSEQ": "", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    words = ["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(FOLDER / command.man_page)]
    done = subprocess.run([program("man"), *words], capture_output=True, text=True, check=False, env=environ)
    assert (done.returncode, done.stderr) == (0, "")


def completed(words: str) -> set[str]:
    """What bash offers for the last word of a command line."""
    script = f"""
        source {FOLDER / COMPLETIONS["bash"]}
        COMP_WORDS=({words}); [[ "{words}" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        compopt() {{ :; }}
        $(complete -p koord-runtime-proxy | sed -E 's/.* -F ([^ ]+) .*/\\1/') koord-runtime-proxy
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run([program("bash"), "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return {line.strip() for line in done.stdout.splitlines()}


OFFERED = [
    ("st", {"status"}),
    ("explain --a", {"--all"}),
    ("status --output ", {"text", "json", "yaml"}),
    ("policy cpuset dr", {"dry-run"}),
    ("bypass o", {"on", "off"}),
]


@pytest.mark.parametrize(("words", "offered"), OFFERED)
def test_bash_completes(words: str, offered: set[str]) -> None:
    assert completed(f"koord-runtime-proxy {words}") == offered


NAMES = [
    ("explain sh", {"shop/web", "shop/db"}),
    ("audit --pod shop/w", {"shop/web"}),
    ("audit --policy cpu-b", {"cpu-burst"}),
    ("policy cpus", {"cpuset"}),
]


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that knows pods and policies by name."""
    names = 'case "$*" in "pods --output name") echo shop/web; echo shop/db;; '
    names += '"list-policies --output name") echo cpu-burst; echo cpuset;; *) exit 1; esac'
    file = tmp_path / "koord-runtime-proxy"
    file.write_text(f"#!/bin/sh\n{names}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(("words", "offered"), NAMES)
def test_bash_completes_names(words: str, offered: set[str]) -> None:
    assert completed(f"koord-runtime-proxy {words}") == offered


@pytest.mark.debian
@pytest.mark.usefixtures("named")
def test_fish_completes_names() -> None:
    assert completed_by_fish([words for words, _ in NAMES]) == [offered for _, offered in NAMES]


@pytest.mark.debian
def test_fish_completes() -> None:
    assert completed_by_fish([words for words, _ in OFFERED]) == [offered for _, offered in OFFERED]


def completed_by_fish(lists: Iterable[str]) -> list[set[str]]:
    """What fish offers for the last word of each command line."""
    lines = [f'complete -C "koord-runtime-proxy {words}"; echo END' for words in lists]
    script = "\n".join((f"source {FOLDER / COMPLETIONS['fish']}", *lines))
    done = subprocess.run([program("fish"), "-c", script], capture_output=True, text=True, check=True)
    parts = done.stdout.split("END\n")[:-1]
    assert done.stderr == ""
    return [{line.partition("\t")[0] for line in part.splitlines() if line} for part in parts]


@pytest.mark.debian
def test_zsh_loads_its_completion(tmp_path: Path) -> None:
    folder = (FOLDER / COMPLETIONS["zsh"]).parent
    script = f"""
        autoload -Uz compinit && fpath=({folder} $fpath) && compinit -u -d {tmp_path}/dump
        print ${{_comps[koord-runtime-proxy]}}
        autoload -Uz +X _koord-runtime-proxy && print loaded
    """
    done = subprocess.run([program("zsh"), "-f", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["_koord-runtime-proxy", "loaded"], "")


@pytest.mark.debian
@pytest.mark.parametrize(
    ("words", "shown"), [("policy cpuset dr", "dry-run"), ("explain --a", "--all"), ("stat", "status")]
)
def test_zsh_completes(tmp_path: Path, words: str, shown: str) -> None:
    assert shown in completed_by_zsh(tmp_path, f"{words}\t", shown)


@pytest.mark.debian
@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(("words", "offered"), [*NAMES, ("pods --policy cpu-b", {"cpu-burst"})])
def test_zsh_completes_names(tmp_path: Path, words: str, offered: set[str]) -> None:
    # The first tab completes what all have in common, the second one lists them.
    text = completed_by_zsh(tmp_path, f"{words}\t\t", *sorted(offered))
    assert {name for _, names in NAMES for name in names if name in text} == offered


def completed_by_zsh(folder: Path, typed: str, *shown: str) -> str:
    """What an interactive zsh shows on a terminal for typed words, once it has shown these texts."""
    completions = (FOLDER / COMPLETIONS["zsh"]).parent
    start = f"autoload -Uz compinit && fpath=({completions} $fpath) && compinit -u -d {folder}/dump"
    script = f"""
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell '{start}; print REA""DY'
        zpty -r shell output '*READY*'
        zpty -n -w shell $'koord-runtime-proxy {typed}'
        zpty -r shell completed '*{"*".join(shown)}*'
        # Takes the line away.
        zpty -w shell $'\\x15print EN""D'
        zpty -r shell rest '*END*'
        zpty -d shell
        print -r -- "$completed$rest"
    """
    environ = {**os.environ, "TERM": "dumb"}
    done = subprocess.run(
        [program("zsh"), "-f", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout
