"""Block I/O: limits and weights of disks for BE pods and for single pods, and the disks' cost models.

By `blkioQOS` of the class BE and of `cgroupRoot` in `resource-qos-config`, and by the annotation
`koordinator.sh/blkioQOS` of a pod (source: Koordinator pkg/koordlet/qosmanager/plugins/blkio/
blkio_reconcile.go):

- limits of bytes and operations a second, and a weight, of the directory of BE pods and of a pod's cgroup;
- for the root cgroup the latencies that the kernel keeps (`io.cost.qos`), and the cost model by which weights
  are shares of a disk (`io.cost.model`). Without them a weight has no effect, and the kernel refuses it.

Blocks name a device, a volume group of LVM, or a CSI volume of the pod; all stand for the disks below, as the
kernel throttles whole disks. On cgroup version 1 the kernel applies a limit to the I/O of processes in the
cgroup itself, and of none below: each container has the limits of its pod and class there, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from runtimeproxy.cgroups.paths import ROOT_CGROUP
from runtimeproxy.documents.reading import printable
from runtimeproxy.fields.devices import text_of
from runtimeproxy.fields.tables import FIELDS
from runtimeproxy.hooks import (
    CgroupChange,
    ContainerChange,
    ContainerView,
    NodeChange,
    PodChange,
    PodSelector,
    PodView,
    Policy,
    Reason,
    ResolvedPod,
)
from runtimeproxy.hooks.reasons import Part
from runtimeproxy.hooks.sources import strategy_source
from runtimeproxy.node.block_devices import BlockDevices
from runtimeproxy.node.snapshot import Feature, Input, InputState, Node
from runtimeproxy.qos import KubeQoSClass, QoSClass
from runtimeproxy.slo.names import BLKIO_QOS
from runtimeproxy.slo.schema import BlkioQoS, Block, BlockType, IoCfg

WEIGHT: Final = "blkio.cost.weight"
COST_QOS: Final = "blkio.cost.qos"
COST_MODEL: Final = "blkio.cost.model"
LIMITS: Final[Mapping[str, str]] = {
    "blkio.throttle.read_bps_device": "read_bps",
    "blkio.throttle.write_bps_device": "write_bps",
    "blkio.throttle.read_iops_device": "read_iops",
    "blkio.throttle.write_iops_device": "write_iops",
}
"""The attributes of `IoCfg` by parameter."""
_WHAT: Final = {
    **{name: f"{attribute.replace('_', ' ')} limit" for name, attribute in LIMITS.items()},
    WEIGHT: "I/O weight",
    COST_QOS: "latencies of the cost model",
    COST_MODEL: "cost model",
}
DEFAULT_LATENCY_US: Final = 3_000
DEFAULT_PERCENT: Final = 95
"""Source: DefaultIOLatency, DefaultLatencyPercent."""
_MODEL: Final = {
    "rbps": "model_read_bps",
    "rseqiops": "model_read_seq_iops",
    "rrandiops": "model_read_rand_iops",
    "wbps": "model_write_bps",
    "wseqiops": "model_write_seq_iops",
    "wrandiops": "model_write_rand_iops",
}
MOST_BLOCKS: Final = 64
"""Of one class or pod; others are left out. Each may stand for several disks."""
MOST_PROBLEMS: Final = 8
_MOST_NAME: Final = 128
_CLASSES: Final = frozenset(QoSClass) - {QoSClass.NONE}
_REASON: Final = "block I/O"

Values = Mapping[str, Mapping[str, int | str]]
"""By parameter, the setting of each disk."""


class Wanted(NamedTuple):
    """What blocks come to."""

    values: Values
    problems: tuple[str, ...]
    names: tuple[str, ...]
    """Of the blocks that were found."""


def disks_of(block: Block, devices: BlockDevices, uid: str = "") -> tuple[str, ...]:
    """Return the numbers of the disks that a block stands for.

    `uid`: of the pod that names it; empty for a class.

    Raises:
        ValueError: There is none; says why.
    """
    name, found = block.name.removeprefix("/dev/"), tuple[str, ...]()
    match block.type:
        case BlockType.DEVICE:
            found = tuple(devices.disks[each] for each in (name,) if each in devices.disks)
        case BlockType.VOLUME_GROUP:
            found = devices.volume_groups.get(name, ())
        case BlockType.POD_VOLUME if uid:
            begin, end = f"/pods/{uid}/volumes/kubernetes.io~csi/", "/mount"
            _, _, below = block.name.partition(begin)
            volume = below.removesuffix(end) if below else block.name
            if (uid, volume) not in devices.pod_volumes:
                raise ValueError("is not the name of a CSI volume that is mounted for the pod")
            found = devices.pod_volumes[uid, volume]
        case BlockType.POD_VOLUME:
            raise ValueError("is a volume of a pod, which only a pod's annotation can name")
        case _:
            raise ValueError("has no type: device, volumegroup or podvolume")
    if not found:
        raise ValueError(
            "is on no disk of this node" if block.type is BlockType.POD_VOLUME else "is not on this node"
        )
    return found


def io_settings(config: IoCfg) -> dict[str, int]:
    """Return the limits and the weight of a disk by parameter. Source: getBlkIOUpdaterFromBlockCfg.

    A limit of 0 is none; a number that is larger than the kernel's is its largest.
    """
    values: dict[str, int] = {}
    for name, attribute in LIMITS.items():
        if limit := getattr(config, attribute):
            values[name] = min(limit, FIELDS[name].maximum)
    if config.io_weight_percent is not None:
        values[WEIGHT] = config.io_weight_percent
    return values


def cost_settings(config: IoCfg) -> dict[str, str]:
    """Return latencies and model of a disk by parameter. Source: getDiskConfigUpdaterFromBlockCfg."""
    rlat = DEFAULT_LATENCY_US if config.read_latency is None else config.read_latency
    wlat = DEFAULT_LATENCY_US if config.write_latency is None else config.write_latency
    rpct = DEFAULT_PERCENT if config.read_latency_percent is None else config.read_latency_percent
    wpct = DEFAULT_PERCENT if config.write_latency_percent is None else config.write_latency_percent
    model = "ctrl=auto"
    if config.enable_user_model:
        given = {key: getattr(config, attribute) for key, attribute in _MODEL.items()}
        numbers = [f"{key}={number}" for key, number in given.items() if number is not None]
        model = " ".join(("ctrl=user model=linear", *numbers))
    return {
        COST_QOS: f"enable=1 ctrl=user rpct={rpct} rlat={rlat} wpct={wpct} wlat={wlat}",
        COST_MODEL: model,
    }


def wanted_of(
    blocks: Sequence[Block], devices: BlockDevices, *, uid: str = "", is_root: bool = False
) -> Wanted:
    """Return what blocks come to; one that is not found stops no other.

    Of two for one disk the later counts.
    """
    values: dict[str, dict[str, int | str]] = {}
    problems: list[str] = []
    owners: dict[str, str] = {}
    for block in blocks[:MOST_BLOCKS]:
        name = printable(block.name[:_MOST_NAME])
        try:
            disks = disks_of(block, devices, uid)
        except ValueError as error:
            problems.append(f"block {name!r} {error}; it is left out")
            continue
        for disk in disks:
            if owners.setdefault(disk, name) != name:
                problems.append(
                    f"block {name!r} is on {disk} as {owners[disk]!r} is, and counts in its place"
                )
                owners[disk] = name
                for each in values.values():
                    each.pop(disk, None)
            settings = cost_settings(block.io_cfg) if is_root else io_settings(block.io_cfg)
            for parameter, setting in settings.items():
                values.setdefault(parameter, {})[disk] = setting
    if len(blocks) > MOST_BLOCKS:
        problems.append(f"has {len(blocks)} blocks, of which the first {MOST_BLOCKS} count")
    if len(problems) > MOST_PROBLEMS:
        left = len(problems) - MOST_PROBLEMS + 1
        problems[MOST_PROBLEMS - 1 :] = [f"{left} more problems with its blocks"]
    return Wanted(values, tuple(problems), tuple(dict.fromkeys(owners.values())))


def smaller(one: Values, other: Values) -> dict[str, dict[str, int | str]]:
    """Return the limits of both; the smaller one where both have one."""
    found: dict[str, dict[str, int | str]] = {name: dict(each) for name, each in one.items()}
    for name, each in other.items():
        settings = found.setdefault(name, {})
        for disk, limit in each.items():
            settings[disk] = min(int(limit), int(settings.get(disk, limit)))
    return found


class BlockIO(Policy):
    """Sets limits and weights of disks for BE pods and single pods, and the disks' cost models."""

    name: ClassVar[str] = "block-io"
    selector: ClassVar[PodSelector] = PodSelector(qos_classes=_CLASSES)
    selector_without: ClassVar[Mapping[Input, PodSelector]] = {
        Input.STRATEGIES: PodSelector(qos_classes=_CLASSES, annotations=(BLKIO_QOS,))
    }
    inputs: ClassVar[frozenset[Input]] = frozenset({Input.STRATEGIES, Input.BLOCK_DEVICES})
    strategy_parts: ClassVar[frozenset[str]] = frozenset({"blkio_qos"})
    optional_features: ClassVar[frozenset[str]] = frozenset(
        {Feature.IO_LIMITS, Feature.IO_WEIGHT, Feature.IO_COST}
    )
    sets_fields: ClassVar[Mapping[str, frozenset[str]]] = {
        "pod": frozenset({*LIMITS, WEIGHT}),
        "container": frozenset(LIMITS),
        "qos_class": frozenset({*LIMITS, WEIGHT}),
        "node": frozenset({COST_QOS, COST_MODEL}),
    }
    priority: ClassVar[int] = 58
    is_default: ClassVar[bool] = False

    def pod(self, pod: PodView, node: Node) -> PodChange | None:
        """Return the limits and weights of the pod's own cgroup."""
        strategy = node.strategy_for(pod)
        problems = strategy.problems_of(BLKIO_QOS)
        if not strategy.blkio_qos.enable:
            return PodChange(problems=problems) if problems else None
        wanted = _of_pod(pod, node)
        values, reasons = _texts(wanted, (*LIMITS, WEIGHT), node, _source_of_pod(pod, node))
        problems += wanted.problems
        if not values and not problems:
            return None
        return PodChange(cgroup=values, problems=problems, reason=_REASON, reasons=reasons)

    def container(self, container: ContainerView, node: Node) -> ContainerChange | None:
        """Return the limits of the container, on cgroup version 1."""
        pod = container.pod
        if not _applies_to_cgroup_alone(node):
            return None
        own, of_class = _of_pod(pod, node), Wanted({}, (), ())
        if pod.qos is QoSClass.BE:
            of_class = _of_class(node.strategies.qos.be_class.blkio_qos, node)
        names = tuple(dict.fromkeys((*own.names, *of_class.names)))
        wanted = Wanted(smaller(own.values, of_class.values), (), names)
        values, reasons = _texts(wanted, LIMITS, node, ("(of pod and class, on cgroup version 1)",))
        return ContainerChange(cgroup=values, reason=_REASON, reasons=reasons) if values else None

    def qos_class(self, qos: KubeQoSClass, pods: Sequence[ResolvedPod], node: Node) -> CgroupChange | None:
        """Return the limits and weights of the directory of BE pods."""
        classes = node.strategies.qos
        if qos is not KubeQoSClass.BEST_EFFORT:
            name = "lsClass" if qos is KubeQoSClass.BURSTABLE else "lsrClass"
            strategy = classes.ls_class if qos is KubeQoSClass.BURSTABLE else classes.lsr_class
            if not strategy.blkio_qos.enable or not strategy.blkio_qos.blocks:
                return None
            # Nothing is ever wanted here: koordlet, too, does no more than warn.
            return CgroupChange(
                problems=(f"blkioQOS of {name} is not supported: only beClass and cgroupRoot",)
            )
        wanted = _of_class(classes.be_class.blkio_qos, node)
        source = _source_of_class("be_class", node)
        values, reasons = _texts(wanted, (*LIMITS, WEIGHT), node, source)
        if not values and not wanted.problems:
            return None
        return CgroupChange(cgroup=values, problems=wanted.problems, reason=_REASON, reasons=reasons)

    def node(self, node: Node) -> NodeChange | None:
        """Return the latencies and cost models of disks, which only the root cgroup has."""
        wanted = _of_class(node.strategies.qos.cgroup_root.blkio_qos, node, is_root=True)
        values, why = _texts(wanted, (COST_QOS, COST_MODEL), node, _source_of_class("cgroup_root", node))
        if not values and not wanted.problems:
            return None
        reasons = {f"{ROOT_CGROUP}/{name}": each for name, each in why.items()}
        cgroups = {ROOT_CGROUP: values} if values else {}
        return NodeChange(cgroups=cgroups, problems=wanted.problems, reason=_REASON, reasons=reasons)


def _of_pod(pod: PodView, node: Node) -> Wanted:
    """Return what the pod's annotation comes to."""
    strategy = node.strategy_for(pod).blkio_qos
    blocks = strategy.blocks if strategy.enable else ()
    return wanted_of(blocks, node.block_devices or BlockDevices(), uid=pod.uid)


def _of_class(strategy: BlkioQoS, node: Node, *, is_root: bool = False) -> Wanted:
    blocks = strategy.blocks if strategy.enable else ()
    return wanted_of(blocks, node.block_devices or BlockDevices(), is_root=is_root)


def _applies_to_cgroup_alone(node: Node) -> bool:
    """Return whether a limit does not apply to what is below the cgroup: on version 1.

    Source: Linux block/blk-throttle.c, throtl_pd_init.
    """
    return node.facts.controllers.get("blkio") == 1


def _source_of_pod(pod: PodView, node: Node) -> tuple[Part, ...]:
    provenance = node.strategy_for(pod).provenance
    return strategy_source(provenance, "blkio_qos.blocks", "blkio_qos.enable")


def _source_of_class(name: str, node: Node) -> tuple[Part, ...]:
    path = f"qos.{name}.blkio_qos"
    return strategy_source(node.strategies.provenance, f"{path}.blocks", f"{path}.enable")


def _texts(
    wanted: Wanted, names: Iterable[str], node: Node, source: tuple[Part, ...]
) -> tuple[dict[str, str], dict[str, Reason]]:
    """Return the values and reasons of the parameters that the kernel has."""
    is_known = node.state_of(Input.CGROUPS) is InputState.KNOWN
    here = [name for name in names if not is_known or FIELDS[name].feature in node.features]
    values = {name: text_of(_as_texts(wanted.values[name])) for name in here if wanted.values.get(name)}
    if wanted.problems and not values:
        # An answer with nothing but problems would leave what was wanted before, for other disks.
        values = dict.fromkeys(here, "")
    named = ", ".join(wanted.names[:3]) + (
        f" and {len(wanted.names) - 3} more" if len(wanted.names) > 3 else ""
    )
    reasons = {
        name: Reason(_WHAT[name], " of ", named or "no block", " ", *source, " = ", value or "none")
        for name, value in values.items()
    }
    return values, reasons


def _as_texts(settings: Mapping[str, int | str]) -> dict[str, str]:
    return {disk: str(setting) for disk, setting in settings.items()}
