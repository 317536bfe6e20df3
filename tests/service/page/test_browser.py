"""The page in headless Chromium: 250 pods and 256 CPUs at three sizes, hostile names, and what changes."""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cri_api.runtimeproxy.v1 import api_pb2
from tests.daemon.failures.claims import admin_of
from tests.daemon.upgrading import Family
from tests.lab.browser import LAPTOP, PHONE, WALL, Browser, Size
from tests.lab.busy_node import NODE_NAME, PODS, STRATEGIES, WORKLOADS, BusyNode
from tests.lab.deadline import wait_until
from tests.lab.proxy_process import ProxyProcess

pytestmark = [pytest.mark.debian, pytest.mark.xdist_group("chromium")]

CORES = 64
"""In each of two sockets: 256 CPUs."""
HOSTILE = (
    "<img src=x onerror=\"document.title='taken'\">",
    "<script>document.title='taken'</script>",
    "\u202egnitrevni\u202c",
    "x" * 200,
    "';--\"></b>&amp;",
)
CHANGED = ".pod:not([data-old])"
OTHER_CLASSES = "[data-class=LSE], [data-class=LSR], [data-class=SYSTEM], [data-class=none]"
"""Classes without a CPU burst. BE pods have none either, but their CPUs are compared after a minute."""
READY = "document.querySelectorAll('.pod').length >= arguments[0]"
DESK = Size(1280, 800)
NARROW = Size(400, 800)
STICKING_OUT = """
const width = document.documentElement.clientWidth;
const isLeftOut = (each) => each.matches('.skip') || each.closest('.pod:not([open]) .id');
const isSeen = (each) => each.checkVisibility() && !isLeftOut(each);
const sides = (each) => each.getBoundingClientRect();
const scrolled = ['section', '.wide', '.inside', '.field', '.pods'];
return [...document.body.querySelectorAll('*')].filter(isSeen).filter((each) =>
  sides(each).right > width + 0.5 || sides(each).left < -0.5
  || scrolled.some((selector) => each.matches(selector)) && each.scrollWidth > each.clientWidth + 1
).map((each) => `${each.tagName} ${each.id} ${each.className}: ${each.innerText.slice(0, 60)}`);
"""
"""The elements that reach over the window, or whose content has no room in them."""
KINDS = ("mode", "stop", "gap", "upgrade")
OF_KIND = """[...document.querySelectorAll('#decisions > li')].find(
  (each) => [...each.querySelectorAll('.tag')].some((tag) => tag.innerText == arguments[0])
)"""
SHOWS_KIND = f"{OF_KIND} !== undefined"
"""Whether an entry of the audit has this kind."""
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="page-", dir="/tmp") as folder, Browser(Path(folder)) as opened:
        yield opened


@pytest.fixture(scope="module")
def node(browser: Browser, module_folder: Path) -> Iterator[BusyNode]:
    with BusyNode(module_folder, cores=CORES) as running:
        running.fill()
        yield running


def number_of(browser: Browser, selector: str) -> int:
    return int(browser.run("return document.querySelectorAll(arguments[0]).length", selector))


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, LAPTOP, WALL], ids=["phone", "laptop", "wall"])
def test_everything_is_there_and_nothing_sticks_out(
    browser: Browser, node: BusyNode, size: Size, is_dark: bool
) -> None:
    browser.open(node.url, size, is_dark=is_dark)
    browser.wait_for(READY, PODS)
    assert browser.run(OVERFLOW) == 0
    assert browser.text("#name") == NODE_NAME
    assert browser.text("#verdict") == "All is well"
    assert browser.text("#problems") == "Nothing needs attention."
    assert "250" in browser.text("#figures")
    assert browser.text("#cpus-about").startswith("256 CPUs on 2 NUMA nodes")
    assert (number_of(browser, "#topology .core"), number_of(browser, "#topology .cpu")) == (128, 256)
    assert "LSE: one pod's own (8)" in browser.text("#legend")
    assert "trading/matching-engine-0 LSE 2-5" in browser.text("#owners")
    for workload in WORKLOADS:
        selector = f"[data-class={workload.qos or 'none'}]"
        assert f"{workload.namespace}/{workload.name}-0" in browser.text(selector)
    assert "135 pods, 135 containers" in browser.text("[data-class=BE] summary")
    assert "cpu-burst" in browser.text("#policy-table")
    assert "node strategy storage of resource-threshold-config" in browser.text("#strategy-table")
    assert "strategies" in browser.text("#input-table")
    assert "as of " in browser.text("#as-of")
    polls = "performance.getEntriesByType('resource').filter((each) => each.name.includes('/page/data'))"
    browser.wait_for(f"{polls}.length >= 3")
    assert browser.console() == []
    assert {urlsplit(url).netloc for url in browser.requests()} == {urlsplit(node.url).netloc}


def test_the_text_can_be_read_on_its_background(browser: Browser, node: BusyNode) -> None:
    for is_dark in (False, True):
        browser.open(node.url, is_dark=is_dark)
        browser.wait_for(READY, PODS)
        found = browser.run(CONTRASTS, TEXTS)
        # Source: WCAG 2.2, 1.4.3 and, for the CPUs' numbers beside their labels, 1.4.11.
        assert {name: ratio for name, ratio in found.items() if ratio < 4.5} == {}


TEXTS = [
    "#name",
    "#facts",
    "#verdict",
    "#problems li",
    "dt",
    "dd",
    ".about",
    "h3",
    ".tag",
    "#decisions time",
    ".why",
    "footer",
]
TEXTS += [f".cpu.is-{kind}" for kind in ("lse", "lsr", "shared")]
TEXTS += [f".badge.is-{kind}" for kind in ("ls", "be", "system", "none")]
CONTRASTS = """
const luminance = (color) => {
  const part = (value) => (value /= 255, value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = color.match(/[0-9.]+/g).map(Number);
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const backgroundOf = (element) => {
  for (; element; element = element.parentElement) {
    const color = getComputedStyle(element).backgroundColor;
    if (color !== "rgba(0, 0, 0, 0)") return color;
  }
  return "rgb(255, 255, 255)";
};
const ratios = {};
for (const selector of arguments[0]) {
  const element = document.querySelector(selector);
  const colors = [getComputedStyle(element).color, backgroundOf(element)];
  const [light, dark] = colors.map(luminance).sort((a, b) => b - a);
  ratios[selector] = (light + 0.05) / (dark + 0.05);
}
return ratios;
"""


def test_names_of_others_are_shown_as_text(browser: Browser, node: BusyNode) -> None:
    workload = WORKLOADS[-1]
    pods = [
        node.pod(name, workload._replace(namespace="<i>hostile</i>"), labels={}).run().create()
        for name in HOSTILE
    ]
    browser.open(node.url)
    browser.wait_for(READY, PODS + len(HOSTILE))
    shown = browser.run("return [...document.querySelectorAll('.pod .id')].map((each) => each.textContent)")
    assert {f"<i>hostile</i>/{name}" for name in HOSTILE} <= set(shown)
    assert browser.run(OVERFLOW) == 0
    browser.run("document.querySelectorAll('.pod').forEach((each) => { each.open = true; })")
    browser.wait_for("document.querySelectorAll('.pod .inside').length >= arguments[0]", PODS)
    assert browser.run(OVERFLOW) == 0
    assert browser.run("return document.title") == f"{NODE_NAME}: koord-runtime-proxy"
    assert browser.run("return document.querySelectorAll('i, img, section script').length") == 0
    assert browser.console() == []
    for pod in pods:
        pod.remove()
    browser.wait_for("document.querySelectorAll('.pod').length == arguments[0]", PODS)


def test_a_rewrite_of_running_pods_is_seen(browser: Browser, node: BusyNode) -> None:
    browser.open(node.url)
    browser.wait_for(READY, PODS)
    browser.run("document.querySelector('[data-class=LS] .pod').open = true")
    browser.run("document.querySelectorAll('.pod').forEach((each) => { each.dataset.old = 'yes'; })")
    burst = {"clusterStrategy": {"policy": "cpuBurstOnly", "cpuBurstPercent": 80}}
    node.objects.strategies({**STRATEGIES, "cpu-burst-config": burst})
    browser.wait_for("document.querySelector('#strategy-table').innerText.includes('80')")
    browser.wait_for("document.querySelector('#decisions').innerText.includes('cpu.cfs_burst_us')")
    browser.wait_for("document.querySelector('#decisions .is-fresh') !== null")
    assert "cpu-burst: " in browser.text("#decisions")
    # The others are left as they were, and open ones stay open.
    shared = sum(workload.share for workload in WORKLOADS if workload.qos == "LS")
    browser.wait_for(f"document.querySelectorAll('[data-class=LS] {CHANGED}').length == {shared}")
    assert number_of(browser, f":is({OTHER_CLASSES}) {CHANGED}") == 0
    assert browser.run("return document.querySelector('[data-class=LS] .pod').open")
    browser.wait_for("document.querySelector('[data-class=LS] .pod .inside').innerText.includes('160000')")
    assert browser.console() == []


def test_a_pod_is_found_and_opened_with_the_keyboard(browser: Browser, node: BusyNode) -> None:
    browser.open(node.url)
    browser.wait_for(READY, PODS)
    browser.press("Tab", "Enter")
    browser.run("document.querySelector('#filter').focus()")
    browser.devtools("Input.insertText", {"text": "ETL-nightly-7"})
    browser.wait_for(
        "[...document.querySelectorAll('.pod')].filter((each) => each.checkVisibility()).length == 1"
    )
    assert "1 of 135 pods" in browser.text("[data-class=BE] summary")
    # The class, then the pod.
    browser.press("Tab", "Tab", "Enter")
    browser.wait_for(
        "document.activeElement.parentElement.open && document.querySelector('.inside') !== null"
    )
    assert "batch-resource" in browser.text(".pod[open] .inside")
    browser.run("document.querySelector('#filter').value = 'no such pod'")
    browser.run("document.querySelector('#filter').dispatchEvent(new Event('input'))")
    assert browser.text("#pods-about") == "No pod has this in its name or policies."


def test_the_cpus_of_an_owner_stand_out(browser: Browser, node: BusyNode) -> None:
    browser.open(node.url)
    browser.wait_for(READY, PODS)
    browser.run("document.querySelector('#owners li').focus()")
    chosen = browser.run("return [...document.querySelectorAll('.is-chosen')].map((each) => each.title)")
    assert len(chosen) == 4
    assert all("trading/matching-engine-0" in each for each in chosen)
    browser.run("document.querySelector('#owners li').blur()")
    assert number_of(browser, ".has-chosen") == 0


def test_problems_come_first(browser: Browser, node: BusyNode) -> None:
    browser.open(node.url)
    browser.wait_for(READY, PODS)
    node.daemon.signal(signal.SIGUSR1)
    browser.wait_for("document.querySelector('#verdict').innerText == '1 problem'")
    assert browser.text("#problems") == "The bypass is on (signal): policies do not run."
    place = "return document.querySelector('#problems').getBoundingClientRect().bottom"
    assert browser.run(place) < LAPTOP.height / 2
    node.daemon.signal(signal.SIGUSR2)
    browser.wait_for("document.querySelector('#verdict').innerText == 'All is well'")


def test_it_is_said_that_the_daemon_is_away(browser: Browser, node: BusyNode) -> None:
    browser.open(node.url)
    browser.wait_for(READY, PODS)
    daemon: ProxyProcess = node.daemon
    daemon.terminate()
    browser.wait_for("!document.querySelector('#away').hidden")
    text = browser.text("#away")
    assert text.startswith("The daemon does not answer. All below is as of ")
    assert browser.text("#verdict") == "No answer"
    assert number_of(browser, ".pod") == PODS
    daemon.start()
    browser.wait_for("document.querySelector('#away').hidden", timeout_s=60)
    assert browser.text("#verdict") != "No answer"
    assert number_of(browser, ".is-old") == 0
    browser.wait_for(READY, PODS)


def test_a_node_of_which_nothing_is_known(browser: Browser, socket_folder: Path) -> None:
    with BusyNode(socket_folder, cores=0) as node:
        node.objects.strategies({})
        for size in (PHONE, WALL):
            browser.open(node.url, size)
            browser.wait_for("document.querySelector('#as-of').innerText != ''")
            assert browser.text("#pods-about") == "No pod is known on this node."
            assert browser.text("#rewrites-about") == "No policy has changed anything yet."
            assert browser.text("#cpus-about") == "The CPUs of this node are not known."
            about = "document.querySelector('#strategies-about').innerText"
            browser.wait_for(f"{about}.startsWith('No strategy is set')")
            assert browser.run(OVERFLOW) == 0
            assert browser.console() == []


@pytest.mark.slow
@pytest.mark.parametrize("pods", [4, 400])
def test_nothing_overflows(browser: Browser, socket_folder: Path, pods: int) -> None:
    with BusyNode(socket_folder) as node:
        node.fill(pods)
        for size in (DESK, NARROW):
            browser.open(node.url, size)
            browser.wait_for("document.querySelectorAll('.pod').length == arguments[0]", pods)
            browser.wait_for("document.querySelector('#strategy-table').innerText.includes('storage')")
            assert browser.run(STICKING_OUT) == []
            browser.run(
                "document.querySelectorAll('.pod:nth-child(-n+2)').forEach((each) => { each.open = true; })"
            )
            opened = "document.querySelectorAll('.pod[open]').length"
            browser.wait_for(
                f"{opened} > 0 && document.querySelectorAll('.reasons h3').length >= 2 * {opened}"
            )
            assert browser.run(STICKING_OUT) == []
            assert browser.run(OVERFLOW) == 0
            assert browser.console() == []


def test_an_opened_pod_says_why_and_only_it_is_asked_for(browser: Browser, node: BusyNode) -> None:
    browser.open(node.url)
    browser.wait_for(READY, PODS)
    browser.wait_for("document.querySelector('#as-of').innerText != ''")
    list(browser.requests())
    browser.run("document.querySelector('[data-class=BE] .pod').open = true")
    browser.wait_for("document.querySelector('.pod[open] .field') !== null")
    text = browser.text(".pod[open] .reasons")
    assert "batch-resource" in text
    assert "batch-cpu limit 1500m = 150000" in text
    assert {"requested", "before", "value", "now"} <= set(text.split())
    asked = [url for url in browser.requests() if "/page/pod?" in url]
    assert len(asked) == 1
    assert browser.console() == []


def test_a_policy_and_a_plugin_of_one_name_are_told_apart(browser: Browser, node: BusyNode) -> None:
    browser.open(node.url)
    browser.wait_for(READY, PODS)
    assert "plugin:" not in browser.text("#policy-table")
    shown = browser.run(
        "return [...document.querySelectorAll('#plugin-table tbody tr')].map((e) => e.innerText)"
    )
    assert shown
    assert all(each.startswith("plugin:") for each in shown)
    assert browser.text("#qos-manager").startswith("koord-qos-manager does not run")
    plugin = api_pb2.QosPluginStatus(
        name="cpu-burst", mode=api_pb2.MODE_ENFORCE, is_wanted=True, claims=3, explanation="<b>calm</b>"
    )
    report = api_pb2.QosManagerReport(version="1", pid=7, plugins=[plugin])
    # Without a strategy that asks for the plugin, whatever earlier tests have set.
    node.objects.strategies({**STRATEGIES, "cpu-burst-config": {"clusterStrategy": {"policy": "none"}}})
    with admin_of(node.daemon) as admin:
        admin.ReportQosManager(api_pb2.ReportQosManagerRequest(report=report), timeout=30)
    browser.wait_for(
        "document.querySelector('#qos-manager').innerText.startsWith('koord-qos-manager 1 runs')"
    )
    row = ["plugin:cpu-burst", "enforce", "in use", "3", "<b>calm</b>"]
    browser.wait_for(
        "document.querySelector('#plugin-table tbody tr').innerText == arguments[0]", "\t".join(row)
    )
    assert browser.text("#policy-table").count("cpu-burst") == 1
    assert browser.run(OVERFLOW) == 0


def test_what_happened_to_the_daemon_is_among_the_last_hour(browser: Browser, node: BusyNode) -> None:
    browser.open(node.url)
    browser.wait_for(READY, PODS)
    node.daemon.signal(signal.SIGUSR1)
    strategy = {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 60}}
    node.objects.strategies({**STRATEGIES, "resource-threshold-config": strategy})
    # The start was before the entries of 250 pods, of which the audit remembers 500.
    for kind in ("bypass", "strategy", "start"):
        browser.wait_for(SHOWS_KIND, kind)
    assert "What policies changed is known from " in browser.text("#rewrites-about")
    assert "happened to the daemon is" not in browser.text("#rewrites-about")
    node.daemon.signal(signal.SIGUSR2)
    browser.wait_for("document.querySelector('#verdict').innerText == 'All is well'")


def test_each_mode_is_named_with_what_it_leaves_undone(browser: Browser, socket_folder: Path) -> None:
    with BusyNode(socket_folder) as node:
        file = node.daemon.config_file
        text = file.read_text()
        for mode, shown in (("standalone", "stand-alone"), ("nri", "NRI plugin, not connected")):
            own = f'[daemon]\nmode = "{mode}"\nlock = "{socket_folder}/front-end.lock"\n'
            file.write_text(f'{own}[nri]\nsocket = "{socket_folder}/nri.sock"\n{text}')
            node.daemon.restart()
            browser.open(node.url)
            browser.wait_for("document.querySelector('#facts').innerText.includes(arguments[0])", shown)
            undone = "Mode standalone leaves undone: gpu-env (devices, env, mounts)"
            assert (undone in browser.text("#notes")) is (mode == "standalone")
            assert ("does not ask the daemon" in browser.text("#problems")) is (mode == "nri")
        assert browser.console() == []


def test_ends_and_modes_are_among_the_last_hour(browser: Browser, socket_folder: Path) -> None:
    with BusyNode(socket_folder) as node, ExitStack() as at_end:
        daemon, saved = node.daemon, node.daemon.state_folder / "audit.json"
        node.fill(4)
        browser.open(node.url, NARROW)
        browser.wait_for(READY, 4)
        assert daemon.run("policy", "cpu-burst", "dry-run", "--reason", "<b>try</b>").returncode == 0
        browser.wait_for(SHOWS_KIND, "mode")
        daemon.restart()
        browser.wait_for(SHOWS_KIND, "stop")
        wait_until(lambda: '"has_ended":false' in saved.read_text(), "the first save")
        daemon.kill()
        daemon.start()
        browser.wait_for(SHOWS_KIND, "gap")
        at_end.enter_context(Family(daemon)).upgrade()
        browser.wait_for(SHOWS_KIND, "upgrade")
        found = {kind: browser.run(f"return {OF_KIND}.innerText", kind) for kind in KINDS}
        assert "node\nmode mode enforce → dry-run cpu-burst: by command; <b>try</b>" in found["mode"]
        assert "daemon\nstop " in found["stop"]
        times = r"gap audit [\d:]{8} → [\d:]{8} the process before this one was killed, "
        assert re.search(times, found["gap"])
        assert "it serves in place of process " in found["upgrade"]
        is_bad = f"return {OF_KIND}.querySelector('.is-bad') !== null"
        assert [kind for kind in KINDS if browser.run(is_bad, kind)] == ["gap"]
        assert browser.run(STICKING_OUT) == []
        assert browser.text("#rewrites-about").endswith("newest first.")


def test_the_cpus_of_an_lsr_pod_have_an_owner_where_pools_are_not_computed(
    browser: Browser, socket_folder: Path
) -> None:
    with BusyNode(socket_folder, shared_pools="nrt") as node:
        node.fill(4)
        browser.open(node.url)
        browser.wait_for(READY, 4)
        browser.wait_for("document.querySelector('#legend').innerText.includes('LSR')")
        assert "search/ranking-0 LSR 10-13" in browser.text("#owners")
        assert number_of(browser, "#topology .cpu.is-lsr") == 8
