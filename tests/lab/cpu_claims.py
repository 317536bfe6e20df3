"""Files of DRA claims on CPUs, as dra-driver-cpu writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def device_of(uid: str) -> str:
    return f"dra.k8s.io/cpu=claim-{uid}"


def claim_file(folder: Path, uid: str, cpus: str | Mapping[str, str] | None) -> Path:
    """Prepares a claim with these CPUs, or with the variables of its device; None: takes it away.

    The whole file is there at once. Source: container-device-interface pkg/cdi/spec.go, write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"dra.k8s.io-cpu_claim-{uid}.json"
    if cpus is None:
        path.unlink()
        return path
    variables = {f"DRA_CPUSET_{uid}": cpus} if isinstance(cpus, str) else cpus
    edits = {"env": [f"{name}={value}" for name, value in variables.items()]}
    document = {
        "cdiVersion": "0.8.0",
        "kind": "dra.k8s.io/cpu",
        "devices": [{"name": f"claim-{uid}", "containerEdits": edits}],
    }
    whole = folder / f".{path.name}"
    whole.write_text(json.dumps(document))
    whole.rename(path)
    return path
