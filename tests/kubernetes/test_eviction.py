"""Evictions by the API server, and what its answers mean."""

from __future__ import annotations

from typing import Any

import pytest

from runtimeproxy.kubernetes.client import ApiClient
from runtimeproxy.kubernetes.eviction import ApiEvictionOutcome, ApiEvictor
from tests.kubernetes.api_server import ApiServer

BUDGET = {"details": {"causes": [{"reason": "DisruptionBudget"}]}, "message": "Cannot evict pod"}


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (201, {"status": "Success"}, ApiEvictionOutcome.EVICTED),
        (429, BUDGET, ApiEvictionOutcome.BLOCKED),
        (429, {"message": "it would violate the pod's disruption budget."}, ApiEvictionOutcome.BLOCKED),
        (429, {"message": "too many requests"}, ApiEvictionOutcome.FAILED),
        (404, {"message": 'pods "p" not found'}, ApiEvictionOutcome.GONE),
        (409, {"message": "the UID in the precondition does not match"}, ApiEvictionOutcome.GONE),
        (403, {"message": "pods/eviction is forbidden"}, ApiEvictionOutcome.REFUSED),
        (500, {"message": "more than one PodDisruptionBudget"}, ApiEvictionOutcome.FAILED),
        (200, b"nonsense", ApiEvictionOutcome.FAILED),
    ],
)
def test_what_an_answer_means(
    server: ApiServer, client: ApiClient, status: int, body: Any, outcome: ApiEvictionOutcome
) -> None:
    server.answers["/pods/p/eviction"] = (status, body)
    evictor = ApiEvictor(client)
    result = evictor.evict("ns", "p", "uid-1")
    assert result.outcome is outcome
    assert bool(result.reason) is (outcome is not ApiEvictionOutcome.EVICTED)
    assert evictor.outcomes == {outcome: 1}


def test_the_request_is_about_this_very_pod(server: ApiServer, client: ApiClient) -> None:
    evictor = ApiEvictor(client)
    assert evictor.evict("ns", "p", "uid-1", dry_run=True).outcome is ApiEvictionOutcome.EVICTED
    (request,) = server.requests
    assert request.path == "/api/v1/namespaces/ns/pods/p/eviction"
    assert request.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": "ns"},
        "deleteOptions": {"preconditions": {"uid": "uid-1"}, "dryRun": ["All"]},
    }
    assert not evictor.outcomes  # of dry runs nothing is counted


def test_names_cannot_lead_elsewhere(server: ApiServer, client: ApiClient) -> None:
    ApiEvictor(client).evict("../x", "p?q", "uid-1")
    assert server.requests[0].path == "/api/v1/namespaces/..%2Fx/pods/p%3Fq/eviction"
