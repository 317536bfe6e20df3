"""This node's objects, and the pods that are bound to it, as the API server has them.

Watches put objects in from their threads; the node's thread takes them with each pass. An API server that is
away changes nothing: only an object that is known to be deleted is withdrawn.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from runtimeproxy.documents.reading import (
    InputError,
    list_of,
    mapping_of,
    quantities_of,
    shortened,
    text_of,
    within,
)
from runtimeproxy.node.object_folder import MAX_NOTES, FolderObjects, first_of
from runtimeproxy.node.objects import (
    KATALYST_KINDS,
    ConfigMapObject,
    Kind,
    NodeObject,
    NodeSloObject,
    Object,
    ObjectsOfKind,
    Reader,
    Rejected,
    TopologyFacts,
    annotations_of,
)
from runtimeproxy.node.snapshot import EMPTY, LivePod
from runtimeproxy.slo.names import CONFIG_MAP

MAX_PODS: Final = 1024
"""Many times those of the largest node. Source: kubelet, maxPods, 110 by default."""
MAX_ANNOTATION_BYTES: Final = 16 * 1024 * 1024
"""For all pods together: some thousands, with the 2 KiB of a usual pod."""

SPREAD: Final = frozenset({Kind.CONFIG_MAP, Kind.NODE_SLO, Kind.NODE}) | KATALYST_KINDS
"""One command may change these on all nodes at once, so each node starts at a time of its own. The
NodeResourceTopology is published by this node's own koordlet."""

_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the object of a static pod: the uid that the kubelet and the runtime know the pod by.
Source: Kubernetes pkg/kubelet/types, ConfigMirrorAnnotationKey."""


class _Waiting(NamedTuple):
    """A change that has not started."""

    object: Object | None
    due_s: float


class ApiServerInputs:
    """Objects and pods as they were last known. Put in from any thread, read in one.

    A change that hits all nodes starts after a random time up to `start_spread_s`.
    """

    def __init__(
        self,
        name: str,
        start_spread_s: float = 0.0,
        draw: Callable[[], float] = random.random,
        *,
        kinds: Iterable[Kind] = frozenset(Kind) - KATALYST_KINDS,
    ) -> None:
        self._kinds = frozenset(kinds)
        """Those that are watched; of the others the server says nothing."""
        self.found = FolderObjects(unknown=self._kinds)
        self.pods: Mapping[str, LivePod] = EMPTY
        """By the uid that the runtime knows them by."""
        self.problems: tuple[str, ...] = ()
        self.wait_s: float | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called in any thread after something was put in."""
        self._name = name
        self._start_spread_s = start_spread_s
        self._draw = draw
        self._lock = threading.Lock()
        self._arrived: dict[Kind, Any] = {}
        """Documents that were not read yet; None: the object is gone."""
        self._arrived_pods: Mapping[str, LivePod] | None = None
        self.has_pods = False
        self._pod_problems: tuple[str, ...] = ()
        # The rest belongs to the node's thread.
        self._objects: dict[Kind, Object | None] = {}
        """The effective objects; None: known to be gone."""
        self._waiting: dict[Kind, _Waiting] = {}
        self._rejected: dict[Kind, str] = {}
        self._reader: Reader | None = None

    @property
    def waiting(self) -> tuple[Kind, ...]:
        return tuple(self._waiting)

    # From watches

    def put(self, kind: Kind, document: object) -> None:
        """Takes an object as it is now; None: there is none."""
        with self._lock:
            self._arrived[kind] = document
        self.on_change()

    def put_pods(self, pods: Mapping[str, LivePod], problems: Iterable[str] = ()) -> None:
        """Takes all pods as they are now, and why others cannot be used; `pods` must not change later."""
        with self._lock:
            self._arrived_pods = pods
            self._pod_problems = tuple(f"{self._name}: {text}" for text in islice(problems, MAX_NOTES))
        self.on_change()

    # In the node's thread

    def look(self, now_s: float, reader: Reader) -> None:
        """Takes what has arrived, and starts the changes that are due; another reader reads all again."""
        with self._lock:
            arrived, self._arrived = self._arrived, {}
            pods, self._arrived_pods = self._arrived_pods, None
        if reader != self._reader:
            self._reader = reader
            known = {kind: each.source for kind, each in self._objects.items() if each is not None}
            arrived = {**known, **arrived}
        has_changed = bool(arrived)
        for kind, document in arrived.items():
            self._take(kind, None if document is None else reader.read_object(document), now_s)
        for kind, waiting in list(self._waiting.items()):
            if waiting.due_s <= now_s:
                self._objects[kind] = waiting.object
                del self._waiting[kind]
                has_changed = True
        if pods is not None:
            self.pods, self.has_pods = pods, True
            has_changed = True
        if has_changed:
            self._publish()
        dues = [each.due_s - now_s for each in self._waiting.values()]
        self.wait_s = max(0.0, min(dues)) if dues else None

    def saved(self) -> dict[str, Any]:
        return {
            "objects": [each.source for each in self._objects.values() if each is not None],
            "pods": [_saved(pod) for pod in self.pods.values()],
        }

    def restore(self, saved: Mapping[str, Any], reader: Reader) -> None:
        """Sets what `saved` gave in a former process; what of it is not usable now is left out."""
        self._reader = reader
        for document in saved["objects"]:
            found = reader.read_object(document)
            if isinstance(found, Object):
                self._objects[found.kind] = found
        self.pods = {each["uid"]: LivePod(**each) for each in saved["pods"]}
        self.has_pods = bool(self.pods)
        self._publish()

    def _take(self, kind: Kind, found: object, now_s: float) -> None:
        self._rejected.pop(kind, None)
        if isinstance(found, Rejected):
            kept = "; what was there before stays" if self._objects.get(kind) is not None else ""
            self._rejected[kind] = f"{self._name}: {kind}: {found.reason}{kept}"
            return
        if found is not None and (not isinstance(found, Object) or found.kind is not kind):
            return  # of another node: the server has not heeded the field selector
        is_first, old = kind not in self._objects, self._objects.get(kind)
        is_same = found is old if found is None or old is None else found.value == old.value
        if is_first or is_same or kind not in SPREAD or self._start_spread_s == 0:
            # If it is as it was, a change that waits has been taken back.
            self._objects[kind] = found
            self._waiting.pop(kind, None)
            return
        waiting = self._waiting.get(kind)
        due_s = waiting.due_s if waiting is not None else now_s + self._draw() * self._start_spread_s
        self._waiting[kind] = _Waiting(found, due_s)

    def _publish(self) -> None:
        values = [each.value for each in self._objects.values() if each is not None]
        config, slo = first_of(ConfigMapObject, values), first_of(NodeSloObject, values)
        self.found = FolderObjects(
            node=first_of(NodeObject, values),
            topology=first_of(TopologyFacts, values),
            targets=self._all_of(Kind.TARGET),
            custom_configs=self._all_of(Kind.CUSTOM_CONFIG),
            unknown=self._kinds - self._objects.keys(),
        )
        if config is not None or slo is not None:
            # Only where there is an object, as the import takes time and memory.
            from runtimeproxy.slo.loading import NodeSlo, Text

            place, data = f"{self._name}: {CONFIG_MAP}", config.data if config is not None else {}
            self.found = self.found._replace(
                config={key: Text(place, text) for key, text in data.items()},
                node_slo=NodeSlo(f"{self._name}: NodeSLO", slo.spec) if slo is not None else None,
            )
        self.problems = (*self._rejected.values(), *self._pod_problems)

    def _all_of(self, kind: Kind) -> tuple[Any, ...]:
        each = self._objects.get(kind)
        values = each.value.values if each is not None and isinstance(each.value, ObjectsOfKind) else ()
        return tuple(
            value._replace(file=self._name) for value in sorted(values, key=lambda value: value.name)
        )


def _saved(pod: LivePod) -> dict[str, object]:
    # What is ready is so at this moment only.
    return {name: value for name, value in pod._asdict().items() if name != "ready"}


_FIELDS: Final = {
    Kind.TARGET: "targets",
    Kind.CUSTOM_CONFIG: "custom_configs",
    Kind.CONFIG_MAP: "config",
    Kind.NODE: "node",
    Kind.TOPOLOGY: "topology",
    Kind.NODE_SLO: "node_slo",
}


def joined(of_folder: FolderObjects, of_server: FolderObjects) -> tuple[FolderObjects, list[str]]:
    """The objects of the folder and the API server together, and notes."""
    found: dict[str, Any] = {}
    notes: list[str] = []
    unknown = of_folder.unknown | of_server.unknown
    for kind, name in _FIELDS.items():
        # What an operator has put on the node wins, each object as a whole.
        own, other = getattr(of_folder, name), getattr(of_server, name)
        found[name] = own or other
        if own and other:
            notes.append(f"{kind}: that in the folder is used (node.objects_dir), not the API server's")
        if found[name]:
            unknown -= {kind}
    return FolderObjects(**found, unknown=unknown), notes


class ObjectSink:
    """Takes the objects of one kind from a watch, of which only the one with this name is used."""

    def __init__(self, inputs: ApiServerInputs, kind: Kind, name: str) -> None:
        self._inputs = inputs
        self._kind = kind
        self._name = name

    def on_listed(self, objects: Iterable[Any]) -> None:
        # All of the list has to be read, and of two objects the last one wins.
        found = [each for each in objects if _name_of(each) == self._name]
        self._inputs.put(self._kind, self._named(found[-1] if found else None))

    def on_changed(self, document: Any) -> None:  # noqa: ANN401 - JSON
        if _name_of(document) == self._name:
            self._inputs.put(self._kind, self._named(document))

    def on_deleted(self, document: Any) -> None:  # noqa: ANN401 - JSON
        if _name_of(document) == self._name:
            self._inputs.put(self._kind, None)

    def _named(self, document: Any) -> Any:  # noqa: ANN401 - JSON
        # The items of a list have no kind.
        return None if document is None else {**document, "kind": self._kind.value}


class KatalystSink:
    """Takes the objects of one of `KATALYST_KINDS` from a watch: all of the cluster."""

    def __init__(self, inputs: ApiServerInputs, kind: Kind) -> None:
        self._inputs = inputs
        self._kind = kind
        self._items: dict[tuple[str, str], Any] = {}

    def on_listed(self, objects: Iterable[Any]) -> None:
        # All of the list has to be read before anything is taken over.
        self._items = {_full_name(each): each for each in objects}
        self._publish()

    def on_changed(self, document: Any) -> None:  # noqa: ANN401 - JSON
        self._items[_full_name(document)] = document
        self._publish()

    def on_deleted(self, document: Any) -> None:  # noqa: ANN401 - JSON
        self._items.pop(_full_name(document), None)
        self._publish()

    def _publish(self) -> None:
        self._inputs.put(self._kind, {"kind": f"{self._kind}List", "items": list(self._items.values())})


def _full_name(document: object) -> tuple[str, str]:
    metadata = _metadata_of(document)
    return str(metadata.get("namespace")), str(metadata.get("name"))


def _metadata_of(document: object) -> Mapping[str, Any]:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _name_of(document: object) -> object:
    return _metadata_of(document).get("name")


class PodSink:
    """Takes the pods of this node from a watch; those of other nodes are ignored."""

    def __init__(self, inputs: ApiServerInputs, node_name: str) -> None:
        self._inputs = inputs
        self._node_name = node_name
        self._pods: dict[str, LivePod] = {}
        self._annotation_bytes = 0
        self.problems: dict[str, str] = {}
        """Pods that cannot be used, by uid; the last of each."""

    def on_listed(self, objects: Iterable[Any]) -> None:
        # Another one, which is taken over only if all of the list can be read.
        new = PodSink(self._inputs, self._node_name)
        for each in objects:
            new._put(each, self._pods)
        self._pods, self._annotation_bytes, self.problems = new._pods, new._annotation_bytes, new.problems
        self._publish()

    def on_changed(self, document: Any) -> None:  # noqa: ANN401 - JSON
        self._put(document, self._pods)
        self._publish()

    def on_deleted(self, document: Any) -> None:  # noqa: ANN401 - JSON
        uid = runtime_uid(document)
        self.problems.pop(uid, None)
        self._set(uid, None)
        self._publish()

    def _publish(self) -> None:
        self._inputs.put_pods(dict(self._pods), self.problems.values())

    def _put(self, document: Any, before: Mapping[str, LivePod]) -> None:  # noqa: ANN401 - JSON
        uid = runtime_uid(document)
        self.problems.pop(uid, None)
        try:
            self._set(uid, read_pod(document, self._node_name))
        except InputError as error:
            if len(self.problems) < MAX_PODS:
                self.problems[uid] = f"pod {shortened(str(_name_of(document)))}: {error}"
            if uid in before and uid not in self._pods:
                self._set(uid, before[uid])

    def _set(self, uid: str, pod: LivePod | None) -> None:
        total = self._annotation_bytes - _annotation_bytes(self._pods.get(uid)) + _annotation_bytes(pod)
        if pod is None:
            self._pods.pop(uid, None)
        elif uid not in self._pods and len(self._pods) >= MAX_PODS:
            raise InputError(f"is one of more than {MAX_PODS} pods")
        elif total > MAX_ANNOTATION_BYTES:
            raise InputError(f"the pods have more than {MAX_ANNOTATION_BYTES} bytes of annotations")
        else:
            self._pods[uid] = pod
        self._annotation_bytes = total


def _annotation_bytes(pod: LivePod | None) -> int:
    return sum(len(key) + len(text) for key, text in pod.annotations.items()) if pod is not None else 0


def runtime_uid(document: object) -> str:
    """The uid that kubelet and runtime know a pod by; empty if it has none."""
    metadata = _metadata_of(document)
    annotations = metadata.get("annotations")
    mirror = annotations.get(_MIRROR) if isinstance(annotations, dict) else None
    uid = mirror if isinstance(mirror, str) and mirror else metadata.get("uid")
    return uid if isinstance(uid, str) else ""


def read_pod(document: object, node_name: str) -> LivePod | None:
    """Reads a pod; None if it is one of another node, or has ended. Raises InputError."""
    pod = mapping_of(document)
    with within("metadata"):
        metadata = mapping_of(pod.get("metadata"))
        uid = runtime_uid(pod)
        names = {}
        for key in ("name", "namespace"):
            with within(key):
                names[key] = text_of(metadata.get(key))
    if not uid or not names["name"]:
        raise InputError("has no name or uid", "metadata")
    annotations = annotations_of(metadata)
    with within("spec"):
        spec = mapping_of(pod.get("spec"))
        priority = spec.get("priority")
        if spec.get("nodeName") != node_name:
            return None
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise InputError("is not a whole number", "priority")
        requests = dict(_requests(spec))
    with within("status"):
        status = mapping_of(pod.get("status"))
        if status.get("phase") in ("Succeeded", "Failed"):
            return None
    return LivePod(
        uid=uid,
        namespace=names["namespace"],
        name=names["name"],
        priority=priority,
        annotations={sys.intern(key): text for key, text in annotations.items()},
        requests=requests,
        is_static=_MIRROR in annotations,
        ready=frozenset(_ready(spec, status)),
    )


def _ready(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[str]:
    """The ids of containers that their probes call ready; without a probe one is ready when it runs.

    What cannot be read is left out: it is about nothing else. Sidecars are init containers with probes.
    Source: Kubernetes staging/src/k8s.io/api/core/v1/types.go, ContainerStatus; its id is `RUNTIME://ID`.
    """
    probed = {
        each.get("name")
        for each in (*_mappings(spec.get("containers")), *_mappings(spec.get("initContainers")))
        if each.get("readinessProbe") or each.get("startupProbe")
    }
    for each in (
        *_mappings(status.get("containerStatuses")),
        *_mappings(status.get("initContainerStatuses")),
    ):
        identity = each.get("containerID")
        if each.get("ready") is True and each.get("name") in probed and isinstance(identity, str):
            yield identity.rpartition("//")[2]


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    yield from (each for each in (value if isinstance(value, list) else ()) if isinstance(each, dict))


def _requests(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, int]]]:
    # By container, those that run beside the others included, as the kubelet saves them.
    for key in ("initContainers", "containers"):
        with within(key):
            for index, each in enumerate(list_of(spec.get(key))):
                with within(f"[{index}]"):
                    container = mapping_of(each)
                    if key == "initContainers" and container.get("restartPolicy") != "Always":
                        continue
                    with within("resources"):
                        resources = mapping_of(container.get("resources"))
                        with within("requests"):
                            requests = quantities_of(resources.get("requests"))
                    name = text_of(container.get("name"))
                    yield name, {sys.intern(key): amount for key, amount in requests.items()}
