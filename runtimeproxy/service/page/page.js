// Polls the daemon and shows what it has sent. Texts go into text nodes only: others choose the names of pods.
"use strict";

const POLL_MS = 2000;
const SLOWEST_POLL_MS = 15000;
const ANSWER_MS = 12000;
const NONE = "none";
// Which of several pools a CPU is shown in; the first one counts.
const KINDS = {
  offline: { code: "off", text: "offline" },
  lse: { code: "LSE", text: "LSE: one pod's own" },
  lsr: { code: "LSR", text: "LSR: one pod's own, BE may use it" },
  static: { code: "own", text: "one container's own (kubelet)" },
  system: { code: "sys", text: "system" },
  reserved: { code: "res", text: "reserved by the kubelet" },
  shared: { code: "", text: "shared by LS and BE" },
  ls: { code: "LS", text: "shared, LS only" },
  be: { code: "BE", text: "shared, BE only" },
  none: { code: "", text: "in no known pool" },
};
const CLASSES = ["LSE", "LSR", "LS", "BE", "SYSTEM", NONE];
const POLICY_STATES = { LOADED: "in use", FAILED: "not loaded", OFF: "off here", PARTIAL: "in part", DISABLED: "disabled", REMOVED: "removed" };

const $ = (id) => document.getElementById(id);

// Makes an element. Children are nodes or texts.
function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== ""));
  return element;
}

// A text of somebody else's: its direction does not reach the texts around it.
const own = (text) => h("bdi", {}, text);
const number = (value) => Number(value || 0).toLocaleString("en");
const plural = (count, one, many) => `${number(count)} ${Number(count) === 1 ? one : many || `${one}s`}`;
const word = (value, prefix) => (value || "").replace(prefix, "").toLowerCase().replaceAll("_", "-");
const clock = (time) => new Date(time).toLocaleTimeString("en-GB");
// With the day where that is not today.
const moment = (time) => (new Date(time).toDateString() === new Date().toDateString() ? clock(time) : new Date(time).toLocaleString("en-GB"));

const shown = new Map();

// Fills an element if its data are others than last time: a selection or an open detail stays otherwise.
function fill(id, data, build) {
  const text = JSON.stringify(data);
  if (shown.get(id) === text) return;
  shown.set(id, text);
  $(id).replaceChildren(...build(data));
}

function row(tag, ...cells) {
  return h("tr", {}, ...cells.map((cell) => (cell instanceof Node && cell.tagName === "TD" ? cell : h(tag, {}, cell))));
}

// ----- health

function since(time) {
  const minutes = Math.floor((Date.now() - new Date(time)) / 60000);
  if (minutes < 1) return "less than a minute";
  if (minutes < 120) return plural(minutes, "minute");
  return minutes < 2880 ? plural(Math.floor(minutes / 60), "hour") : plural(Math.floor(minutes / 1440), "day");
}

function showStatus(status) {
  const problems = status.problems || [];
  const daemon = status.daemon || {};
  const runtime = status.runtime || {};
  const state = word(daemon.state, "STATE_");
  const serves = state === "serving";
  const verdict = problems.length ? plural(problems.length, "problem") : serves ? "All is well" : `The daemon is ${state}`;
  fill("verdict", verdict, () => [verdict]);
  $("verdict").dataset.state = problems.length ? "bad" : serves ? "good" : "waiting";
  fill("problems", problems, () =>
    problems.length
      ? problems.map((problem) => h("li", {}, own(problem)))
      : [h("li", { class: NONE }, "Nothing needs attention.")],
  );
  const records = status.records || {};
  const ledger = status.ledger || {};
  const counts = ledger.counts || {};
  const calls = status.calls || {};
  // What is so as configured, or ends by itself, is no problem.
  const waiting = (ledger.unapplied || []).map((each) => [
    `${each.target || each.cgroup || "node"} ${each.field}`,
    `${each.wanted} is not applied (${each.cause}): ${each.reason}`,
  ]);
  const left = Math.max(0, Number(ledger.unappliedValues || 0) - waiting.length);
  const undone = (status.leftUndone || []).map((each) => `${each.policy} (${(each.fields || []).join(", ")})`).join(", ");
  fill("notes", [status.notes || [], undone, waiting, left], () => [
    ...(undone ? [h("li", {}, `Mode ${daemon.mode} leaves undone: `, own(undone))] : []),
    ...(status.notes || []).map((note) => h("li", {}, own(note))),
    ...waiting.map(([place, why]) => h("li", {}, own(place), ": ", own(why))),
    ...(left ? [h("li", {}, `${plural(left, "more value")} not applied.`)] : []),
  ]);
  const figures = {
    Pods: records.pods,
    Containers: records.containers,
    "Values kept": ledger.values,
    "Calls decided": calls.decided,
    "Calls refused": calls.refused,
    "Values repaired": counts.repairs,
    "Writes failed": counts.failedWrites,
    "Not applied": ledger.unappliedValues,
    Clients: (status.clients || {}).connections,
  };
  fill("figures", figures, () =>
    Object.entries(figures).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, number(value)))),
  );
  const change = ledger.change;
  const facts = [
    `koord-runtime-proxy ${daemon.version || ""}`,
    `serving for ${since(daemon.startedAt)}`,
    !runtime.endpoint ? "no container runtime" : runtime.answers ? `${runtime.name} ${runtime.version}` : "the runtime does not answer",
    modeText(daemon.mode, status.nri),
    change ? `changing running pods: ${number(change.done)} of ${number(change.pods)}` : "",
  ].filter(Boolean);
  fill("facts", facts, () => [facts.join(" · ")]);
  showPolicies(status.policies || [], status.hookServers || []);
  showQosManager(status.qosManager || {}, status.claimOwners || []);
}

function modeText(mode, nri) {
  if (!nri) return mode === "standalone" ? "stand-alone" : "";
  const state = nri.isConnected ? `connected for ${since(nri.connectedSince)}` : "not connected";
  return `NRI plugin, ${state}`;
}

function showPolicies(policies, servers) {
  fill("policy-table", [policies, servers], () => [
    h("thead", {}, row("th", "Policy", "Mode", "State", h("td", { class: "number" }, "Runs"), "Note")),
    h("tbody", {}, ...policies.map(policyRow), ...servers.map(serverRow)),
  ]);
}

function policyRow(policy) {
  const state = (policy.state || "").replace("STATE_", "");
  const until = policy.modeUntil ? ` until ${clock(policy.modeUntil)}` : "";
  const some = (policy.overrides || []).filter((each) => each.selector).length;
  const overrides = some ? `; ${plural(some, "rule")} for some pods` : "";
  const failures = policy.failures || {};
  const failed = ["raised", "invalid", "timedOut", "skipped", "leftOut"].reduce((sum, key) => sum + Number(failures[key] || 0), 0);
  const last = policy.lastFailure || policy.lastLeftOut;
  const note = failed && last ? `${plural(failed, "failure")}, last: ${last.reason}` : policy.reason || "";
  return row(
    "td",
    own(policy.name),
    `${word(policy.mode, "MODE_")}${until}${overrides}`,
    h("td", { class: state === "FAILED" ? "bad" : undefined }, POLICY_STATES[state] || state.toLowerCase()),
    h("td", { class: "number" }, number(policy.runs)),
    h("td", { class: failed ? "bad" : "quiet" }, own(note)),
  );
}

function serverRow(server) {
  const state = server.isUnused ? "not used" : server.isBreakerOpen ? "not called" : "in use";
  return row(
    "td",
    own(server.name),
    "hook server",
    h("td", { class: server.isBreakerOpen ? "bad" : undefined }, state),
    h("td", { class: "number" }, number(server.calls)),
    h("td", { class: "quiet" }, own(server.lastError || "")),
  );
}

// ----- QoS manager

function showQosManager(manager, owners) {
  const state = word(manager.state, "STATE_") || "not-wanted";
  const report = manager.report || {};
  const heard = manager.lastHeard ? `, last heard at ${clock(manager.lastHeard)}` : "";
  const about = {
    running: `koord-qos-manager ${report.version || ""} runs for ${since(report.startedAt)}, process ${report.pid || 0}${heard}.`,
    starting: "No report of koord-qos-manager has come yet.",
    missing: manager.note,
    left: "koord-qos-manager does not run, and is not needed here.",
    "not-wanted": "koord-qos-manager does not run, and no strategy asks for it.",
  }[state] || state;
  fill("qos-manager", [about, state], () => [h("span", { class: state === "missing" ? "bad" : undefined }, own(about))]);
  // A manager that does not run has left its last report.
  const plugins = new Map((state === "running" ? report.plugins || [] : []).map((each) => [each.name, each]));
  const claims = new Map(owners.map((each) => [each.name, each]));
  const names = [...new Set([...plugins.keys(), ...(manager.wanted || []), ...claims.keys()])].sort();
  const rows = names.map((name) => pluginCells(name, plugins.get(name), claims.get(name), manager));
  fill("plugin-table", rows, () =>
    rows.length
      ? [
          h("thead", {}, row("th", "Plugin", "Mode", "State", h("td", { class: "number" }, "Claims"), "Note")),
          h("tbody", {}, ...rows.map(([name, mode, text, isBad, count, note]) =>
            row(
              "td",
              own(name),
              mode,
              h("td", { class: isBad ? "bad" : undefined }, text),
              h("td", { class: "number" }, number(count)),
              h("td", { class: isBad ? "bad" : "quiet" }, own(note)),
            ),
          )),
        ]
      : [],
  );
}

// Of a plugin, or another owner of claims; its name is that of its claims, as a policy may have the same.
function pluginCells(name, plugin, owner, manager) {
  const problem = (plugin && plugin.problem) || (owner && (owner.problem || owner.refusal)) || "";
  const mode = word(((owner || {}).mode) || ((plugin || {}).mode), "MODE_") || "-";
  const isMissing = (manager.missing || []).includes(name);
  const lease = word((owner || {}).state, "STATE_");
  let text = lease === "leased" ? "in use" : lease || "none";
  if (plugin) text = mode === "off" ? "off" : plugin.isWanted ? "in use" : "not asked for";
  if ((manager.left || []).includes(name)) text = "left to others";
  if (problem) text = "has a problem";
  if (isMissing) text = "missing";
  const count = ((owner || {}).claims) || ((plugin || {}).claims) || 0;
  return [`plugin:${name}`, mode, text, Boolean(problem) || isMissing, count, problem || (plugin || {}).explanation || ""];
}

// ----- CPUs

function kindOf(cpu) {
  if (!cpu.isOnline) return "offline";
  const pools = new Set(cpu.pools || []);
  for (const kind of ["lse", "lsr", "static", "system", "reserved"]) if (pools.has(kind)) return kind;
  if (pools.has("ls") && pools.has("be")) return "shared";
  return pools.has("ls") ? "ls" : pools.has("be") ? "be" : NONE;
}

// A, B, ... Z, AA, AB, ...
function mark(index) {
  const letter = String.fromCharCode(65 + (index % 26));
  return index < 26 ? letter : mark(Math.floor(index / 26) - 1) + letter;
}

function ranges(ids) {
  const parts = [];
  for (const id of ids) {
    const last = parts[parts.length - 1];
    if (last && last[1] === id - 1) last[1] = id;
    else parts.push([id, id]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(",");
}

function groups(items, keyOf) {
  const found = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (found.has(key)) found.get(key).push(item);
    else found.set(key, [item]);
  }
  return found;
}

function showNode(node) {
  const name = node.name || "this node";
  fill("name", name, () => [name]);
  document.title = `${name}: koord-runtime-proxy`;
  const cpus = (node.cpus || []).map((cpu) => ({ ...cpu, id: cpu.id || 0, kind: kindOf(cpu) }));
  const owners = groups(cpus.filter((cpu) => cpu.owner), (cpu) => cpu.owner);
  const marks = new Map([...owners.keys()].map((owner, index) => [owner, mark(index)]));
  const nodes = groups(cpus, (cpu) => cpu.numaNode || 0);
  const cgroups = node.cgroups && node.cgroups.version ? `, cgroup v${node.cgroups.version}` : "";
  const about = cpus.length
    ? `${plural(cpus.length, "CPU")} on ${plural(nodes.size, "NUMA node")}; threads of a core stand together. ` +
      `Kernel ${node.kernelVersion}${cgroups}.`
    : "The CPUs of this node are not known.";
  fill("cpus-about", about, () => [about]);
  const kinds = groups(cpus, (cpu) => cpu.kind);
  const present = Object.keys(KINDS).filter((kind) => kinds.has(kind)).map((kind) => [kind, kinds.get(kind).length]);
  fill("legend", present, () =>
    present.map(([kind, count]) =>
      h("li", {}, h("span", { class: `key cpu is-${kind}`, "aria-hidden": "true" }), `${KINDS[kind].text} (${count})`),
    ),
  );
  fill("topology", [cpus, [...marks]], () =>
    [...nodes].map(([id, members]) =>
      h(
        "div",
        {},
        h("h3", {}, `NUMA node ${id}`),
        h("div", { class: "cores" }, ...[...groups(members, (cpu) => `${cpu.socket || 0}.${cpu.core || 0}`).values()].map((core) =>
          h("ul", { class: "core" }, ...core.map((cpu) => cpuCell(cpu, marks))),
        )),
      ),
    ),
  );
  const listed = [...owners].map(([owner, members]) => [owner, members[0].kind, ranges(members.map((cpu) => cpu.id))]);
  fill("owners", listed, () => listed.map(([owner, kind, list]) => ownerItem(owner, kind, list, marks.get(owner))));
  showStrategies(node.strategies || []);
  showTargets(node.katalyst_targets || []);
  showInputs(node.inputs || []);
}

function cpuCell(cpu, marks) {
  const owner = cpu.owner || "";
  const label = owner ? marks.get(owner) : KINDS[cpu.kind].code;
  const text = `CPU ${cpu.id}, core ${cpu.core || 0} of socket ${cpu.socket || 0}: ${owner || KINDS[cpu.kind].text}`;
  const cell = h(
    "li",
    { class: `cpu is-${cpu.kind}`, title: text, "aria-label": text },
    `${cpu.id}`,
    label ? h("small", {}, label) : "",
  );
  cell.dataset.owner = owner;
  return cell;
}

function ownerItem(owner, kind, list, letter) {
  const item = h("li", { tabindex: "0" }, h("b", {}, letter), own(owner), h("span", {}, ` ${KINDS[kind].code} ${list}`));
  const choose = (isChosen) => {
    $("topology").classList.toggle("has-chosen", isChosen);
    for (const cell of $("topology").querySelectorAll(".cpu")) {
      cell.classList.toggle("is-chosen", isChosen && cell.dataset.owner === owner);
    }
  };
  for (const event of ["mouseenter", "focus"]) item.addEventListener(event, () => choose(true));
  for (const event of ["mouseleave", "blur"]) item.addEventListener(event, () => choose(false));
  return item;
}

// ----- strategies and inputs

function showStrategies(strategies) {
  const about = strategies.length
    ? "Fields that somebody has set; all others have Koordinator's defaults."
    : "No strategy is set: all fields have Koordinator's defaults.";
  fill("strategies-about", about, () => [about]);
  fill("strategy-table", strategies, () =>
    strategies.length
      ? [
          h("thead", {}, row("th", "Field", "Value", "From")),
          h("tbody", {}, ...strategies.map((each) =>
            row("td", h("code", {}, each.path), h("code", {}, own(each.value)), own((each.provenance || {}).text || "default")),
          )),
        ]
      : [],
  );
}

function showTargets(targets) {
  fill("target-table", targets, () =>
    targets.length
      ? [
          h("thead", {}, row("th", "Katalyst target", "Applied", "Version", "Why")),
          h("tbody", {}, ...targets.map((each) =>
            row("td", own(each.name), each.is_applied ? "yes" : "no", h("code", {}, own(each.version || "-")), own(each.reason)),
          )),
        ]
      : [],
  );
}

function showInputs(inputs) {
  const used = inputs.map((each) => [each.name, word(each.state, "STATE_"), each.source || "", (each.policies || []).join(", ")]);
  fill("input-table", used, () => [
    h("thead", {}, row("th", "Input", "State", "From", "For")),
    h("tbody", {}, ...used.map(([name, state, source, policies]) =>
      row("td", name, state, own(source), h("td", { class: "quiet" }, own(policies || "-"))),
    )),
  ]);
}

// ----- live rewrites

const AUDIT_MS = 3600 * 1000;
let newest = null;
let audit = [];
let auditFrom = {};

function showAudit(entries) {
  const hour = entries.filter((entry) => Date.now() - new Date(entry.time) < AUDIT_MS);
  const about = hour.some((entry) => entry.hook)
    ? "What policies changed, and what happened to the daemon, within the last hour; newest first."
    : entries.some((entry) => entry.hook)
      ? "No policy has changed anything within the last hour."
      : "No policy has changed anything yet.";
  const missing = [["decisions", "policies changed"], ["events", "happened to the daemon"]]
    .filter(([kind]) => Date.now() - new Date(auditFrom[kind]) < AUDIT_MS)
    .map(([kind, text]) => `What ${text} is known from ${clock(auditFrom[kind])} on.`);
  const texts = [about, ...missing].join(" ");
  fill("rewrites-about", texts, () => [texts]);
  const decisions = groups(hour, (entry) => [entry.time, entry.hook, entry.target, entry.uid, entry.containerId, entry.container].join("\n"));
  const before = newest;
  newest = hour.length ? hour[0].time : newest;
  fill("decisions", hour, () =>
    [...decisions.values()].map((found) => decisionItem(found, before !== null && found[0].time > before)),
  );
}

function decisionItem(entries, isFresh) {
  const [first] = entries;
  const pod = first.target || `${first.namespace || ""}/${first.pod || ""}${first.container ? `/${first.container}` : ""}`;
  return h(
    "li",
    { class: isFresh ? "is-fresh" : undefined },
    h("time", { datetime: first.time }, clock(first.time)),
    own(pod),
    " ",
    h("span", { class: "quiet" }, first.call || (first.hook ? "while running" : "")),
    h("ul", {}, ...entries.map(entryItem)),
  );
}

function entryItem(entry) {
  const isBad = ["refused", "failed", "invalid", "left-out", "gap"].includes(entry.kind);
  // The values of a gap are its beginning and end.
  const [before, after] = [entry.before, entry.after].map((value) => (entry.kind === "gap" ? moment(value) : value || "-"));
  const change = entry.before || entry.after ? [`${before} → `, h("span", { class: "to" }, after)] : [];
  const why = [entry.policy, entry.reason, entry.note].filter(Boolean).join(": ");
  return h(
    "li",
    {},
    entry.kind === "changed" ? "" : h("span", { class: isBad ? "tag is-bad" : "tag" }, entry.kind),
    entry.kind === "changed" ? "" : " ",
    h("code", {}, own(entry.field || ""), entry.field ? " " : "", h("bdi", {}, ...change)),
    " ",
    h("span", { class: "why" }, own(why)),
  );
}

// ----- pods

const items = new Map();

function showPods(pods) {
  const known = new Set();
  for (const pod of pods) {
    const id = pod.sandboxId;
    const text = JSON.stringify(pod);
    known.add(id);
    const item = items.get(id);
    if (item && item.text === text) continue;
    const made = { text, pod, words: wordsOf(pod), element: podItem(pod, item && item.element.open ? item.element : null) };
    if (item) item.element.replaceWith(made.element);
    items.set(id, made);
  }
  for (const [id, item] of items) {
    if (!known.has(id)) {
      item.element.remove();
      items.delete(id);
    }
  }
  placePods();
}

function wordsOf(pod) {
  return [`${pod.namespace || ""}/${pod.name || ""}`, ...(pod.policies || [])].join(" ").toLowerCase();
}

function classOf(pod) {
  return CLASSES.includes(pod.qosClass) ? pod.qosClass : NONE;
}

// Puts each pod into the list of its class, in the order of names, and hides those that the filter leaves out.
function placePods() {
  const wanted = $("filter").value.trim().toLowerCase();
  const all = [...items.values()];
  all.sort((one, other) => {
    const [a, b] = [one.pod, other.pod].map((pod) => `${pod.namespace || ""}/${pod.name || ""}`);
    return a.localeCompare(b, "en", { numeric: true });
  });
  const byClass = groups(all, (item) => classOf(item.pod));
  let shownPods = 0;
  for (const name of CLASSES) {
    const members = byClass.get(name) || [];
    const group = classGroup(name, members.length > 0);
    if (!group) continue;
    const visible = members.filter((item) => item.words.includes(wanted));
    for (const item of members) item.element.hidden = !item.words.includes(wanted);
    shownPods += visible.length;
    const list = group.querySelector(".pods");
    const elements = members.map((item) => item.element);
    if (elements.length !== list.children.length || elements.some((element, index) => list.children[index] !== element)) {
      list.replaceChildren(...elements);
    }
    const counted = wanted && visible.length !== members.length ? `${number(visible.length)} of ` : "";
    const containers = members.reduce((sum, item) => sum + (item.pod.containers || []).length, 0);
    group.querySelector(".count").textContent = `${counted}${plural(members.length, "pod")}, ${plural(containers, "container")}`;
    group.hidden = visible.length === 0;
  }
  const about = !all.length
    ? "No pod is known on this node."
    : shownPods
      ? "By Koordinator's QoS class. A pod opens to what was requested, what was there before, and why it is another."
      : "No pod has this in its name or policies.";
  fill("pods-about", about, () => [about]);
}

const classGroups = new Map();

function classGroup(name, isNeeded) {
  if (!classGroups.has(name) && isNeeded) {
    const style = name === "SYSTEM" ? "system" : name.toLowerCase();
    const title = name === NONE ? "no class" : name;
    const group = h(
      "details",
      { class: "class", open: true, "data-class": name },
      h("summary", {}, h("span", { class: `badge is-${style}` }, title), h("span", { class: "count quiet" })),
      h("div", { class: "pods" }),
    );
    classGroups.set(name, group);
    $("classes").replaceChildren(...CLASSES.filter((each) => classGroups.has(each)).map((each) => classGroups.get(each)));
  }
  return classGroups.get(name);
}

function valuesOf(pod) {
  const containers = pod.containers || [];
  return [
    ...(pod.fields || []).map((field) => ["pod", field]),
    ...containers.flatMap((box) => (box.fields || []).map((field) => [box.name || "", field])),
  ];
}

// `before`: the open element in whose place this one is; its reasons stay until new ones have come.
function podItem(pod, before) {
  const isStopped = pod.state === "STATE_STOPPED";
  const count = valuesOf(pod).length;
  const id = `${pod.namespace || ""}/${pod.name || ""}`;
  const element = h(
    "details",
    { class: isStopped ? "pod is-stopped" : "pod" },
    h(
      "summary",
      { title: id },
      h("span", { class: "id" }, h("bdi", {}, h("span", { class: "quiet" }, `${pod.namespace || ""}/`), pod.name || "")),
      isStopped ? h("span", { class: "tag" }, "stopped") : "",
      pod.allocatedCpus ? h("span", { class: "tag" }, `CPUs ${pod.allocatedCpus}`) : "",
      h("span", { class: "quiet" }, count ? plural(count, "value") : "untouched"),
    ),
  );
  let inside = null;
  const onToggle = () => {
    if (element.open === (inside !== null)) return;
    if (inside !== null) inside.remove();
    inside = element.open ? podInside(pod) : null;
    if (inside === null) return;
    const reasons = inside.querySelector(".reasons");
    if (before) reasons.replaceChildren(...before.querySelector(".reasons").childNodes);
    element.append(inside);
    askReasons(element, pod, reasons);
  };
  element.addEventListener("toggle", onToggle);
  element.open = Boolean(before);
  onToggle();
  return element;
}

function podInside(pod) {
  const containers = pod.containers || [];
  const facts = [
    pod.kubeQosClass,
    pod.priorityClass,
    plural(containers.length, "container"),
    pod.isRecovered ? "found at the runtime: what policies did before is not known" : "",
    pod.policies && pod.policies.length ? `policies: ${pod.policies.join(", ")}` : "no policy has set anything",
  ].filter(Boolean);
  return h(
    "div",
    { class: "inside" },
    h("p", { class: "quiet" }, own(facts.join(" · "))),
    h("p", { class: "quiet" }, h("code", {}, own(`uid ${pod.uid || "not known"}`))),
    h("div", { class: "reasons" }, h("p", { class: "quiet" }, "Asking the daemon.")),
  );
}

// ----- reasons

let asked = Promise.resolve();

// Asks for one pod after the other, however many are opened: an answer takes the daemon some milliseconds.
function askReasons(element, pod, place) {
  asked = asked.then(async () => {
    if (!place.isConnected || !element.open) return;
    try {
      const response = await fetch(`page/pod?id=${encodeURIComponent(pod.sandboxId)}`, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
      if (!response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
      place.replaceChildren(...reasonsOf(await response.json()));
    } catch (error) {
      const why = error instanceof TypeError || error.name === "TimeoutError" ? "the daemon does not answer" : error.message;
      place.replaceChildren(h("p", { class: "bad" }, own(`Why is not known: ${why}. Open the pod again to ask again.`)));
    }
  });
}

function reasonsOf(found) {
  const problems = [...(found.problems || []), ...(found.isSkipped ? ["policies leave it alone: it has the skip label"] : [])];
  return [
    ...problems.map((text) => h("p", { class: "bad" }, own(text))),
    ...(found.notes || []).map((text) => h("p", { class: "quiet" }, own(text))),
    ...(found.targets || []).flatMap(targetParts),
  ];
}

function targetParts(target) {
  const level = word(target.level, "LEVEL_");
  const title = { container: `container ${target.container}`, pod: "pod", "qos-class": "QoS class" }[level] || "node";
  const fields = (target.fields || []).filter(isChanged);
  const answers = target.policies || [];
  const outcome = (answer) => word(answer.outcome, "OUTCOME_");
  const isTrouble = (answer) => ["failed", "refuses"].includes(outcome(answer)) || (outcome(answer) === "off" && answer.mode !== "MODE_OFF");
  const others = answers.filter((answer) => outcome(answer) !== "changes" && !isTrouble(answer));
  const answerItem = (answer) =>
    h("li", {}, own(answer.policy), " ", h("span", { class: "quiet" }, own([outcome(answer), answer.reason].filter(Boolean).join(": "))));
  return [
    h("h3", {}, own(title)),
    target.problem ? h("p", { class: "bad" }, own(target.problem)) : "",
    ...(fields.length ? fields.map(fieldPart) : [h("p", { class: "quiet" }, "Nothing is changed here.")]),
    h("ul", {}, ...answers.filter(isTrouble).map(answerItem)),
    others.length
      ? h("details", {}, h("summary", { class: "quiet" }, `${plural(others.length, "policy", "policies")} without a change here`), h("ul", {}, ...others.map(answerItem)))
      : "",
  ].filter(Boolean);
}

// Something wants, wrote or changed the value, or should have.
function isChanged(field) {
  return Boolean(field.claims || field.problem || field.unapplied || field.isDifferent || field.applied !== undefined || field.yielded);
}

function fieldPart(field) {
  const known = (text) => (text === undefined ? "-" : text || "none");
  const values = {
    requested: field.requested === undefined && field.isRequestUnknown ? "not known" : known(field.requested),
    before: known(field.original),
    value: known(field.applied === undefined ? field.resolved : field.applied),
    now: known(field.observedValue),
  };
  const remarks = (field.claims || []).map((claim) => [claim.owner, claimText(claim)]);
  if (field.yielded) remarks.push(["yielded", `left to another program, which writes ${field.yielded.theirs || ""}`]);
  for (const each of field.unapplied || []) remarks.push(["not applied", `${each.wanted || ""} (${each.cause}): ${each.reason || ""}`]);
  if (field.problem && !(field.unapplied || []).some((each) => each.reason === field.problem)) remarks.push(["note", field.problem]);
  return h(
    "div",
    { class: "field" },
    h("p", {}, h("code", {}, own(field.name))),
    h("dl", {}, ...Object.entries(values).map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", { class: name === "now" && field.isDifferent ? "bad" : undefined }, h("code", {}, own(value)))),
    )),
    h("ul", {}, ...remarks.map(([owner, text]) => h("li", {}, own(owner), " ", h("span", { class: "quiet" }, own(text))))),
  );
}

// As the command `explain` has it.
function claimText(claim) {
  const forms = { ROLE_SCALE: `divided by ${claim.value}`, ROLE_ADD: `${claim.value} more`, ROLE_AT_MOST: `at most ${claim.value}` };
  const claimed = claim.value === undefined ? "cleared" : forms[claim.role] || claim.value;
  const reason = claim.reason || "";
  const sources = new Set((claim.strategies || []).map((each) => (each.provenance || {}).text || each.path));
  const named = [...sources].filter((text) => !reason.includes(`(${text})`)).join("; ");
  const effect = word(claim.effect, "EFFECT_");
  const less = ["", "used", "unspecified"].includes(effect) ? "" : [effect.replace("-", " "), claim.effectReason].filter(Boolean).join(": ");
  return `${claimed}${reason ? `: ${reason}` : ""}${named ? ` [${named}]` : ""}${less ? ` (${less})` : ""}`;
}

// ----- polling

const SHOW = { status: showStatus, node: showNode, pods: showPods };
let tags = [];
let answeredAt = null;
let pause = POLL_MS;
let timer = null;
let isPolling = false;

async function poll() {
  clearTimeout(timer);
  if (isPolling || document.hidden) return;
  isPolling = true;
  try {
    const response = await fetch(`page/data?known=${tags.join(".")}`, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
    if (!response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
    const data = await response.json();
    tags = data.tags;
    if (data.audit) audit = data.audit;
    if (data.auditFrom) auditFrom = data.auditFrom;
    for (const [part, show] of Object.entries(SHOW)) if (part in data) show(data[part]);
    // What is older than an hour goes also if nothing new has come.
    showAudit(audit);
    answeredAt = new Date();
    pause = POLL_MS;
    $("away").hidden = true;
    document.body.classList.remove("is-old");
    $("as-of").textContent = `as of ${clock(answeredAt)}`;
  } catch (error) {
    onNoAnswer(error);
  } finally {
    isPolling = false;
    timer = setTimeout(poll, pause);
  }
}

function onNoAnswer(error) {
  pause = Math.min(pause * 1.5, SLOWEST_POLL_MS);
  const isNetwork = error instanceof TypeError || error.name === "TimeoutError";
  const why = isNetwork ? "The daemon does not answer." : `The daemon does not answer as it should: ${error.message}`;
  const old = answeredAt ? ` All below is as of ${clock(answeredAt)}.` : "";
  const text = `${why}${old} Trying again.`;
  if ($("away").textContent !== text) $("away").textContent = text;
  $("away").hidden = false;
  document.body.classList.add("is-old");
  shown.delete("verdict");
  $("verdict").textContent = "No answer";
  $("verdict").dataset.state = "bad";
  // An answer after this one shows everything, whatever it was before.
  tags = [];
}

$("filter").addEventListener("input", placePods);
document.addEventListener("visibilitychange", poll);
poll();
