"""Plain files in place of resctrl's: what can be read of it. They follow no write, `tests/resctrl` does."""

from __future__ import annotations

from pathlib import Path

from runtimeproxy.cgroups.resctrl import FOLDER

ROOT = "    L3:0=7ff;1=7ff\n    MB:0=100;1=100\n"
INFO = {
    "L3/cbm_mask": "7ff",
    "L3/min_cbm_bits": "1",
    "L3/num_closids": "16",
    "L3/shareable_bits": "0",
    "MB/bandwidth_gran": "10",
    "MB/min_bandwidth": "10",
    "MB/num_closids": "8",
    "L3_MON/num_rmids": "32",
    "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes",
}


def make_resctrl(sysfs: Path, schemata: str = ROOT, **info: str) -> Path:
    """A root group on a machine with two caches; returns its folder.

    `info`: other texts of files, with `__` for `/`; empty for a file that there is not.
    """
    folder = sysfs / FOLDER
    (folder / "mon_groups").mkdir(parents=True)
    (folder / "schemata").write_text(schemata)
    (folder / "tasks").write_text("1\n")
    for name, text in (INFO | {each.replace("__", "/"): text for each, text in info.items()}).items():
        if text:
            file = folder / "info" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
    return folder
