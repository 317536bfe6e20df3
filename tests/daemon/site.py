"""Installs policies of the tests in the daemon, by entry points, as a third party's package has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runtimeproxy.hooks.loading import ENTRY_POINT_GROUP

HERE = __name__.rpartition(".")[0]

IMPORT_FIFO = "TEST_IMPORT_FIFO"
"""The variable that names the FIFO of `slow_to_import`."""


def site_folder(folder: Path, **policies: str) -> Mapping[str, str]:
    """Makes a folder in which the policies are installed, and returns the environment that shows it.

    A policy is `module:Class`, with the module's name below this package.
    """
    about = folder / "site" / "test_policies-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: test-policies\nVersion: 1.0\n")
    lines = [f"{name} = {HERE}.{place}" for name, place in policies.items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *lines, ""]))
    return {"PYTHONPATH": str(about.parent)}
