"""Block I/O. Cases Vnnn are those of Koordinator's blkio_reconcile_test.go (CONTRIBUTING.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from policies.block_io import (
    COST_MODEL,
    COST_QOS,
    LIMITS,
    MOST_BLOCKS,
    MOST_PROBLEMS,
    WEIGHT,
    BlockIO,
    cost_settings,
    disks_of,
    io_settings,
)
from runtimeproxy.cgroups.paths import ROOT_CGROUP
from runtimeproxy.hooks import ContainerView, PodView
from runtimeproxy.hooks.decision import Unmet, unmet_on
from runtimeproxy.hooks.loaded import bind
from runtimeproxy.node.block_devices import BlockDevices
from runtimeproxy.node.facts import NodeFacts
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.names import BLKIO_QOS
from runtimeproxy.slo.schema import BlkioQoS, Block, BlockType, ClassQoS, IoCfg, QoSStrategy
from runtimeproxy.slo.strategies import Strategies

READ_BPS, WRITE_BPS, READ_IOPS, WRITE_IOPS = LIMITS
UID = "u1"
DEVICES = BlockDevices(
    disks={"sda": "8:0", "sda1": "8:0", "vdb": "253:16", "mapper/x": "252:0"},
    volume_groups={"yoda-pool0": ("8:0", "253:16")},
    pod_volumes={(UID, "pvc-1"): ("253:16",), (UID, "nfs"): (), ("u2", "pvc-2"): ("8:0",)},
)
FEATURES = frozenset({Feature.IO_LIMITS, Feature.IO_WEIGHT, Feature.IO_COST})
ON_VDB = IoCfg(read_iops=1024, write_iops=1024, read_bps=1048576, write_bps=1048576, io_weight_percent=40)


def block(name: str, kind: BlockType | None = BlockType.DEVICE, **config: Any) -> Block:
    return Block(name=name, type=kind, io_cfg=IoCfg(**config))


def of(*blocks: Block, enable: bool = True) -> ClassQoS:
    return ClassQoS(blkio_qos=BlkioQoS(enable=enable, blocks=blocks))


def node(version: int = 2, features: frozenset[str] = FEATURES, **classes: Any) -> Node:
    return Node(
        facts=NodeFacts(controllers={"blkio" if version == 1 else "io": version}),
        features=features,
        block_devices=DEVICES,
        strategies=Strategies(qos=QoSStrategy(**classes)),
        states={Input.CGROUPS: InputState.KNOWN},
    )


def pod(blocks: object, qos: QoSClass = QoSClass.LS) -> PodView:
    text = blocks if isinstance(blocks, str) else json.dumps({"blocks": blocks})
    return PodView(name="web", uid=UID, qos=qos, annotations={BLKIO_QOS: text})


def named(name: str, kind: str = "device", **config: int) -> Mapping[str, object]:
    return {"name": name, "type": kind, "ioCfg": config}


@pytest.mark.parametrize(
    ("name", "kind", "uid", "disks"),
    [
        ("sda", BlockType.DEVICE, "", ("8:0",)),
        ("/dev/sda", BlockType.DEVICE, "", ("8:0",)),
        ("/dev/sda1", BlockType.DEVICE, UID, ("8:0",)),
        ("/dev/mapper/x", BlockType.DEVICE, "", ("252:0",)),
        ("yoda-pool0", BlockType.VOLUME_GROUP, "", ("8:0", "253:16")),
        ("pvc-1", BlockType.POD_VOLUME, UID, ("253:16",)),
        (
            f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~csi/pvc-1/mount",
            BlockType.POD_VOLUME,
            UID,
            ("253:16",),
        ),
    ],
)
def test_a_block_stands_for_disks(name: str, kind: BlockType, uid: str, disks: tuple[str, ...]) -> None:
    assert disks_of(block(name, kind), DEVICES, uid) == disks


@pytest.mark.parametrize(
    ("name", "kind", "uid", "reason"),
    [
        ("sdx", BlockType.DEVICE, "", "not on this node"),
        ("../../sda", BlockType.DEVICE, "", "not on this node"),
        ("", BlockType.DEVICE, "", "not on this node"),
        ("yoda-pool1", BlockType.VOLUME_GROUP, "", "not on this node"),
        ("sda", None, "", "has no type"),
        ("pvc-1", BlockType.POD_VOLUME, "", "only a pod's annotation"),
        ("pvc-2", BlockType.POD_VOLUME, UID, "not the name of a CSI volume that is mounted for the pod"),
        ("nfs", BlockType.POD_VOLUME, UID, "on no disk of this node"),
        ("/x/pods/u2/volumes/kubernetes.io~csi/pvc-2/mount", BlockType.POD_VOLUME, UID, "not the name"),
    ],
)
def test_a_block_that_is_not_found(name: str, kind: BlockType | None, uid: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        disks_of(block(name, kind), DEVICES, uid)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(IoCfg(), {}, id="nothing"),
        pytest.param(IoCfg(read_bps=0, write_iops=0), {}, id="no limit"),
        pytest.param(IoCfg(read_iops=2**40), {READ_IOPS: 2**32 - 2}, id="more than the kernel counts"),
        pytest.param(IoCfg(io_weight_percent=100), {WEIGHT: 100}, id="weight"),
        pytest.param(
            ON_VDB,
            {READ_BPS: 1048576, WRITE_BPS: 1048576, READ_IOPS: 1024, WRITE_IOPS: 1024, WEIGHT: 40},
            id="V233",
        ),
    ],
)
def test_limits_and_weight(config: IoCfg, expected: dict[str, int]) -> None:
    assert io_settings(config) == expected


MODEL: dict[str, Any] = {
    "model_read_bps": 1,
    "model_write_bps": 2,
    "model_read_seq_iops": 3,
    "model_write_rand_iops": 6,
}


@pytest.mark.parametrize(
    ("config", "qos", "model"),
    [
        (IoCfg(), "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000", "ctrl=auto"),
        (
            IoCfg(read_latency=1, write_latency=2, read_latency_percent=3, write_latency_percent=0, **MODEL),
            "enable=1 ctrl=user rpct=3 rlat=1 wpct=0 wlat=2",
            "ctrl=auto",
        ),
        (
            IoCfg(enable_user_model=True, **MODEL),
            "enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000",
            "ctrl=user model=linear rbps=1 rseqiops=3 wbps=2 wrandiops=6",
        ),
    ],
)
def test_cost_models(config: IoCfg, qos: str, model: str) -> None:
    assert cost_settings(config) == {COST_QOS: qos, COST_MODEL: model}


def test_the_class_of_best_effort_pods() -> None:
    """V233 as a whole."""
    change = BlockIO().qos_class(
        KubeQoSClass.BEST_EFFORT,
        (),
        node(be_class=of(Block(name="/dev/vdb", type=BlockType.DEVICE, io_cfg=ON_VDB))),
    )
    assert change is not None
    assert change.cgroup == {
        READ_BPS: "253:16 1048576",
        WRITE_BPS: "253:16 1048576",
        READ_IOPS: "253:16 1024",
        WRITE_IOPS: "253:16 1024",
        WEIGHT: "253:16 40",
    }
    assert change.reasons[WRITE_BPS] == "write bps limit of /dev/vdb (default) = 253:16 1048576"
    assert not change.problems


def test_a_class_without_blocks_or_switched_off_wants_nothing() -> None:
    for strategy in (of(), of(block("vdb", write_bps=5), enable=False), ClassQoS(), of(block("vdb"))):
        assert BlockIO().qos_class(KubeQoSClass.BEST_EFFORT, (), node(be_class=strategy)) is None
        assert BlockIO().node(node(cgroup_root=ClassQoS())) is None


def test_other_classes_are_reported_and_get_nothing() -> None:
    policy, given = BlockIO(), node(ls_class=of(block("sda", write_bps=5)), lsr_class=of(block("sda")))
    for qos, name in ((KubeQoSClass.BURSTABLE, "lsClass"), (KubeQoSClass.GUARANTEED, "lsrClass")):
        change = policy.qos_class(qos, (), given)
        assert change is not None
        assert not change.cgroup
        assert change.problems == (f"blkioQOS of {name} is not supported: only beClass and cgroupRoot",)
    assert policy.qos_class(KubeQoSClass.BURSTABLE, (), node()) is None


def test_one_block_that_is_not_found_stops_no_other() -> None:
    given = node(
        be_class=of(
            block("sdx", write_bps=1), block("sda", write_bps=2), block("pvc-1", BlockType.POD_VOLUME)
        )
    )
    change = BlockIO().qos_class(KubeQoSClass.BEST_EFFORT, (), given)
    assert change is not None
    assert change.cgroup == {WRITE_BPS: "8:0 2"}
    assert change.problems == (
        "block 'sdx' is not on this node; it is left out",
        "block 'pvc-1' is a volume of a pod, which only a pod's annotation can name; it is left out",
    )


def test_without_any_disk_what_was_wanted_of_others_goes() -> None:
    """A change with nothing but problems would keep it."""
    change = BlockIO().qos_class(KubeQoSClass.BEST_EFFORT, (), node(be_class=of(block("sdx", write_bps=1))))
    assert change is not None
    assert change.cgroup == dict.fromkeys((*LIMITS, WEIGHT), "")
    root = BlockIO().node(node(cgroup_root=of(block("sdx"))))
    assert root is not None
    assert root.cgroups == {ROOT_CGROUP: {COST_QOS: "", COST_MODEL: ""}}


def test_of_two_blocks_on_one_disk_the_later_counts() -> None:
    blocks = block("yoda-pool0", BlockType.VOLUME_GROUP, write_bps=1, read_bps=1), block("sda1", write_bps=2)
    change = BlockIO().qos_class(KubeQoSClass.BEST_EFFORT, (), node(be_class=of(*blocks)))
    assert change is not None
    assert change.cgroup == {WRITE_BPS: "8:0 2,253:16 1", READ_BPS: "253:16 1"}
    assert change.problems == ("block 'sda1' is on 8:0 as 'yoda-pool0' is, and counts in its place",)


def test_a_pod_by_its_annotation() -> None:
    change = BlockIO().pod(pod([named("pvc-1", "podvolume", writeBPS=7, ioWeightPercent=30)]), node())
    assert change is not None
    assert change.cgroup == {WRITE_BPS: "253:16 7", WEIGHT: "253:16 30"}
    assert "annotation koordinator.sh/blkioQOS" in str(change.reasons[WRITE_BPS])
    assert BlockIO().pod(PodView(uid=UID, qos=QoSClass.LS), node()) is None
    bad = BlockIO().pod(pod('{"blocks": [{"type": "tape"}]}'), node())
    assert bad is not None
    assert not bad.cgroup
    assert len(bad.problems) == 1


def test_pods_without_a_class_are_not_asked_about() -> None:
    assert BlockIO.selector.matches(pod([]))
    assert not BlockIO.selector.matches(pod([], QoSClass.NONE))


def test_what_the_kernel_lacks_is_left_out_and_said() -> None:
    config: dict[str, Any] = {"write_bps": 5, "io_weight_percent": 40}
    given = node(features=frozenset({Feature.IO_LIMITS}), be_class=of(block("sda", **config)))
    change = BlockIO().qos_class(KubeQoSClass.BEST_EFFORT, (), given)
    assert change is not None
    assert change.cgroup == {WRITE_BPS: "8:0 5"}
    assert BlockIO().node(node(features=frozenset(), cgroup_root=of(block("sda")))) is None
    states = dict.fromkeys((Input.CGROUPS, Input.STRATEGIES, Input.BLOCK_DEVICES), InputState.KNOWN)
    lacking = Node(features=frozenset({Feature.IO_LIMITS}), states=states)
    assert unmet_on(bind(BlockIO()), lacking) == Unmet(features=("io-cost", "io-weight"), is_off=False)


def test_containers_have_the_limits_on_version_1() -> None:
    """The kernel applies a limit there to the processes of the cgroup itself."""
    view = ContainerView(
        name="main", pod=pod([named("sda", writeBPS=9, readBPS=4, ioWeightPercent=7)], QoSClass.BE)
    )
    strategy = of(block("yoda-pool0", BlockType.VOLUME_GROUP, write_bps=5))
    change = BlockIO().container(view, node(version=1, be_class=strategy))
    assert change is not None
    assert change.cgroup == {WRITE_BPS: "8:0 5,253:16 5", READ_BPS: "8:0 4"}
    assert BlockIO().container(view, node(version=2, be_class=strategy)) is None
    other = ContainerView(name="main", pod=PodView(uid="u3", qos=QoSClass.LS))
    assert BlockIO().container(other, node(version=1, be_class=strategy)) is None


def test_the_root_cgroup() -> None:
    given = node(
        cgroup_root=of(block("sda", enable_user_model=True, model_read_bps=5), block("vdb", read_latency=9))
    )
    change = BlockIO().node(given)
    assert change is not None
    assert change.cgroups == {
        ROOT_CGROUP: {
            COST_QOS: "8:0 enable=1 ctrl=user rpct=95 rlat=3000 wpct=95 wlat=3000,"
            "253:16 enable=1 ctrl=user rpct=95 rlat=9 wpct=95 wlat=3000",
            COST_MODEL: "8:0 ctrl=user model=linear rbps=5,253:16 ctrl=auto",
        }
    }
    assert f"{ROOT_CGROUP}/{COST_QOS}" in change.reasons


def test_hostile_blocks_are_bounded() -> None:
    blocks = tuple(block(f"../../{number}\n\x1b" + "x" * 10_000, write_bps=1) for number in range(10_000))
    change = BlockIO().qos_class(KubeQoSClass.BEST_EFFORT, (), node(be_class=of(*blocks)))
    assert change is not None
    assert len(change.problems) == MOST_PROBLEMS
    assert max(map(len, change.problems)) < 1_000
    assert all(each.isprintable() for each in change.problems)
    assert change.problems[-1] == f"{MOST_BLOCKS + 1 - (MOST_PROBLEMS - 1)} more problems with its blocks"
    assert set(change.cgroup.values()) == {""}
