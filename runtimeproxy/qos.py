"""QoS and priority classes of pods: Koordinator's vocabulary and how a pod's class is derived."""

from __future__ import annotations

from enum import StrEnum

QOS_CLASS_LABEL = "koordinator.sh/qosClass"
"""Pod label with the Koordinator QoS class. Source: Koordinator apis/extension (policies spec 1.1)."""


class QoSClass(StrEnum):
    """Koordinator's QoS class; NONE when the label is absent or has another value (case-sensitive)."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"
    NONE = ""


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
