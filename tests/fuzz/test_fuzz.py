"""A short run of each fuzzer, of a seed of its own each time."""

from __future__ import annotations

import random
import re

import pytest

from tests.fuzz.fuzzers import FUZZERS, Plan, Report
from tests.fuzz.header_blocks import integer
from tests.fuzz.nri import attack_core
from tests.fuzz.sessions import Sessions
from tests.fuzz.ttrpc_sessions import TtrpcSessions

SESSIONS = {
    "sessions": 1_000,
    "header-blocks": 4_000,
    "runtimes": 4_000,
    "hook-servers": 1_000,
    "nri-runtimes": 2_000,
    "ttrpc-core": 500,
    "ttrpc-sockets": 2_000,
    "upgrades": 2_000,
    "kills": 2_000,
}


def is_slow_only(report: Report) -> bool:
    """Whether nothing was found but that something took long, as on a machine that is busy just then."""
    return all(re.search(r" took [\d.]+ m?s$", each) for each in report.problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", FUZZERS)
def test_nothing_ends_the_daemon_or_harms_another_client(name: str) -> None:
    plan = Plan(random.randrange(2**20), SESSIONS[name])
    report = FUZZERS[name](plan)
    print(f"{name}: {report}")
    if report.problems and is_slow_only(report):
        # What the daemon takes long for, it takes long for again.
        report = FUZZERS[name](plan)
        print(f"{name}: {report}")
    assert not report.problems, f"{name}: {report}"


def test_a_session_follows_from_seed_and_number() -> None:
    first, second = Sessions(7), Sessions(7)
    # Not as lists: to show how they differ takes half a minute.
    assert all(first.session(number) == second.session(number) for number in range(200))
    assert first.session(3) != Sessions(8).session(3)


def test_all_kinds_come_up() -> None:
    sessions = Sessions(1)
    kinds = {sessions.session(number).kind for number in range(500)}
    expected = {"valid", "spoiled", "cut", "frames", "blocks", "bodies", "resets", "noise", "flood"}
    assert kinds == expected


def test_hostile_ttrpc_at_the_core() -> None:
    found = attack_core(random.randrange(2**20), 200)
    assert not found.problems


def test_a_ttrpc_session_follows_from_seed_and_number() -> None:
    first, second = TtrpcSessions(7), TtrpcSessions(7)
    assert all(first.session(number) == second.session(number) for number in range(100))
    kinds = {first.session(number).kind for number in range(500)}
    expected = {"valid", "spoiled", "cut", "frames", "messages", "bodies", "many", "noise", "flood", "long"}
    assert kinds == expected


@pytest.mark.parametrize(
    ("number", "prefix_bits", "encoded"),
    [(10, 5, "0a"), (1337, 5, "1f9a0a"), (42, 8, "2a")],
    ids=["fits the prefix", "three bytes", "whole byte"],
)
def test_integers_are_those_of_the_specification(number: int, prefix_bits: int, encoded: str) -> None:
    # Source: RFC 7541, C.1.
    assert integer(number, prefix_bits).hex() == encoded
