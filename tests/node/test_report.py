import json
from pathlib import Path

import pytest

from tests.node.guest import installation
from tests.node.guest.checks import BOOTS, selected
from tests.node.image import Image
from tests.node.qemu import command
from tests.node.report import Row, rows, table


def line(name: str, ok: bool = True) -> str:
    return json.dumps({"name": name, "ok": ok, "seen": "what", "took_s": 1.5})


def test_rows_keep_the_order_of_the_names() -> None:
    made = rows(["one", "two"], [line("two", ok=False), line("one")])
    assert made == [Row("one", True, "what", 1.5), Row("two", False, "what", 1.5)]


def test_a_check_without_a_whole_line_has_failed() -> None:
    made = rows(["one", "two", "three"], [line("one"), line("two")[:-4], "7"])
    assert [row.ok for row in made] == [True, False, False]
    assert made[1].seen == "was not made"


def test_the_table_counts_failures() -> None:
    text = table([Row("one", True, "fine", 1.0), Row("two", False, "broken", 2.0)])
    assert "ok      1.0 s  one" in text
    assert "FAIL    2.0 s  two" in text
    assert text.endswith("2 checks, 1 failed")


@pytest.mark.parametrize("boot", BOOTS)
def test_the_checks_have_names_of_their_own(boot: str) -> None:
    names = [check.name for check in BOOTS[boot]]
    assert len(set(names)) == len(names)
    assert selected("", boot) == names


def test_a_selection_has_the_installation() -> None:
    names = selected("UpdateContainerResources", "cgroup-v2")
    assert len(names) == len(installation.CHECKS) + 1


def test_the_kernel_is_told_the_cgroup_version() -> None:
    image = Image(Path("disk"), Path("kernel"), Path("initrd"))
    one, two = (" ".join(command(image, Path("share"), version)) for version in (1, 2))
    assert "systemd.unified_cgroup_hierarchy=0" in one
    assert "unified_cgroup_hierarchy" not in two


def test_an_own_kernel_has_no_initrd_and_cores_with_two_threads() -> None:
    image = Image(Path("disk"), Path("kernel"), Path("initrd"))
    own = " ".join(command(image, Path("share"), own_kernel=Path("bzImage")))
    assert "-kernel bzImage" in own
    assert "-initrd" not in own
    assert "threads=2" in own


def test_two_numa_nodes_have_a_socket_and_half_of_the_memory_each() -> None:
    image = Image(Path("disk"), Path("kernel"), Path("initrd"))
    words = command(image, Path("share"), has_numa=True)
    assert "8,sockets=2,cores=2,threads=2" in words
    nodes = [word for word in words if word.startswith("node,")]
    assert nodes == ["node,nodeid=0,cpus=0-3,memdev=memory0", "node,nodeid=1,cpus=4-7,memdev=memory1"]
    sizes = [int(word.rpartition("=")[2].rstrip("M")) for word in words if word.startswith("memory-backend")]
    assert sum(sizes) == int(words[words.index("-m") + 1])


def test_the_other_architecture_has_another_emulator_and_console() -> None:
    image = Image(Path("disk"), Path("kernel"), Path("initrd"), "arm64")
    words = command(image, Path("share"))
    assert words[0] == "qemu-system-aarch64"
    assert "console=ttyAMA0" in " ".join(words)
