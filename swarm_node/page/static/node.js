"use strict";
/* The page of one node: what /v1/events and /v1/history say. */

const rewards = lineChart(at("reward"), { share: true });
const grown = lineChart(at("reward"), { share: true, counts: "groups sampled here" });
const figures = lineChart(at("metrics"), { clock: true });
let evals = [], rows = [], shown = null, charts = null;

/* The values of a figure in each row. The title of a chart says if they are drawn in another unit. */
function drawn(title, name) {
  if (title.endsWith(" per minute")) return rows.map((row, n) => perMinute(name, rows[n - 1], row));
  const unit = title.endsWith(" in MB") ? 1e6 : 1;
  return rows.map((row) => (row[name] === null ? null : row[name] / unit));
}

function perMinute(name, before, row) {
  return before && row.time > before.time && row[name] >= before[name]
    ? ((row[name] - before[name]) * 60) / (row.time - before.time) : null;
}

/* Server-sent events, read by hand: an EventSource cannot send a key. */
async function listen() {
  const reader = (await ask("/v1/events")).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  evals = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the node ended");
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      show(JSON.parse(text.slice(6, end)));
    }
  }
}

async function remember() {
  for (;;) {
    try {
      charts ??= await (await ask("/v1/charts")).json();
      choices(at("metric"), Object.keys(charts));
      const since = rows.length ? rows[rows.length - 1].time : 0;
      rows.push(...(await (await ask(`/v1/history?since=${since}`)).json()).rows);
      rows = rows.slice(-8192);
      drawMetric();
      if (overMade()) drawRewards();
      samples.draw((await (await ask("/v1/samples")).json()).samples, named);
      showLog((await (await ask("/v1/log")).json()).rows);
      showSettings((await (await ask("/v1/settings")).json()).settings);
    } catch (error) {
      console.info(error.message);
    }
    await sleep(10);
  }
}

async function run() {
  await enter();
  remember();
  for (;;) {
    try {
      await listen();
    } catch (error) {
      const locked = error.message === "locked";
      verdict("bad", locked ? "this page has no session" : "the node does not answer",
        locked ? "run: swarm-node open" : "it ended, or is busy; a node that starts again needs: swarm-node open");
    }
    await sleep(3);
  }
}

/* ---- what is shown ---------------------------------------------------------------------------- */

function show(snapshot) {
  shown = snapshot;
  evals.push(...snapshot.evals);
  evals = evals.slice(-4000);
  const own = snapshot.membership ? snapshot.membership.name : short(snapshot.peer_id);
  document.title = `${snapshot.swarm} · ${own}`;
  text("title", `${snapshot.swarm} · ${snapshot.model} · ${own}`);
  text("where", `${short(snapshot.peer_id)} · ${snapshot.state} · up ${span(snapshot.seconds)}`
    + (snapshot.reach ? ` · ${snapshot.reach.text}` : ""));
  showVerdict(snapshot);
  showNow(snapshot);
  showCards(snapshot);
  showFamilies(snapshot);
  showLevels(snapshot);
  showNodes(snapshot);
  showTaught(snapshot);
  showMachine(snapshot);
  drawRewards();
}

function showVerdict(snapshot) {
  const [first, ...others] = snapshot.findings;
  if (first) verdict(first.level, first.text, first.remedy);
  else verdict("warning", snapshot.state, "");
  const further = others.map((found) => found.text + (found.remedy ? ` → ${found.remedy}` : ""));
  const known = new Set(snapshot.findings.map((found) => found.text));
  const alarms = snapshot.alarms.filter((said) => !known.has(said.split(": ")[0]));
  at("alarms").replaceChildren(...[...further, ...alarms].map((said) => {
    const item = document.createElement("li");
    item.textContent = said;
    return item;
  }));
}

/* Rows that come and go would move the rest of the page: only those of what happens once do. */
function showNow({ work, steps }) {
  at("now-section").hidden = work === null;
  if (work === null) return;
  const { sampler, done, completions, tokens_per_second: rate, left, training, first_step: first, end } = work;
  const facts = [
    ["sampler", sampler ? `${sampler}: ${done === null ? "" : `${count(done)} of `}${count(completions)} completions`
      + (rate === null ? "" : `, ${count(Math.round(rate))} tokens/s`)
      + (left === null || first !== null ? "" : `, about ${span(left)} left`) : "waits"],
    ["trainer", training === null ? "waits" : `step ${count(steps + 1)} for ${span(training)}`],
  ];
  if (first !== null) facts.push(["first step", `begins in about ${span(first)}`]);
  if (end !== null) facts.push(["all steps", `done in about ${span(end)}`]);
  define("now", facts);
}

function showCards(snapshot) {
  const last = evals[evals.length - 1], groups = snapshot.groups, row = snapshot.latest;
  const same = ground(), first = same[0];
  text("held", last ? last.reward.toFixed(3) : "–");
  text("held-seen", last ? `training prompts ${last.train === null ? "–" : last.train.toFixed(3)}` : "");
  const recent = last && same.find((point) => point.seconds >= last.seconds - 300);
  text("held-more", last ? `${first.reward.toFixed(3)} at first, ${signed(last.reward - recent.reward)} in the last 5 min` : "not measured yet");
  text("steps", count(snapshot.steps));
  text("steps-more", row ? `${row.steps_per_second.toFixed(2)} per second; ${share2(row.local_per_step)} local and ${share2(row.external_per_step)} external groups each` : "");
  text("sampled", count(groups.sampled));
  text("sampled-more", `groups; announced ${count(groups.announced)}, sent to peers ${count(groups.sent)}`);
  text("accepted", count(groups.accepted));
  text("accepted-more", `external groups; trained on ${count(groups.trained_external)}`);
}

/* The newest points, which were measured with one split. Rewards of two splits do not compare. */
function ground() {
  const split = evals.length ? evals[evals.length - 1].split_version : 0;
  return evals.slice(evals.findLastIndex((point) => point.split_version !== split) + 1);
}

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
const share2 = (value) => (value === null || value === undefined ? "–" : value.toFixed(1));

function familyRows() {
  const first = ground()[0], last = evals[evals.length - 1], sampled = new Set(shown.local_families);
  return Object.keys(last ? last.families : {}).sort().map((name) => {
    const then = first.families[name] ?? 0, now = last.families[name];
    return { name, sampled: sampled.has(name) ? "yes" : "by peers only", then, now, change: now - then };
  });
}

function showFamilies() {
  const rows = familyRows();
  choices(at("family"), ["all families", ...rows.map(({ name }) => name)]);
  families.draw(rows);
}

const families = dataTable("families", {
  key: (row) => row.name,
  sort: [0, 1],
  columns: [
    { title: "family", kind: "name", value: (row) => row.name, say: (row) => plain(row.name, 64) },
    { title: "sampled here", value: (row) => row.sampled, say: (row) => row.sampled },
    { title: "at first", kind: "n", value: (row) => row.then, say: (row) => row.then.toFixed(2) },
    { title: "change", kind: "n", value: (row) => row.change, say: (row) => signed(row.change) },
    { title: "now", kind: "n wide-card", value: (row) => row.now, say: (row) => row.now.toFixed(2), draw: meterCell((row) => row.now, (row) => row.now.toFixed(2)) },
  ],
});

const levels = dataTable("levels", {
  key: (row) => row.ladder,
  sort: [0, 1],
  columns: [
    { title: "ladder", kind: "name", value: (row) => row.ladder, say: (row) => plain(row.ladder, 64) },
    { title: "level", value: (row) => row.level, say: (row) => `${row.level} of ${row.levels}${row.placed ? "" : ", being measured"}` },
    { title: "reward", kind: "n", value: (row) => row.reward, say: (row) => (row.reward === null ? "–" : row.reward.toFixed(2)) },
    { title: "measured", kind: "words", value: measured, say: measured },
  ],
});

function measured(row) {
  return plain(Object.entries(row.measured).map(([family, reward]) => `${family} ${reward.toFixed(2)}`).join(", "));
}

function showLevels(snapshot) {
  at("levels-section").hidden = snapshot.levels.length === 0;
  levels.draw(snapshot.levels);
}

function drawRewards() {
  if (overMade()) { drawGrown(); return; }
  grown.clear();
  if (!evals.length) return;
  const chosen = chosenFamily();
  const of = chosen ? (point) => point.families[chosen] ?? null : (point) => point.reward;
  const lines = parted(chosen || "all families", evals.map(of));
  if (!chosen) {
    if (evals.some((point) => point.external_only !== null)) {
      lines.splice(1, 0, ["local families", evals.map((point) => point.local)], ["external-only families", evals.map((point) => point.external_only)]);
    }
    lines.push(["training prompts", evals.map((point) => point.train)]);
  }
  rewards.draw(evals.map((point) => point.seconds), lines);
  explain(lines);
}

/* The caption explains the lines that are drawn, and no others. */
function explain(lines) {
  const labels = new Set(lines.map(([label]) => label));
  for (const note of document.querySelectorAll("[data-line]")) note.hidden = !labels.has(note.dataset.line);
}

const chosenFamily = () => (at("family").selectedIndex > 0 ? at("family").value : "");
const overMade = () => at("over").selectedIndex === 1;

/* Over groups: the rows of the history that measured. */
function drawGrown() {
  rewards.clear();
  const measured = rows.filter((row) => row.split_version), chosen = chosenFamily();
  const points = measured.filter((row, n) => !n || row.sampled > measured[n - 1].sampled);
  if (!points.length) return;
  const all = (row) => (chosen ? row.eval_reward[chosen] ?? null : mean(Object.values(row.eval_reward)));
  const lines = [[chosen || "all families", points.map(all)]];
  if (!chosen) lines.push(["training prompts", points.map((row) => row.eval_reward_train)]);
  grown.draw(points.map((row) => row.sampled), lines);
  explain(lines);
}

/* A line, and apart from it what was measured before the first group of a peer was trained on. */
function parted(label, values) {
  const joined = evals.findIndex((point) => !point.isolated);
  const isolated = values.slice(0, Math.max(0, joined)).some((value) => value !== null);
  if (joined < 2 || !isolated) return [[label, values]];
  return [[label, values.map((value, n) => (n >= joined - 1 ? value : null))],
    ["isolated", values.map((value, n) => (n < joined ? value : null))]];
}

function drawMetric() {
  at("metrics-section").hidden = rows.length < 2;
  if (rows.length < 2) return;
  const title = at("metric").value;
  const lines = Object.entries(charts[title]).map(([label, name]) => [label, drawn(title, name)]);
  figures.draw(rows.map((row) => row.time), lines);
}

const peerName = (peer) => plain(peer.name || "?", 64);
const named = (id) => {
  const peer = shown ? [...shown.peers, ...shown.former].find(({ peer_id }) => peer_id === id) : null;
  return peer && peer.name ? `${peerName(peer)} ${short(id)}` : short(id);
};
/* A peer's name alone, where no other peer has it. */
function nameOnly(id) {
  const all = shown ? [...shown.peers, ...shown.former] : [], peer = all.find(({ peer_id }) => peer_id === id);
  return peer && peer.name && all.filter(({ name }) => name === peer.name).length === 1 ? peerName(peer) : named(id);
}
const linkOf = ({ via }) => (via === null ? "–" : via === "" ? "direct" : `via ${named(via)}`);
const rejections = ({ rejected_by_reason: reasons }) => Object.values(reasons).reduce((sum, n) => sum + n, 0);

/* What sets a peer apart from this node, in words. */
function notes(peer) {
  return [
    peer.lost ? "does not answer" : "", peer.suspended_seconds > 0 ? `suspended for ${span(peer.suspended_seconds)}` : "",
    peer.environment ? `environment ${plain(peer.environment, 64)}` : "", peer.model ? `model ${plain(peer.model, 16)}` : "",
  ].filter(Boolean).join("; ");
}

const nodes = dataTable("nodes", {
  key: (peer) => peer.peer_id,
  sort: [5, 1],
  columns: [
    { title: "name", kind: "name", value: peerName, say: peerName, tip: (peer) => (peer.issuer ? `admitted by ${peer.issuer}` : "") },
    { title: "peer", kind: "id", value: (peer) => peer.peer_id, say: (peer) => short(peer.peer_id), tip: (peer) => peer.peer_id },
    { title: "until", value: (peer) => memberUntil(peer), say: (peer) => memberUntil(peer) },
    { title: "version", kind: "n", value: (peer) => peer.version, say: (peer) => count(peer.version) },
    { title: "ahead", kind: "n", value: (peer) => peer.version - shown.version, say: (peer) => count(peer.version - shown.version).replace("-", "−"),
      tip: () => "versions ahead of this node" },
    { title: "heard", kind: "n", value: (peer) => peer.seconds_since_seen, say: (peer) => `${span(peer.seconds_since_seen)} ago` },
    { title: "accepted", kind: "n", value: (peer) => peer.accepted, say: (peer) => `${count(peer.accepted)} of ${count(peer.announced)}`, tip: () => "of the groups that it announced" },
    { title: "sent", kind: "n", value: (peer) => peer.sent, say: (peer) => count(peer.sent), tip: () => "groups of this node sent to it" },
    { title: "trained on", kind: "n", value: (peer) => peer.trained_fraction, say: (peer) => percent(peer.trained_fraction), tip: () => "fraction of the groups trained on recently" },
    { title: "useful", kind: "n", value: (peer) => peer.useful_fraction, say: (peer) => peer.useful_fraction.toFixed(2), tip: () => "95% lower bound of the fraction of its groups that were useful" },
    { title: "rejected", kind: "words", value: rejections, say: (peer) => plain(counted(peer.rejected_by_reason)) },
    { title: "note", kind: "words", value: notes, say: notes },
  ],
});

/* Of a member that this node has not met. */
const unknown = { via: null, address: "", round_trip: null, bytes_in: 0, bytes_out: 0 };
const reasonOf = ({ reason }) => (reason === null ? "" : plain(reason.text, 200));
const milliseconds = ({ round_trip: trip }) => (trip === null ? "–" : (trip * 1000).toFixed(trip < 0.01 ? 1 : 0));

const links = dataTable("links", {
  key: (peer) => peer.peer_id,
  sort: [0, 1],
  columns: [
    { title: "name", kind: "name", value: peerName, say: peerName },
    { title: "link", value: linkOf, say: linkOf },
    { title: "address", kind: "word", value: (peer) => peer.address, say: (peer) => plain(peer.address, 64) || "–" },
    { title: "ms", kind: "n", value: (peer) => peer.round_trip ?? -1, say: milliseconds, tip: () => "shortest recent round trip" },
    { title: "in", kind: "n", value: (peer) => peer.bytes_in, say: (peer) => sizeOf(peer.bytes_in), tip: () => "received from it since the start" },
    { title: "out", kind: "n", value: (peer) => peer.bytes_out, say: (peer) => sizeOf(peer.bytes_out), tip: () => "sent to it since the start" },
    { title: "note", kind: "words", value: reasonOf, say: reasonOf, tip: ({ reason }) => reason?.remedy ?? "" },
  ],
});

function showNodes(snapshot) {
  text("nodes-more", snapshot.peers.length
    ? `${count(snapshot.peers.length)} known. Trained on: fraction of the groups trained on recently. Useful: 95% lower bound of the fraction of a peer's groups that were useful.`
      + " Nodes do not exchange their eval reward; the dashboard of a coordinator compares it."
    : "no peers yet: give a ticket to another machine (swarm-node invite --help)");
  nodes.draw([...snapshot.peers, ...snapshot.former]);
  at("links-section").hidden = snapshot.peers.length + snapshot.unmet.length === 0;
  links.draw([...snapshot.peers, ...snapshot.unmet.map((member) => ({ ...unknown, ...member }))]);
  const more = snapshot.unmet_total - snapshot.unmet.length;
  text("links-more", more > 0 ? `and ${count(more)} more members that this node has not met` : "");
}

const taught = countMatrix("taught", { corner: "peer, family", label: nameOnly, columnLabel: (family) => plain(family, 40) });

function showTaught(snapshot) {
  const rows = (snapshot.taught ?? []).map((row) => [row.peer_id, row.family, row.rollouts]);
  at("taught-section").hidden = rows.length === 0;
  if (rows.length) taught.draw(rows);
}

const samples = sampleList(), events = eventLog("log");

function showLog(rows) {
  at("log-section").hidden = rows.length === 0;
  events.draw(rows);
}

const settings = dataTable("settings", {
  key: ([name]) => name,
  sort: [0, 1],
  columns: [
    { title: "setting", kind: "name", value: ([name]) => name, say: ([name]) => name },
    { title: "value", kind: "words", value: ([, value]) => JSON.stringify(value), say: ([, value]) => plain(JSON.stringify(value)) },
  ],
});

function showSettings(found) {
  at("settings-section").hidden = false;
  settings.draw(Object.entries(found));
}

function showMachine(snapshot) {
  const member = snapshot.membership, row = snapshot.latest, relays = snapshot.relaying, told = snapshot.coordinator;
  const facts = {
    "peer id": snapshot.peer_id,
    addresses: snapshot.addresses.join("  ") || "–",
    membership: member ? `${member.name}, by ${member.issuer}, until ${day(member.until)}` : "–",
    reachability: snapshot.reach ? snapshot.reach.text : "–",
    coordinator: told ? `${told.url}: ${told.fault || `${count(told.introduced)} peers discovered`}` : "–",
    sampler: snapshot.engine,
    sandbox: snapshot.sandbox || "–",
    busy: row ? `sampler ${percent(row.sampler_busy)}, trainer ${percent(row.trainer_busy)}` : "–",
    memory: row ? `${(row.memory / 1e9).toFixed(1)} GB` : "–",
    relays: relays ? `${count(relays.relayed)} of ${count(relays.asked)} requests relayed`
      + (relays.serves ? `; forwarded ${count(relays.requests)} for others` : "") : "–",
    rejected: counted(snapshot.rejected) || "nothing",
    faults: counted(snapshot.faults) || "none",
  };
  define("machine", Object.entries(facts));
}

at("metric").addEventListener("change", drawMetric);
for (const id of ["family", "over"]) at(id).addEventListener("change", drawRewards);
const rewardChart = () => (overMade() ? grown : rewards);
saver("save-reward", "reward", () => rewardChart().records(), () => rewardChart().figure(`Eval reward: ${plain(at("family").value, 64)}`));
saver("save-metrics", "metrics", figures.records, () => figures.figure(at("metric").value));
saver("save-families", "families", families.records);
saver("save-nodes", "nodes", nodes.records);
saver("save-links", "links", links.records);
saver("save-taught", "taught", taught.records, taught.figure);
saver("save-log", "events", events.records);
saver("save-settings", "settings", settings.records);
run();
