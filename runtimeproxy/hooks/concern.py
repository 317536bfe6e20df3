"""Which pods a policy is about, as data: who is about none of them costs a call nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from runtimeproxy.hooks.views import ContainerView
from runtimeproxy.qos import QoSClass


class PodTraits(Protocol):
    """What decides whether anybody is concerned with a pod; a `PodView` has it."""

    @property
    def namespace(self) -> str:
        """Its namespace."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""

    @property
    def qos(self) -> QoSClass:
        """Its QoS class, by the raw label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """Conditions on a pod; all must hold. The event loop looks at them, so that no thread is asked in vain.

    The pod is the one that the policy would be shown, with the changes of earlier policies.
    """

    qos_classes: frozenset[QoSClass] | None = None
    """The pod's QoS class, by its raw label, is one of these; None means any."""
    annotations: tuple[str, ...] = ()
    """The pod has an annotation with one of these keys; empty means that it needs none."""

    def matches(self, view: PodTraits | ContainerView) -> bool:
        """Return whether the policy is about this pod, or about the pod of this container."""
        pod = view.pod if isinstance(view, ContainerView) else view
        if self.qos_classes is not None and pod.qos not in self.qos_classes:
            return False
        return not self.annotations or any(key in pod.annotations for key in self.annotations)


EVERY_POD: Final = Concern()
"""No conditions."""
