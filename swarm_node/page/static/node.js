"use strict";
/* The page of one node: what /v1/events and /v1/history say. */

const rewards = lineChart(at("reward"), { share: true });
const figures = lineChart(at("metrics"), { clock: true });
let evals = [], rows = [], shown = null;

const metrics = {
  "groups a minute": [["given", perMinute("taken")], ["got", perMinute("received")]],
  "groups in an update": [["own", one("own_per_update")], ["of peers", one("peers_per_update")]],
  "age of what is trained on": [["own, in versions", one("lag")], ["peers', in updates", one("age")]],
  "updates a second": [["updates", one("updates_per_second")]],
  "tokens a second": [["sampled", one("sampled_tokens_per_second")], ["trained on", one("trained_tokens_per_second")]],
  "share of groups with mixed rewards": [["own", one("informative_share")]],
  "reward of own groups": [["own", one("own_reward")]],
  "turns of a dialogue": [["own", one("turns")]],
  loss: [["loss", one("loss")]],
  "KL to the policy before": [["KL", one("kl")]],
  entropy: [["entropy", one("entropy")]],
  "share of clipped tokens": [["clipped", one("clipped_share")]],
  "busy share": [["sampler", one("sampler_busy")], ["trainer", one("trainer_busy")]],
  "memory in MB": [["all processes", (_, row) => row.memory / 1e6]],
  "refused messages": [["refused", one("refused")], ["dialogues that end elsewhere", one("replay")]],
};

function one(name) { return (_, row) => row[name] ?? null; }

function perMinute(name) {
  return (before, row) => (before && row.time > before.time && row[name] >= before[name]
    ? ((row[name] - before[name]) * 60) / (row.time - before.time) : null);
}

/* Server-sent events, read by hand: an EventSource cannot send a pass. */
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
      const since = rows.length ? rows[rows.length - 1].time : 0;
      rows.push(...(await (await ask(`/v1/history?since=${since}`)).json()).rows);
      rows = rows.slice(-8192);
      drawMetric();
      showSamples((await (await ask("/v1/samples")).json()).samples);
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
      verdict("bad", locked ? "this page has no pass" : "the node does not answer",
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
  showCards(snapshot);
  showFamilies(snapshot);
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

function showCards(snapshot) {
  const last = evals[evals.length - 1], groups = snapshot.groups, row = snapshot.latest;
  const same = ground(), first = same[0];
  text("held", last ? last.all.toFixed(3) : "–");
  text("held-seen", last ? (last.split ? `seen texts ${last.seen === null ? "–" : last.seen.toFixed(3)}` : "old ground: held out by seed") : "");
  const recent = last && same.find((point) => point.seconds >= last.seconds - 300);
  text("held-more", last ? `${first.all.toFixed(3)} at first, ${signed(last.all - recent.all)} in the last 5 min` : "not measured yet");
  text("updates", count(snapshot.updates));
  text("updates-more", row ? `${row.updates_per_second.toFixed(2)} a second; own ${share2(row.own_per_update)}, peers' ${share2(row.peers_per_update)} groups each` : "");
  text("gave", count(groups.announced ?? groups.published));
  text("gave-more", `groups announced; peers took ${count(groups.taken ?? 0)}`);
  text("got", count(groups.received));
  text("got-more", `groups from peers; trained on ${count(groups.trained_external)}`);
}

/* The newest points, which were measured with one split. Rewards of two splits do not compare. */
function ground() {
  const split = evals.length ? evals[evals.length - 1].split : 0;
  return evals.slice(evals.findLastIndex((point) => point.split !== split) + 1);
}

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
const share2 = (value) => (value === null || value === undefined ? "–" : value.toFixed(1));

function showFamilies(snapshot) {
  const first = ground()[0], last = evals[evals.length - 1], sampled = new Set(snapshot.own_families);
  const names = last ? Object.keys(last.families).sort() : [];
  const choice = at("family"), wanted = ["all families", ...names];
  if (choice.options.length !== wanted.length) {
    choice.replaceChildren(...wanted.map((name) => new Option(name)));
  }
  fill("families", names, (row, name) => {
    const then = first.families[name] ?? 0, now = last.families[name];
    cell(row, name, "name");
    cell(row, sampled.has(name) ? "yes" : "by peers only");
    cell(row, then.toFixed(2), "n");
    cell(row, now.toFixed(2), "n");
    cell(row, "").append(bar(now, `${name}: ${then.toFixed(2)} to ${now.toFixed(2)}`), ` ${signed(now - then)}`);
  });
}

function drawRewards() {
  if (!evals.length) return;
  const chosen = at("family").selectedIndex > 0 ? at("family").value : "";
  const x = evals.map((point) => point.seconds), old = evals.map((point) => !point.split);
  const on = (values) => values.map((value, n) => (old[n] ? null : value));
  const of = chosen ? (point) => point.families[chosen] ?? null : (point) => point.all;
  const values = evals.map(of), lines = old.includes(false) ? parted(chosen || "all families", on(values)) : [];
  if (!chosen && lines.length) {
    if (evals.some((point) => point.borrowed !== null)) {
      lines.splice(1, 0, ["sampled here", on(evals.map((point) => point.own))], ["never sampled", on(evals.map((point) => point.borrowed))]);
    }
    lines.push(["seen texts", on(evals.map((point) => point.seen))]);
  }
  if (old.includes(true)) lines.push(["old ground", values.map((value, n) => (old[n] ? value : null))]);
  rewards.draw(x, lines);
}

/* A line, and apart from it what was measured before the first group of a peer was trained on. */
function parted(label, values) {
  const joined = evals.findIndex((point) => !point.alone);
  const alone = values.slice(0, Math.max(0, joined)).some((value) => value !== null);
  if (joined < 2 || !alone) return [[label, values]];
  return [[label, values.map((value, n) => (n >= joined - 1 ? value : null))],
    ["alone", values.map((value, n) => (n < joined ? value : null))]];
}

function drawMetric() {
  at("metrics-section").hidden = rows.length < 2;
  if (rows.length < 2) return;
  const lines = metrics[at("metric").value].map(([label, of]) => [label, rows.map((row, n) => of(rows[n - 1], row))]);
  figures.draw(rows.map((row) => row.time), lines);
}

function showNodes(snapshot) {
  const names = new Map(snapshot.peers.map((peer) => [peer.peer_id, peer.name || short(peer.peer_id)]));
  text("nodes-more", snapshot.peers.length
    ? `${count(snapshot.peers.length)} known. A score is the least share of a peer's groups that is of use, with 95% confidence.`
    : "no peers yet: give a ticket to another machine (swarm-node invite --help)");
  fill("nodes", [...snapshot.peers, ...snapshot.former], (row, peer) => {
    cell(row, peer.name || "?", "name").title = peer.issuer ? `admitted by ${peer.issuer}` : "";
    cell(row, short(peer.peer_id), "id").title = peer.peer_id;
    cell(row, peer.standing === "member" ? `until ${day(peer.until)}` : peer.standing);
    cell(row, count(peer.version), "n");
    cell(row, span(peer.seconds_since_seen), "n");
    cell(row, `${count(peer.received)} of ${count(peer.published)}`, "n");
    cell(row, percent(peer.share), "n");
    cell(row, peer.score.toFixed(2), "n");
    cell(row, peer.via === null ? "–" : peer.via === "" ? "direct" : `via ${names.get(peer.via) ?? short(peer.via)}`);
    const left = peer.left_seconds > 0 ? `; left alone for ${span(peer.left_seconds)}` : "";
    cell(row, counted(peer.refused) + left, "words");
  });
}

function showTaught(snapshot) {
  const taught = snapshot.taught ?? [];
  at("taught-section").hidden = taught.length === 0;
  if (!taught.length) return;
  text("taught-more", "Good answers of peers that this node trained on, by peer and family. What each of them gained cannot be told apart.");
  const names = new Map(snapshot.peers.map((peer) => [peer.peer_id, peer.name]));
  const families = [...new Set(taught.map((row) => row.family))].sort();
  const peers = new Map();
  for (const row of taught) {
    if (!peers.has(row.peer_id)) peers.set(row.peer_id, {});
    peers.get(row.peer_id)[row.family] = row.answers;
  }
  const head = document.createElement("tr");
  for (const name of ["peer", ...families, "all"]) {
    const title = document.createElement("th");
    title.scope = "col";
    title.textContent = name;
    if (name !== "peer") title.className = "n";
    head.append(title);
  }
  at("taught").tHead.replaceChildren(head);
  const total = (counts) => Object.values(counts).reduce((sum, n) => sum + n, 0);
  fill("taught", [...peers].sort((a, b) => total(b[1]) - total(a[1])), (row, [peer, counts]) => {
    cell(row, `${names.get(peer) || "?"} ${short(peer)}`, "name");
    for (const family of families) cell(row, counts[family] ? count(counts[family]) : "–", "n");
    cell(row, count(total(counts)), "n");
  });
}

function showSamples(samples) {
  const names = new Map((shown ? shown.peers : []).map((peer) => [peer.peer_id, peer.name]));
  at("samples-section").hidden = samples.length === 0;
  at("samples").replaceChildren(...samples.map((sample) => {
    const place = document.createElement("div"), head = document.createElement("p"), mark = document.createElement("span");
    place.className = "sample";
    head.className = "small";
    mark.className = sample.reward >= 0.5 ? "right" : "wrong";
    mark.textContent = `${sample.reward >= 0.5 ? "✓" : "✗"} ${share(sample.reward)}`;
    const who = sample.author ? `peer ${names.get(sample.author) || short(sample.author)}` : "this node";
    head.append(`${sample.family} · ${who} · version ${count(sample.version)} · `, mark);
    const question = document.createElement("pre"), answer = document.createElement("pre");
    question.textContent = sample.prompt;
    answer.textContent = sample.answer;
    place.append(head, question, answer);
    return place;
  }));
}

function showMachine(snapshot) {
  const member = snapshot.membership, row = snapshot.latest, relays = snapshot.relaying, told = snapshot.coordinator;
  const facts = {
    "peer id": snapshot.peer_id,
    addresses: snapshot.addresses.join("  ") || "–",
    membership: member ? `${member.name}, by ${member.issuer}, until ${day(member.until)}` : "–",
    reach: snapshot.reach ? snapshot.reach.text : "–",
    coordinator: told ? `${told.url}: ${told.fault || `${count(told.introduced)} introductions`}` : "–",
    sampler: snapshot.engine,
    judging: snapshot.sandbox || "–",
    busy: row ? `sampler ${percent(row.sampler_busy)}, trainer ${percent(row.trainer_busy)}` : "–",
    memory: row ? `${(row.memory / 1e9).toFixed(1)} GB` : "–",
    relays: relays ? `${count(relays.relayed)} of ${count(relays.asked)} requests relayed`
      + (relays.serves ? `; forwarded ${count(relays.requests)} for others` : "") : "–",
    refused: counted(snapshot.rejected) || "nothing",
    faults: counted(snapshot.faults) || "none",
  };
  at("machine").replaceChildren(...Object.entries(facts).flatMap(([name, said]) => {
    const term = document.createElement("dt"), what = document.createElement("dd");
    term.textContent = name;
    what.textContent = said;
    return [term, what];
  }));
}

at("metric").replaceChildren(...Object.keys(metrics).map((name) => new Option(name)));
at("metric").addEventListener("change", drawMetric);
at("family").addEventListener("change", drawRewards);
run();
