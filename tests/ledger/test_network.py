"""Network QoS with the kernel's own `tc` and nftables, in a network namespace."""

from __future__ import annotations

import errno
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtimeproxy.fields.network import (
    CLASS_FIELD,
    EGRESS_FIELD,
    INGRESS_FIELD,
    MOST_RECEIVED_BPS,
    NETWORK_QOS,
    OFF,
    NetworkShares,
    Share,
    pod_minor,
)
from runtimeproxy.ledger.kernel_settings import SAVED_SETTINGS, KernelSettings, SettingChange
from runtimeproxy.ledger.network import NetworkControl, PodNetworkState
from runtimeproxy.ledger.network_tools import NetworkTools, Output, Programs
from runtimeproxy.ledger.unapplied import UnappliedCause
from tests.lab.programs import debian_program, missing, run

LINK = "up0"
SHARES = NetworkShares(
    100_000_000,
    (Share(50_000_000, 100_000_000), Share(30_000_000, 80_000_000), Share(16_000_000, 40_000_000)),
    (0, 0, 40_000_000),
)
WANTED = str(SHARES)
OTHER = str(
    SHARES._replace(
        ingress_ceilings_bps=(0, 24_000_000, 0), egress=(*SHARES.egress[:2], Share(8_000_000, 24_000_000))
    )
)
CHANGED_CLASS = "tc class change dev up0 parent 4b52:1 classid 4b52:40 htb rate 1mbit ceil 2mbit"
FOREIGN = "table inet others { map class4 { type ipv4_addr : classid ; elements = { 10.9.9.9 : 1:2 } ; } ; }"


pytestmark = [pytest.mark.slow, pytest.mark.debian]


@dataclass
class Node:
    """A network namespace with one link, and what runs programs in it."""

    name: str
    calls: list[str] = field(default_factory=list)
    fails: str = ""
    """A part of commands that fail."""

    def run(self, *words: str) -> str:
        ended = run(["ip", "netns", "exec", self.name, *words])
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def run_tool(self, arguments: Sequence[str], commands: str) -> Output:
        if commands:
            self.calls.append(f"{Path(arguments[0]).name}: {commands}")
        if self.fails and self.fails in commands:
            commands = commands.replace(self.fails, "99:99")
        return Programs().run(("/usr/sbin/ip", "netns", "exec", self.name, *arguments), commands)

    def control(self, link: str = LINK, tunnels: Sequence[str] = ()) -> NetworkControl:
        return NetworkControl(NetworkTools(self.run_tool), link, tunnels, cgroup_root=Path("/nowhere"))

    def qdisc(self) -> str:
        # The kernel sends packets of its own, which HTB counts.
        shown = self.run("tc", "-j", "qdisc", "show", "dev", LINK)
        return re.sub(r'"direct_packets_stat":\d+', "", shown)

    def classes(self) -> set[str]:
        lines = self.run("tc", "class", "show", "dev", LINK).splitlines()
        return {line.split()[2] for line in lines}

    def table(self) -> str:
        return self.run("nft", "list", "ruleset")


@pytest.fixture
def node() -> Iterator[Node]:
    for name in ("ip", "tc", "nft"):
        debian_program(name)
    name = f"nqos-{uuid.uuid4().hex[:8]}"
    if run(["ip", "netns", "add", name]).returncode:
        missing("network namespaces need root")
    try:
        made = Node(name)
        made.run("ip", "link", "add", LINK, "type", "veth", "peer", "name", "peer0")
        made.run("ip", "link", "set", LINK, "up")
        made.run("ip", "link", "set", "peer0", "up")
        made.run("nft", FOREIGN)
        if run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "peer0", "root", "htb"]).returncode:
            pytest.skip("this kernel has no HTB")
        yield made
    finally:
        run(["ip", "netns", "del", name])


def pod(number: int, *addresses: str, cgroup: str = "") -> PodNetworkState:
    name = cgroup or f"pod{number}"
    return PodNetworkState(
        f"box{number}", f"u{number}", f"x/{number}", ("kubepods", name), addresses or None, False
    )


def ask(control: NetworkControl, number: int, qos: str, egress: int = 0, ingress: int = 0) -> None:
    control.write_pod(CLASS_FIELD, f"pod{number}", qos)
    control.write_pod(EGRESS_FIELD, f"pod{number}", str(egress))
    control.write_pod(INGRESS_FIELD, f"pod{number}", str(ingress))


OURS = {"4b52:1", "4b52:20", "4b52:2", "4b52:30", "4b52:3", "4b52:40", "4b52:4"}


def test_the_link_gets_its_classes_and_gives_all_back(node: Node) -> None:
    before, table = node.qdisc(), node.table()
    control = node.control()
    assert control.read(WANTED) == OFF
    control.write(WANTED)
    assert control.read(WANTED) == WANTED
    assert node.classes() == OURS
    assert len(node.calls) == 2
    control.write(OFF)
    assert control.read(WANTED) == OFF
    assert (node.qdisc(), node.table()) == (before, table)


def test_other_shares_change_classes_in_place(node: Node) -> None:
    control = node.control()
    control.write(WANTED)
    assert control.read(OTHER) == "class 4b52:40 of up0 is another one"
    node.calls.clear()
    control.write(OTHER)
    (call,) = node.calls
    assert "qdisc" not in call
    assert call.count("class replace") == 2
    assert control.read(OTHER) == OTHER


@pytest.mark.parametrize("kind", ["pfifo", "htb"])
def test_a_foreign_root_is_never_replaced(node: Node, kind: str) -> None:
    node.run("tc", "qdisc", "add", "dev", LINK, "root", "handle", "1:", kind)
    before, table = node.qdisc(), node.table()
    control = node.control()
    with pytest.raises(OSError, match=f"up0 is {kind} 1:, neither the kernel's default nor ours"):
        control.write(WANTED)
    ask(control, 1, "BE")
    control.sync([pod(1, "10.0.0.1")])
    assert control.left_out["box1"].startswith("network QoS is not in force: the root queueing discipline")
    assert (node.qdisc(), node.table()) == (before, table)


def test_who_replaces_our_root_keeps_it(node: Node) -> None:
    control = node.control()
    control.write(WANTED)
    node.run("tc", "qdisc", "replace", "dev", LINK, "root", "handle", "7:", "pfifo")
    assert control.read(WANTED) == "the root queueing discipline of up0 is pfifo 7:, ours is on none"
    with pytest.raises(OSError, match="pfifo 7:"):
        control.write(WANTED)
    assert control.read(WANTED) == OFF
    assert "koord" not in node.table()
    node.run("tc", "qdisc", "del", "dev", LINK, "root")
    control.write(WANTED)
    assert control.read(WANTED) == WANTED


def test_pods_come_change_and_go(node: Node) -> None:
    control = node.control()
    control.write(WANTED)
    ask(control, 1, "BE", egress=8_000_000, ingress=4_000_000)
    ask(control, 2, "LS")
    pods = [pod(1, "10.0.0.1", "fd00::1"), pod(2, "10.0.0.2"), pod(3, "10.0.0.3")]
    node.calls.clear()
    assert not control.sync(pods)
    assert [call[:4] for call in node.calls] == ["tc: ", "nft:"]
    assert control.left_out == {}
    assert control.pods == 2
    own = f"4b52:{pod_minor('u1'):x}"
    assert node.classes() == OURS | {own}
    table = node.table()
    for text in (f"fd00::1 : {own}", "10.0.0.2 : 4b52:3", '10.0.0.1 : "pod_u1_500000"', '"class_be_5000000"'):
        assert text in table
    assert "10.0.0.3" not in table
    node.calls.clear()
    assert not control.sync(pods)
    assert not control.sync(pods, is_check=True)
    assert node.calls == []
    ask(control, 1, "BE", ingress=8_000_000)
    assert not control.sync(pods)
    assert [call[:4] for call in node.calls] == ["nft:", "tc: "]  # the class goes when nothing points to it
    assert node.classes() == OURS
    assert "pod_u1_500000" not in node.table()
    assert not control.sync([])
    assert "10.0.0." not in node.table()
    assert "limit pod" not in node.table()


def test_an_address_belongs_to_the_pod_that_runs(node: Node) -> None:
    control = node.control()
    control.write(WANTED)
    ask(control, 1, "BE")
    ask(control, 2, "LS")
    control.sync([pod(1, "10.0.0.1")])
    control.sync([pod(2, "10.0.0.1")])
    assert "10.0.0.1 : 4b52:3" in node.table()


def test_new_classes_come_before_old_ones_go(node: Node) -> None:
    control = node.control()
    control.write(WANTED)
    ask(control, 1, "BE", egress=8_000_000)
    ask(control, 2, "BE", egress=8_000_000)
    control.sync([pod(1, "10.0.0.1")])
    node.calls.clear()
    assert control.sync([pod(2, "10.0.0.2")])
    assert not control.sync([pod(2, "10.0.0.2")])
    assert [call[:4] for call in node.calls] == ["tc: ", "nft:", "tc: "]
    assert node.classes() == OURS | {f"4b52:{pod_minor('u2'):x}"}


def test_a_process_after_this_one_adopts_all(node: Node) -> None:
    pods = [pod(1, "10.0.0.1", "fd00::1"), pod(2, "10.0.0.2")]
    for is_first in (True, False):
        control = node.control()
        ask(control, 1, "BE", egress=8_000_000, ingress=4_000_000)
        ask(control, 2, "LS")
        if is_first:
            control.write(WANTED)
        assert control.read(WANTED) == WANTED
        assert not control.sync(pods)
        assert control.left_out == {}
        if is_first:
            node.calls.clear()
    assert node.calls == []


def test_what_a_process_before_this_one_left_is_removed(node: Node) -> None:
    control = node.control()
    control.write(WANTED)
    ask(control, 1, "BE", egress=8_000_000)
    control.sync([pod(1, "10.0.0.1")])
    after = node.control()
    assert after.read(WANTED) == WANTED
    after.sync([])
    assert node.classes() == OURS
    assert "10.0.0.1" not in node.table()


@pytest.mark.parametrize(
    ("others", "present"),
    [
        pytest.param(
            "nft delete table inet koord_network_qos",
            "table koord_network_qos of nftables is gone",
            id="table",
        ),
        pytest.param(
            "tc qdisc del dev up0 root",
            "the root queueing discipline of up0 is noqueue 0:, ours is on none",
            id="root",
        ),
        pytest.param(
            CHANGED_CLASS,
            "class 4b52:40 of up0 is another one",
            id="class",
        ),
        pytest.param(
            "nft flush chain inet koord_network_qos egress",
            "table koord_network_qos of nftables is another one",
            id="rules",
        ),
        pytest.param(
            'nft add rule inet koord_network_qos ingress drop comment "x"',
            "table koord_network_qos of nftables is another one",
            id="added rule",
        ),
    ],
)
def test_what_others_change_is_seen_and_repaired(node: Node, others: str, present: str) -> None:
    control = node.control()
    control.write(WANTED)
    ask(control, 1, "BE", egress=8_000_000)
    control.sync([pod(1, "10.0.0.1")])
    node.run(*others.split())
    assert control.read(WANTED) == present
    control.write(WANTED)
    assert control.read(WANTED) == WANTED
    control.sync([pod(1, "10.0.0.1")])
    assert node.classes() == OURS | {f"4b52:{pod_minor('u1'):x}"}
    assert "10.0.0.1" in node.table()


def test_pods_that_others_take_out_are_put_back_and_then_left(node: Node) -> None:
    control = node.control()
    control.write(WANTED)
    ask(control, 1, "BE")
    pods = [pod(1, "10.0.0.1")]
    control.sync(pods)
    for _ in range(2):
        node.run("nft", "delete element inet koord_network_qos class4 { 10.0.0.1 }")
        control.sync(pods, is_check=True)
        assert "10.0.0.1 : 4b52:4" in node.table()
    node.run("nft", "delete element inet koord_network_qos class4 { 10.0.0.1 }")
    control.sync(pods, is_check=True)
    assert "10.0.0.1 : 4b52:4" not in node.table()
    assert control.problem.startswith("another program keeps changing")


def test_a_failure_in_the_middle_takes_the_root_away_again(node: Node) -> None:
    before = node.qdisc()
    control = node.control()
    node.fails = "classid 4b52:40"
    with pytest.raises(OSError, match="tc: "):
        control.write(WANTED)
    assert node.qdisc() == before
    node.fails = ""
    control.write(WANTED)
    assert control.read(WANTED) == WANTED


def test_a_failure_of_a_pods_class_is_said_and_tried_again(node: Node) -> None:
    control = node.control()
    control.write(WANTED)
    ask(control, 1, "BE", egress=8_000_000)
    node.fails = f"classid 4b52:{pod_minor('u1'):x}"
    control.sync([pod(1, "10.0.0.1")])
    assert control.left_out["box1"].startswith("tc: ")
    assert "10.0.0.1" not in node.table()
    node.fails = ""
    control.sync([pod(1, "10.0.0.1")])
    assert control.left_out == {}
    assert control.tools.runs.read()["tc", "failed"] == 1


def test_the_link_of_the_default_route(node: Node, tmp_path: Path) -> None:
    routes = tmp_path / "net"
    routes.mkdir()
    control = NetworkControl(NetworkTools(node.run_tool), routes=routes)
    with pytest.raises(OSError, match="no default route"):
        control.write(WANTED)
    line = "{}\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    (routes / "route").write_text("Iface\n" + line.format(LINK))
    control.write(WANTED)
    assert control.read(WANTED) == WANTED
    (routes / "route").write_text("Iface\n" + line.format(LINK) + line.format("peer0"))
    assert control.read(WANTED).endswith("through peer0, up0: network.link has to name one")
    with pytest.raises(OSError, match=r"peer0, up0: network\.link has to name one"):
        control.write(WANTED)
    assert control.read(WANTED) != OFF
    # It has moved: what was on the other link is taken away.
    node.run("tc", "qdisc", "del", "dev", "peer0", "root")
    (routes / "route").write_text("Iface\n" + line.format("peer0"))
    before = '[{"kind":"noqueue","handle":"0:","root":true'
    control.write(WANTED)
    assert node.qdisc().startswith(before)
    assert control.read(WANTED) == WANTED


def test_a_link_that_is_not_there_is_said(node: Node) -> None:
    with pytest.raises(OSError, match="the node has no link eth9") as caught:
        node.control("eth9").write(WANTED)
    assert caught.value.errno == errno.ENODEV


def test_a_pod_with_an_address_of_the_node_is_left_out(node: Node) -> None:
    node.run("ip", "address", "add", "10.0.0.1/24", "dev", LINK)
    control = node.control()
    control.write(WANTED)
    ask(control, 1, "BE")
    ask(control, 2, "LS")
    control.sync([pod(1, "10.0.0.1"), pod(2, "10.0.0.2")])
    assert control.left_out == {"box1": "its address 10.0.0.1 is one of the node"}
    assert "10.0.0.1 :" not in node.table()
    node.run("ip", "address", "del", "10.0.0.1/24", "dev", LINK)
    control.sync([pod(1, "10.0.0.1"), pod(2, "10.0.0.2")], is_check=True)
    assert control.left_out == {}


@pytest.mark.parametrize("limit_bps", [8, MOST_RECEIVED_BPS, 2**63 - 1])
def test_no_limit_of_a_pod_costs_others_theirs(node: Node, limit_bps: int) -> None:
    control = node.control()
    control.write(WANTED)
    ask(control, 1, "BE", egress=limit_bps, ingress=limit_bps)
    ask(control, 2, "LS")
    control.sync([pod(1, "10.0.0.1"), pod(2, "10.0.0.2")])
    assert (control.left_out, control.problem) == ({}, "")
    assert "10.0.0.2 : 4b52:3" in node.table()


def test_a_rule_that_the_kernel_lacks_costs_no_other_pod_anything(node: Node, tmp_path: Path) -> None:
    """`socket cgroupv2` came with Linux 5.13."""
    (tmp_path / "kubepods" / "pod1").mkdir(parents=True)
    control = NetworkControl(NetworkTools(node.run_tool), LINK, cgroup_root=tmp_path)
    control.write(WANTED)
    ask(control, 1, "BE")
    ask(control, 2, "LS")
    node.fails = "socket cgroupv2"
    pods = [pod(1)._replace(is_host_network=True, addresses=()), pod(2, "10.0.0.2")]
    control.sync(pods)
    assert list(control.left_out) == ["box1"]
    assert control.left_out["box1"].startswith("nftables does not take its rule: nft: ")
    assert "10.0.0.2 : 4b52:3" in node.table()
    assert not control.has_failed


def test_other_links_to_receive_on_are_other_rules(node: Node) -> None:
    node.control().write(WANTED)
    control = node.control(tunnels=("flannel.1",))
    assert control.read(WANTED) == "table koord_network_qos of nftables is another one"
    control.write(WANTED)
    assert '{ "flannel.1", "up0" }' in node.table() or '{ "up0", "flannel.1" }' in node.table()


def settings(node: Node, folder: Path) -> KernelSettings:
    return KernelSettings(folder, "boot", folder, sysfs=folder, network=node.control())


def test_the_kernel_setting_is_adopted_and_given_back(node: Node, tmp_path: Path) -> None:
    """Also by another process, such as `restore`, and after the state was lost."""
    before, table = node.qdisc(), node.table()
    assert settings(node, tmp_path / "a").apply({NETWORK_QOS: WANTED}) == (
        SettingChange(NETWORK_QOS, OFF, WANTED),
    )
    assert settings(node, tmp_path / "a").apply({NETWORK_QOS: WANTED}) == ()
    lost = settings(node, tmp_path / "b")
    assert lost.apply({NETWORK_QOS: WANTED}) == ()
    assert lost.planned() == (SettingChange(NETWORK_QOS, WANTED, OFF),)
    assert settings(node, tmp_path / "b").apply({}) == (SettingChange(NETWORK_QOS, WANTED, OFF),)
    assert (node.qdisc(), node.table()) == (before, table)


@pytest.mark.parametrize("key", ["original", "written", None], ids=str)
def test_whatever_the_state_says_all_of_ours_is_given_back(
    node: Node, tmp_path: Path, key: str | None
) -> None:
    """Also when it is lost, and nothing is wanted any more: the limits of pods would stay for ever."""
    before, table = node.qdisc(), node.table()
    settings(node, tmp_path).apply({NETWORK_QOS: WANTED})
    file = tmp_path / SAVED_SETTINGS
    if key is None:
        file.unlink()
    else:
        document = json.loads(file.read_text())
        document["kernel_settings"][NETWORK_QOS][key] = "x"
        file.write_text(json.dumps(document))
    (planned,) = settings(node, tmp_path).planned()
    assert (planned.name, planned.new, planned.error) == (NETWORK_QOS, OFF, "")
    left = settings(node, tmp_path)
    (change,) = left.apply({})
    assert (change.name, change.new, change.error) == (NETWORK_QOS, OFF, "")
    assert left.apply({}) == ()
    assert (node.qdisc(), node.table()) == (before, table)


def test_what_others_have_changed_of_ours_goes_all_the_same(node: Node, tmp_path: Path) -> None:
    before, table = node.qdisc(), node.table()
    settings(node, tmp_path).apply({NETWORK_QOS: WANTED})
    node.run(*CHANGED_CLASS.split())
    (change,) = settings(node, tmp_path).apply({})
    assert (change.new, change.error) == (OFF, "")
    assert (node.qdisc(), node.table()) == (before, table)


def test_a_foreign_root_is_a_value_that_waits(node: Node, tmp_path: Path) -> None:
    node.run("tc", "qdisc", "add", "dev", LINK, "root", "handle", "1:", "pfifo")
    found = settings(node, tmp_path)
    (change,) = found.apply({NETWORK_QOS: WANTED})
    assert "neither the kernel's default nor ours" in change.error
    assert found.unapplied[NETWORK_QOS].cause is UnappliedCause.REFUSED
    assert found.problems == (f"kernel setting {NETWORK_QOS} cannot be set to {WANTED}: {change.error}",)
    node.run("tc", "qdisc", "del", "dev", LINK, "root")
    assert [each.error for each in found.verify()] == [""]
    assert found.unapplied == {}


def test_other_settings_are_set_before_programs_run(tmp_path: Path) -> None:
    """One that hangs keeps no sysctl waiting."""
    file = tmp_path / "kernel" / "sched_core"
    file.parent.mkdir()
    file.write_text("0\n")
    seen: list[str] = []

    def hang(*_: object) -> Output:
        seen.append(file.read_text())
        raise TimeoutError(errno.ETIMEDOUT, "tc has not ended")

    debian_program("tc")
    control = NetworkControl(NetworkTools(hang), LINK)
    found = KernelSettings(tmp_path, "boot", tmp_path, sysfs=tmp_path, network=control)
    changes = found.apply({NETWORK_QOS: WANTED, "kernel.sched_core": 1})
    assert [each.error for each in changes] == ["", "tc has not ended"]
    assert seen == ["1\n"]


def test_a_node_whose_network_is_not_managed_says_so(tmp_path: Path) -> None:
    found = KernelSettings(tmp_path, "boot", tmp_path, sysfs=tmp_path)
    assert found.apply({NETWORK_QOS: WANTED}) == ()
    assert found.unapplied[NETWORK_QOS].cause is UnappliedCause.NO_FILE
    assert found.apply({NETWORK_QOS: OFF}) == ()
    assert found.unapplied == {}


@pytest.mark.parametrize(
    ("output", "number", "text"),
    [
        (Output("", "RTNETLINK answers: Operation not permitted\n", 2), errno.EPERM, "60-network.conf"),
        (Output("", "Cannot find device\n", 1), errno.ENODEV, "tc: Cannot find device"),
        (Output("", "Warning: quantum\nError: x.\n", 1), errno.EINVAL, "tc: Error: x."),
        (Output("", "", 7), errno.EINVAL, "it ended with 7"),
        (Output("no JSON", "", 0), errno.EBADMSG, "tc prints no JSON"),
    ],
)
def test_errors_of_the_programs(output: Output, number: int, text: str) -> None:
    debian_program("tc")
    with pytest.raises(OSError, match=text.replace(".", r"\.")) as caught:
        NetworkTools(lambda *_: output).qdiscs()
    assert caught.value.errno == number


def test_pods_that_never_start_are_forgotten() -> None:
    control = NetworkControl(NetworkTools(lambda *_: Output("[]", "", 0)))
    ask(control, 1, "BE")
    for _ in range(2):
        assert control.read_pod(CLASS_FIELD, "pod1") == "BE"
        control.sync([], is_check=True)
    assert control.read_pod(CLASS_FIELD, "pod1") == "none"
    assert json.loads(control.read_pod(EGRESS_FIELD, "pod1")) == 0
