"""What is compared of a kubelet's errors with the guard and without."""

from __future__ import annotations

from collections import Counter

from tests.lab.guarded_kubelet import Report, errors

LOG = """\
I1128 14:11:55.620409    3486 server.go:1336] "Started kubelet"
E1128 14:11:55.827021    3486 status.go:721] "No status" err="no routes in \\"/proc/net/route\\"" n="a"
E1128 14:12:56.488800   13486 status.go:722] "No status" err="no routes in \\"/proc/net/ipv6\\"" n="b"
E1128 14:12:56.499385    3486 remote.go:12] "Stop failed" err=<
\trpc error: container 0123456789ab of
\t7 pods
 > pod="default/web-7"
E1128 14:12:56.500000    3486 cri.go:1] "Failed" err="partial: [\\"/a/1\\": no data], [\\"/a/2\\": no data]"
W1128 14:12:57.000000    3486 watcher.go:93] "No status" err="only a warning"
E1128 14:12:57.000000    3486 klog.go:1] Nothing structured about /var/lib/kubelet 12
"""


def test_errors_of_a_log() -> None:
    assert errors(LOG) == {
        "No status: no routes in *": 2,
        "Stop failed: rpc error: container * of * pods": 1,
        "Failed: partial: [*: no data]": 1,
        "Nothing structured about * *": 1,
    }
    assert errors("") == {}


def report(bounded: int, idle: int, *found: str) -> Report:
    return Report(100, 21, bounded, idle, Counter(found))


def test_faults() -> None:
    direct = report(0, 0, "usual", "usual")
    assert report(3, 20, "usual").faults(direct) == []
    assert report(3, 20, "usual", "new").faults(direct) == ["only with the guard: new"]
    assert report(3, 20, "Stop: rpc error: code = Canceled desc = context canceled").faults(direct) == []
    assert report(3, 20, "Failed: containerd task is in unknown state").faults(direct) == []
    removed = "rpc error: code = NotFound desc = get container info: container * in namespace *: not found"
    assert report(3, 20, f"Failed to remove container: {removed}").faults(direct) == []
    assert report(0, 19).faults(direct) == [
        "19 of 21 starts were beside idle pods",
        "no start was beside a bounded class",
    ]


def test_lines() -> None:
    assert report(3, 20, "usual", "new").lines(report(0, 0, "usual", "usual")) == [
        "100 pods, 21 starts of the kubelet: 20 beside idle pods, 3 beside a bounded class",
        "1 (without the guard 0) x new",
        "1 (without the guard 2) x usual",
    ]
