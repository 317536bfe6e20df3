"""The policy contract: views in, changes out; order, claims, timeouts, failure policies."""

from runtimeproxy.hooks.changes import (
    CLEAR,
    Add,
    AtMost,
    CgroupChange,
    Clear,
    ContainerChange,
    DeviceSpec,
    MountSpec,
    NodeChange,
    PodChange,
    ResourceChange,
    Scale,
)
from runtimeproxy.hooks.policy import FailurePolicy, Hook, Mode, Policy
from runtimeproxy.hooks.reasons import Reason, Source
from runtimeproxy.hooks.selector import EVERY_POD, PodSelector
from runtimeproxy.hooks.views import ContainerView, PodView, ResolvedPod, Resources
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector

__all__ = [
    "CLEAR",
    "EVERY_POD",
    "Add",
    "AtMost",
    "CgroupChange",
    "Clear",
    "ContainerChange",
    "ContainerView",
    "DeviceSpec",
    "FailurePolicy",
    "Hook",
    "LabelOperator",
    "LabelRequirement",
    "LabelSelector",
    "Mode",
    "MountSpec",
    "NodeChange",
    "PodChange",
    "PodSelector",
    "PodView",
    "Policy",
    "Reason",
    "ResolvedPod",
    "ResourceChange",
    "Resources",
    "Scale",
    "Source",
]
