"""A policy to copy: sets the OOM score of the containers of `LS` pods. It is not in `BUILT_IN`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from runtimeproxy.hooks import ContainerChange, ContainerView, PodSelector, Policy, Reason, ResourceChange
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import QoSClass


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """Settings of the policy: the keys of `[policies.template.options]`, each with type and default."""

    oom_score_adj: int = -500
    """-1000 (never killed) to 1000."""

    def __post_init__(self) -> None:
        if not -1_000 <= self.oom_score_adj <= 1_000:
            raise ValueError("oom_score_adj is not in -1000 to 1000")


def oom_score_adj(qos: QoSClass, options: TemplateOptions) -> int | None:
    """Return the score for a QoS class; None leaves the kubelet's. Pure functions are easy to test."""
    return options.oom_score_adj if qos is QoSClass.LS else None


class Template(Policy):
    """Sets the OOM score of latency-sensitive containers."""

    name: ClassVar[str] = "template"
    selector: ClassVar[PodSelector] = PodSelector(qos_classes=frozenset({QoSClass.LS}))
    priority: ClassVar[int] = 70
    options_type: ClassVar[type[TemplateOptions] | None] = TemplateOptions

    def __init__(self, options: TemplateOptions | None = None) -> None:
        self._options = options or TemplateOptions()

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the score, from the QoS class alone: the same at creation, updates and re-evaluation.

        A container is created with the score, and the processes of one that runs get it.
        """
        score = oom_score_adj(container.pod.qos, self._options)
        if score is None:
            return None
        resources = ResourceChange(oom_score_adj=score)
        reasons = {"oom_score_adj": Reason("the option oom_score_adj for LS pods = ", score)}
        return ContainerChange(resources=resources, reason="latency-sensitive pod", reasons=reasons)
