"""However the bytes of both sides are split into reads, the same bytes come out on both sides."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from tests.frontends.cri_proxy.relay.properties.match import Match, Through, act, play_of
from tests.frontends.cri_proxy.relay.properties.plans import Plan, plans, schedules
from tests.frontends.cri_proxy.relay.properties.profile import bounded

Tape = list[tuple[str, bytes]]

MOST_TINY_BYTES = 20_000
"""One byte a read is slow: beyond this the reads grow."""

sizes = st.lists(st.sampled_from((1, 2, 3, 8, 9, 10, 13, 50, 1_000, 16_393)), min_size=1, max_size=20)


def joined(tape: Tape) -> Tape:
    """The same with as few reads as possible."""
    found: Tape = []
    for name, content in tape:
        if found and found[-1][0] == name and name in ("client", "runtime"):
            found[-1] = name, found[-1][1] + content
        else:
            found.append((name, content))
    return found


def cut(tape: Tape, pattern: list[int]) -> Iterator[tuple[str, bytes]]:
    """The same with reads of the sizes of a pattern, again and again."""
    step = 0
    for name, content in tape:
        if name not in ("client", "runtime"):
            yield name, content
            continue
        at = 0
        while at < len(content):
            size = pattern[step % len(pattern)] * (1 if step < MOST_TINY_BYTES else 1_000)
            yield name, content[at : at + size]
            at += size
            step += 1


def output(tape: Tape, plan: Plan) -> tuple[bytes, bytes]:
    """Plays a tape to a new core and returns what came out for the client and for the runtime."""
    play = play_of(plan)
    to_client = to_runtime = b""
    for name, content in tape:
        act(play, name, content, plan)
        to_client += play.client_bytes()
        to_runtime += play.runtime_bytes()
    return to_client, to_runtime


@bounded(30)
@given(plans(), schedules, sizes)
def test_any_split_gives_the_same_output(plan: Plan, schedule: bytes, pattern: list[int]) -> None:
    through = Match(plan, schedule).through
    assert isinstance(through, Through)
    whole = joined(through.tape)
    expected = output(whole, plan)
    assert output(through.tape, plan) == expected
    assert output(list(cut(whole, pattern)), plan) == expected
