"""The template works: a copy starts from something that is right."""

from __future__ import annotations

import pytest

from policies.template import Template, TemplateOptions, oom_score_adj
from runtimeproxy.hooks import ContainerView, PodView, ResourceChange
from runtimeproxy.node.snapshot import Node
from runtimeproxy.qos import QoSClass


@pytest.mark.parametrize(("qos", "score"), [(QoSClass.LS, -500), (QoSClass.BE, None), (QoSClass.NONE, None)])
def test_score_of_each_class(qos: QoSClass, score: int | None) -> None:
    assert oom_score_adj(qos, TemplateOptions()) == score


def test_a_latency_sensitive_container_gets_the_score() -> None:
    policy = Template(TemplateOptions(oom_score_adj=-900))
    change = policy.container(ContainerView(pod=PodView(qos=QoSClass.LS)), Node())
    assert change is not None
    assert change.resources == ResourceChange(oom_score_adj=-900)
    assert policy.container(ContainerView(), Node()) is None


def test_a_score_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="oom_score_adj"):
        TemplateOptions(oom_score_adj=-1_001)
