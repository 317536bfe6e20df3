"""Any mix of held and passing streams keeps every stream's bytes and order, within all windows, and ends."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.frontends.cri_proxy.relay.properties.claims import check
from tests.frontends.cri_proxy.relay.properties.match import Match
from tests.frontends.cri_proxy.relay.properties.plans import Plan, plans, schedules
from tests.frontends.cri_proxy.relay.properties.profile import bounded


@bounded(150)
@given(plans(), schedules)
def test_every_stream_arrives_within_all_windows(plan: Plan, schedule: bytes) -> None:
    check(Match(plan, schedule))


@pytest.mark.slow
@bounded(50)
@given(plans(), schedules)
def test_the_endpoints_agree_without_the_relay(plan: Plan, schedule: bytes) -> None:
    check(Match(plan, schedule, is_direct=True))
