"""The policy contract: views in, changes out; order, merging, timeouts, failure policies."""

from runtimeproxy.hooks.changes import (
    CLEAR,
    CgroupChange,
    Clear,
    ContainerChange,
    DeviceSpec,
    MountSpec,
    PodChange,
    ResourceChange,
)
from runtimeproxy.hooks.policy import FailurePolicy, Hook, Mode, Policy
from runtimeproxy.hooks.selector import (
    EVERY_POD,
    Concern,
    PodSelector,
)
from runtimeproxy.hooks.views import ContainerView, PodView, Resources
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector

__all__ = [
    "CLEAR",
    "EVERY_POD",
    "CgroupChange",
    "Clear",
    "Concern",
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
    "PodChange",
    "PodSelector",
    "PodView",
    "Policy",
    "ResourceChange",
    "Resources",
]
