"""`koord-qos-manager status`: what it prints, and its exit codes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.qosmanager.__main__ import main, make_parser
from runtimeproxy.qosmanager.status import NO_DAEMON, is_problem, lines

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
Status = api_pb2.QosManagerStatus
Plugin = api_pb2.QosPluginStatus
ENFORCE, OFF, DRY_RUN = api_pb2.MODE_ENFORCE, api_pb2.MODE_OFF, api_pb2.MODE_DRY_RUN


def running(*plugins: Plugin, note: str = "", source: str = "", problem: str = "") -> Status:
    report = api_pb2.QosManagerReport(
        version="1.2", pid=7, plugins=plugins, metrics_source=source, metrics_problem=problem
    )
    return Status(state=Status.STATE_RUNNING, report=report, note=note, wanted=["cpu-suppress"])


@pytest.mark.parametrize(
    ("status", "problem", "expected"),
    [
        (Status(state=Status.STATE_NOT_WANTED), False, ["no strategy of this node asks"]),
        (
            Status(state=Status.STATE_MISSING, note="Start it.", wanted=["cpu-suppress"]),
            True,
            ["not running", "asked for by the strategies: cpu-suppress", "Start it."],
        ),
        (Status(state=Status.STATE_LEFT, note="Koordlet does it."), False, ["not needed here", "Koordlet"]),
        (Status(state=Status.STATE_STARTING, wanted=["cpu-burst"]), False, ["no report", "cpu-burst"]),
        (
            running(Plugin(name="cpu-suppress", mode=ENFORCE, is_wanted=True, claims=3, explanation="50 %")),
            False,
            ["running: version 1.2, process 7", "cpu-suppress", "enforce: 3 claims, 50 %"],
        ),
        (
            running(Plugin(name="cpu-suppress", mode=ENFORCE, is_wanted=True, problem="it still hangs")),
            True,
            ["running", "cpu-suppress", "does nothing: it still hangs"],
        ),
        (
            running(Plugin(name="cpu-evict", mode=DRY_RUN), Plugin(name="profiling", mode=OFF, problem="x")),
            False,
            ["running", "cpu-suppress", "dry-run: not asked for", "  profiling  off"],
        ),
        (running(source="kernel"), False, ["running", "asked for"]),
        (running(source="malachite"), False, ["running", "asked for", "samples: from Malachite"]),
        (running(source="kernel", problem="2 of 2"), True, ["running", "asked for", "samples: 2 of 2"]),
        (running(source="malachite", problem="1 of 2"), False, ["running", "asked for", "samples: 1 of 2"]),
    ],
)
def test_what_it_says(status: Status, *, problem: bool, expected: list[str]) -> None:
    found = list(lines(status, NOW))
    assert is_problem(status) is problem
    assert len(found) <= len(expected) + 1
    text = "\n".join(found)
    assert all(part in text for part in expected), text


def test_when_one_was_last_heard_of() -> None:
    status = Status(state=Status.STATE_MISSING, report=api_pb2.QosManagerReport(pid=9))
    status.last_heard.FromDatetime(NOW - timedelta(seconds=90))
    assert next(lines(status, NOW)).endswith("last heard of process 9 90 s ago")


@pytest.mark.parametrize("words", [("--config", "a", "status"), ("status", "--config", "a")])
def test_flags_before_and_after_the_command(words: tuple[str, ...]) -> None:
    found = make_parser().parse_args(words)
    assert (found.command, found.config, found.output) == ("status", "a", "text")


def test_no_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[proxy]\nendpoint = '{tmp_path}/none.sock'\n")
    assert main(["status", "--config", str(config)]) == NO_DAEMON
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{tmp_path}/none.sock: koord-runtime-proxy does not answer" in captured.err


def test_a_wrong_flag() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", "--output", "xml"])
    assert ended.value.code == 2
