"""The vocabulary and the API's messages have the same words."""

from __future__ import annotations

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.api_names import LEVEL_OF, MODE_OF, MODES, ROLE_OF, ROLES, TARGETS
from runtimeproxy.vocabulary import ClaimLevel, Mode, Role


def test_every_number_but_that_of_nothing_is_a_role_or_a_mode() -> None:
    assert ROLE_OF.keys() == set(api_pb2.ExplainedClaim.Role.values()) - {0}
    assert MODE_OF.keys() == set(api_pb2.Mode.values()) - {0}
    assert {ROLE_OF[number] for number in ROLES.values()} == set(Role)
    assert {MODE_OF[number] for number in MODES.values()} == set(Mode)


def test_every_target_is_of_a_level() -> None:
    fields = api_pb2.ClaimTarget.DESCRIPTOR.oneofs_by_name["target"].fields
    assert set(TARGETS.values()) == {field.name for field in fields} == LEVEL_OF.keys()
    assert TARGETS.keys() == set(ClaimLevel) - {ClaimLevel.NODE}
