"""The documents of an installation have no link to what is not installed."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import PurePosixPath

import pytest

from tests.lab.programs import REPOSITORY

_SPEC = spec_from_file_location("build_documents", REPOSITORY / "build_documents.py")
assert _SPEC is not None
assert _SPEC.loader is not None
builds = module_from_spec(_SPEC)
_SPEC.loader.exec_module(builds)


def test_no_link_of_an_installed_document_is_dead() -> None:
    installed = frozenset(builds.installed_files(REPOSITORY))
    assert {
        PurePosixPath("README.md"),
        PurePosixPath("policies/STRATEGIES.md"),
        PurePosixPath("systemd/FAILURES.md"),
        PurePosixPath("systemd/koord-runtime-proxy.service"),
    } <= installed
    folder = PurePosixPath("systemd/packages")
    assert {name for name in installed if folder in name.parents} == {folder / "README.md"}
    found = 0
    for name in installed:
        if name.suffix != ".md":
            continue
        text = builds.installed_text((REPOSITORY / name).read_text(), name, installed)
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path = (REPOSITORY / name.parent / target).resolve().relative_to(REPOSITORY.resolve())
            place = PurePosixPath(path.as_posix())
            assert place in installed or any(place in each.parents for each in installed), (name, target)
            found += 1
    assert found > 50


@pytest.mark.parametrize(
    ("text", "installed"),
    [
        ("[a](B.md) [c](../x/B.md#d) [e](#f)", "[a](B.md) [c](../x/B.md#d) [e](#f)"),
        (
            "see [the `test`](../tests/a.py) and [u](https://example.com/y)",
            "see the `test` and [u](https://example.com/y)",
        ),
        ("[g](../x) [h](../z/)", "[g](../x) h"),
        ("![a picture](p.png) and [![c](p.png)](B.md)", "a picture and [c](B.md)"),
        ("[![c](p.png)](nowhere.md)", "c"),
        ("```\n[a](nowhere.md)\n```\n[a](nowhere.md)", "```\n[a](nowhere.md)\n```\na"),
    ],
)
def test_links_to_what_is_not_installed_become_text(text: str, installed: str) -> None:
    names = frozenset({PurePosixPath("x/B.md"), PurePosixPath("x/A.md")})
    assert builds.installed_text(text, PurePosixPath("x/A.md"), names) == installed
