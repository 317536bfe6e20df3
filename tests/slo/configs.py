"""Shortcuts of the tests of strategies."""

from __future__ import annotations

import json
from collections.abc import Mapping

from runtimeproxy.hooks.views import PodView
from runtimeproxy.qos import QOS_CLASS_LABEL, KubeQoSClass, QoSClass
from runtimeproxy.slo.loading import Loaded, NodeSlo, Text, load

FILE = "/etc/node.d/config.yaml"


def loaded(
    keys: Mapping[str, object],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node_slo: Mapping[str, object] | None = None,
    previous: Loaded | None = None,
) -> Loaded:
    """Strategies of a ConfigMap; a value that is no text becomes JSON."""
    texts = {
        key: Text(FILE, value if isinstance(value, str) else json.dumps(value)) for key, value in keys.items()
    }
    slo = None if node_slo is None else NodeSlo("/etc/node.d/nodeslo.yaml", node_slo)
    return load(texts, node_slo=slo, labels=labels, annotations=annotations, previous=previous)


def good(keys: Mapping[str, object], **others: Mapping[str, str]) -> Loaded:
    """As `loaded`, of a ConfigMap without problems."""
    result = loaded(keys, **others)  # type: ignore[arg-type]
    assert result.problems == ()
    return result


def pod(
    qos: str = "",
    annotations: Mapping[str, object] | None = None,
    *,
    namespace: str = "prod",
    kube_qos: KubeQoSClass = KubeQoSClass.BURSTABLE,
    **labels: str,
) -> PodView:
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in (annotations or {}).items()
    }
    return PodView(
        namespace=namespace,
        name="web-0",
        uid="u1",
        labels={**labels, **({QOS_CLASS_LABEL: qos} if qos else {})},
        annotations=texts,
        qos=QoSClass(qos),
        kube_qos=kube_qos,
    )
