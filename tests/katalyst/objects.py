"""Objects of Katalyst's dynamic configuration as `kubectl get -o yaml` prints them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

NODE = "node-a"
CREATED = "2026-11-28T00:00:00Z"
CREATED_S = datetime.fromisoformat(CREATED).timestamp()


def target(
    name: str,
    *,
    selector: str = "",
    nodes: object = None,
    last: str = "",
    created: str | None = CREATED,
    config: object = None,
    **spec: Any,
) -> dict[str, Any]:
    """An AdminQoSConfiguration. `nodes`, `last`: of its ephemeralSelector; others are fields of the spec."""
    if selector:
        spec["nodeLabelSelector"] = selector
    ephemeral = {"nodeNames": nodes, "lastDuration": last or None}
    if nodes or last:
        spec["ephemeralSelector"] = {key: value for key, value in ephemeral.items() if value is not None}
    metadata = {"name": name, "uid": "1", **({"creationTimestamp": created} if created else {})}
    return {
        "apiVersion": "config.katalyst.kubewharf.io/v1alpha1",
        "kind": "AdminQoSConfiguration",
        "metadata": metadata,
        "spec": {"config": {} if config is None else config, "revisionHistoryLimit": 3, **spec},
        "status": {"targetNodes": 3},
    }


def custom_config(
    allowed: Mapping[int, Sequence[str]], resource: str = "adminqosconfigurations", name: str = "kcc"
) -> dict[str, Any]:
    """A KatalystCustomConfig. `allowed`: keys by priority."""
    keys = [{"priority": priority, "keyList": list(names)} for priority, names in allowed.items()]
    group = {"group": "config.katalyst.kubewharf.io", "version": "v1alpha1", "resource": resource}
    return {
        "apiVersion": "config.katalyst.kubewharf.io/v1alpha1",
        "kind": "KatalystCustomConfig",
        "metadata": {"name": name},
        "spec": {"targetType": group, "nodeLabelSelectorAllowedKeyList": keys},
    }
