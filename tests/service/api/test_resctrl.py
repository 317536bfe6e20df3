"""GetResctrl: groups and counters as messages."""

from __future__ import annotations

from pathlib import Path

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.cgroups.resctrl import PREFIX, ResctrlGroups
from runtimeproxy.node.resctrl import read_resctrl
from runtimeproxy.service.api.resctrl import resctrl_of
from tests.cgroups.resctrl_files import make_resctrl


def test_groups_and_counters(tmp_path: Path) -> None:
    folder = make_resctrl(tmp_path)
    for name in (f"{PREFIX}BE", "LSR"):
        (folder / name).mkdir()
        (folder / name / "schemata").write_text("  L3:0=00f;1=00f\n  MB:0= 20;1= 20\n")
    counters = folder / f"{PREFIX}BE/mon_groups/{PREFIX}pod-u/mon_data/mon_L3_00"
    counters.mkdir(parents=True)
    (counters / "llc_occupancy").write_text("4096\n")
    (counters / "mbm_total_bytes").write_text("Unavailable\n")
    schemata = "L3:0=f;1=f,MB:0=20;1=20"
    away = "the kernel or the processor has no such counter"
    assert resctrl_of(ResctrlGroups(folder), read_resctrl(tmp_path), {"u": ("jobs", "spark")}) == (
        api_pb2.GetResctrlResponse(
            is_mounted=True,
            closids=8,
            rmids=32,
            groups=[
                api_pb2.ResctrlGroup(name="LSR", schemata=schemata),
                api_pb2.ResctrlGroup(name=f"{PREFIX}BE", schemata=schemata, is_own=True),
            ],
            pods=[
                api_pb2.ResctrlPod(
                    uid="u",
                    namespace="jobs",
                    name="spark",
                    group="BE",
                    counters=[
                        api_pb2.ResctrlCounter(name="llc_occupancy", value=4096),
                        api_pb2.ResctrlCounter(name="mbm_total_bytes", problem="Unavailable"),
                        api_pb2.ResctrlCounter(name="mbm_local_bytes", problem=away),
                    ],
                )
            ],
        )
    )


def test_where_nothing_is_mounted(tmp_path: Path) -> None:
    groups = ResctrlGroups(tmp_path)
    assert resctrl_of(groups, None, {}) == resctrl_of(None, None, {}) == api_pb2.GetResctrlResponse()
