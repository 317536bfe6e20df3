"""QoS and priority classes of pods: Koordinator's vocabulary and how a pod's class is derived."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

QOS_CLASS_LABEL: Final = "koordinator.sh/qosClass"
"""Pod label with the Koordinator QoS class. Source: Koordinator apis/extension/constants.go."""

PRIORITY_CLASS_LABEL: Final = "koordinator.sh/priority-class"
"""Pod label with the Koordinator priority class. Source: Koordinator apis/extension/constants.go."""


class QoSClass(StrEnum):
    """Koordinator's QoS class; NONE when the label is absent or has another value (case-sensitive)."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"
    NONE = ""


EXCLUSIVE: Final = frozenset({QoSClass.LSE, QoSClass.LSR})
"""The classes whose pods have CPUs for themselves. Source: Koordinator's scheduler, AllowUseCPUSet."""
NEVER_EVICTED: Final = frozenset({QoSClass.SYSTEM, QoSClass.LSE})
"""The classes whose pods are never evicted."""


class KubeQoSClass(StrEnum):
    """The QoS class that Kubernetes itself derives from requests and limits."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class PriorityClass(StrEnum):
    """Koordinator's priority class; NONE when neither label nor priority names one."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"
    NONE = ""


PRIORITY_BANDS: Final[Mapping[PriorityClass, range]] = {
    PriorityClass.PROD: range(9_000, 10_000),
    PriorityClass.MID: range(7_000, 8_000),
    PriorityClass.BATCH: range(5_000, 6_000),
    PriorityClass.FREE: range(3_000, 4_000),
}
"""The pod priorities of each class. Source: Koordinator apis/extension/priority.go."""

DEFAULT_PRIORITIES: Final[Mapping[PriorityClass, int]] = {
    PriorityClass.PROD: 9_500,
    PriorityClass.MID: 7_500,
    PriorityClass.BATCH: 5_500,
    PriorityClass.FREE: 3_500,
    PriorityClass.NONE: 0,
}
"""The priority value of a class alone. Source: Koordinator apis/extension/priority.go."""

DEFAULT_PRIORITY_CLASSES: Final[Mapping[QoSClass, PriorityClass]] = {
    **dict.fromkeys(QoSClass, PriorityClass.PROD),
    QoSClass.BE: PriorityClass.BATCH,
    QoSClass.NONE: PriorityClass.NONE,
}
"""The priority class of a QoS class. Source: Koordinator apis/extension/priority_utils.go."""

_QOS_BY_LABEL: Final = {qos.value: qos for qos in QoSClass}
_PRIORITY_BY_LABEL: Final = {priority.value: priority for priority in PriorityClass}
_QOS_BY_KUBE_QOS: Final = {KubeQoSClass.BURSTABLE: QoSClass.LS, KubeQoSClass.BEST_EFFORT: QoSClass.BE}


def qos_class(labels: Mapping[str, str]) -> QoSClass:
    """Return the raw QoS class: the label's, or NONE when it is absent or unknown.

    This look-up is the one of all runtime hooks. Source: Koordinator apis/extension/qos_utils.go.
    """
    return _QOS_BY_LABEL.get(labels.get(QOS_CLASS_LABEL, ""), QoSClass.NONE)


def qos_class_with_default(
    labels: Mapping[str, str], kube_qos: KubeQoSClass, *, guaranteed: QoSClass = QoSClass.LSR
) -> QoSClass:
    """Return the QoS class, from the Kubernetes QoS class when the label names none.

    This look-up chooses memory and resctrl classes. Source: the same, GetPodQoSClassWithDefault.

    `guaranteed`: the class of a Guaranteed pod without a label.
    """
    return qos_class(labels) or _QOS_BY_KUBE_QOS.get(kube_qos, guaranteed)


def kube_qos_class(cgroup_parent: str) -> KubeQoSClass:
    """Return the Kubernetes QoS class that a pod's cgroup parent (path or slice) stands for.

    An empty or foreign path is Guaranteed. Source: Koordinator pkg/koordlet/util, GetKubeQoSByCgroupParent.
    """
    if "besteffort" in cgroup_parent:
        return KubeQoSClass.BEST_EFFORT
    if "burstable" in cgroup_parent:
        return KubeQoSClass.BURSTABLE
    return KubeQoSClass.GUARANTEED


def priority_class(labels: Mapping[str, str], priority: int | None = None) -> PriorityClass:
    """Return the raw priority class: the label's, and only without a label that of the priority's band.

    An unknown label is NONE whatever the priority. Source: Koordinator apis/extension/priority.go.

    `priority`: the pod's `spec.priority`; None where it is not known, as in the CRI.
    """
    label = labels.get(PRIORITY_CLASS_LABEL)
    if label is not None:
        return _PRIORITY_BY_LABEL.get(label, PriorityClass.NONE)
    if priority is None:
        return PriorityClass.NONE
    return next((name for name, band in PRIORITY_BANDS.items() if priority in band), PriorityClass.NONE)


def priority_class_with_default(
    labels: Mapping[str, str], priority: int | None = None, kube_qos: KubeQoSClass | None = None
) -> PriorityClass:
    """Return the priority class, from the QoS class when neither label nor priority names one.

    BE is batch, every other class prod. Source: Koordinator apis/extension/priority_utils.go.

    `kube_qos`: of the same pod, for the QoS class of one without a label; None: it has no class then.
    """
    named = priority_class(labels, priority)
    if named is not PriorityClass.NONE:
        return named
    qos = qos_class(labels) if kube_qos is None else qos_class_with_default(labels, kube_qos)
    return DEFAULT_PRIORITY_CLASSES[qos]
