import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.cgroups.paths import CgroupPathError, cgroup_path, container_path, expand_slice

POD_SLICE = "kubepods-besteffort-pod1_2.slice"
POD_SLICE_PATH = ("kubepods.slice", "kubepods-besteffort.slice", POD_SLICE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("/kubepods/besteffort/pod1", ("kubepods", "besteffort", "pod1"), id="cgroupfs"),
        pytest.param("kubepods/pod1", ("kubepods", "pod1"), id="no-leading-slash"),
        pytest.param("//kubepods//pod1/", ("kubepods", "pod1"), id="doubled-slashes"),
        pytest.param(POD_SLICE, POD_SLICE_PATH, id="bare-slice"),
        pytest.param("/" + "/".join(POD_SLICE_PATH), POD_SLICE_PATH, id="full-slice-path"),
        pytest.param(
            f"{POD_SLICE}:cri-containerd:ab", (*POD_SLICE_PATH, "cri-containerd-ab.scope"), id="scope"
        ),
        pytest.param(f"{POD_SLICE}::ab", (*POD_SLICE_PATH, "ab.scope"), id="scope-without-prefix"),
        pytest.param(":crio:ab", ("system.slice", "crio-ab.scope"), id="scope-without-slice"),
        pytest.param("/kubepods/a:b:c", ("kubepods", "a:b:c"), id="colons-in-a-path"),
        pytest.param("kubepods.slice", ("kubepods.slice",), id="top-slice"),
    ],
)
def test_every_form_of_a_cgroup_becomes_a_path(text: str, expected: tuple[str, ...]) -> None:
    assert cgroup_path(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "//",
        "/kubepods/../../etc",
        "..",
        "/kubepods/./pod1",
        "/kubepods/pod\0",
        "/kubepods/pod\n1",
        "/kubepods/" + "a" * 256,
        "/kubepods/\ud800",
        "-.slice",
        ".slice",
        "kubepods--pod1.slice",
        "-kubepods.slice",
        "kubepods-.slice",
        "no-slice:cri-containerd:ab",
        f"{POD_SLICE}:cri-containerd:",
        "../kubepods.slice",
    ],
)
def test_what_leaves_the_tree_or_is_no_cgroup_is_refused(text: str) -> None:
    with pytest.raises(CgroupPathError):
        cgroup_path(text)


@given(st.text(max_size=80))
def test_any_text_gives_plain_components_or_is_refused(text: str) -> None:
    try:
        components = cgroup_path(text)
    except CgroupPathError:
        return
    assert components
    assert all(
        part and part not in {".", ".."} and "/" not in part and "\0" not in part for part in components
    )


@pytest.mark.parametrize(
    ("parent", "prefix", "expected"),
    [
        pytest.param("/kubepods/pod1", "", ("kubepods", "pod1", "ab"), id="containerd-cgroupfs"),
        pytest.param("/kubepods/pod1", "crio", ("kubepods", "pod1", "crio-ab"), id="crio-cgroupfs"),
        pytest.param("a.slice", "", ("a.slice", "cri-containerd-ab.scope"), id="containerd-systemd"),
        pytest.param("a.slice", "crio", ("a.slice", "crio-ab.scope"), id="crio-systemd"),
    ],
)
def test_a_container_lies_below_its_pod(parent: str, prefix: str, expected: tuple[str, ...]) -> None:
    assert container_path(parent, "ab", prefix=prefix) == expected


@pytest.mark.parametrize("container_id", ["..", "", "a/b", "a\0"])
def test_a_container_id_that_is_no_name_is_refused(container_id: str) -> None:
    with pytest.raises(CgroupPathError):
        container_path("/kubepods/pod1", container_id)


def test_a_name_that_is_no_slice_does_not_expand() -> None:
    with pytest.raises(CgroupPathError):
        expand_slice("kubepods.scope")
