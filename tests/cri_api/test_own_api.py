"""The daemon's own API grows by additions only."""

from __future__ import annotations

import json

from tests.cri_api.own_facts import FACTS, lost, present


def test_the_facts_are_those_of_the_proto() -> None:
    assert json.loads(FACTS.read_text()) == present(), "run python -m tests.cri_api.own_facts"


def test_what_is_gone_or_changed_is_found() -> None:
    before, now = present(), present()
    now["messages"]["Bypass"] = [each.replace("1 bool", "9 bool") for each in now["messages"]["Bypass"]]
    now["enums"]["Mode"] = {**now["enums"]["Mode"], "MODE_OFF": 7}
    del now["services"]["Admin"]["SetBypass"]
    assert lost(before, now) == ["Bypass: 1 bool is_on", "Mode: MODE_OFF", "Admin: SetBypass"]
    assert lost(before, before) == []
