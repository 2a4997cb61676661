"use strict";
/* The page of a coordinator: what /v1/picture, /v1/exchange and /v1/log say, every ten seconds. */

const lines = lineChart(at("chart"), { clock: true });
const shares = lineChart(at("chart"), { clock: true, share: true });
const grown = lineChart(at("chart"), { counts: "groups sampled", share: true });
const stepSeconds = 60, freshSeconds = 900, mostFamilies = 64, mostReports = 50000, namedLines = 6, bins = 400;
let reports = [], shown = null, refused = new Map(), byPeer = new Map();

const byName = "eval reward, by name", reward = "eval reward";
const metrics = {
  [byName]: null,
  [reward]: (points) => [
    ["mean", points.map(({ held }) => mean(held))],
    ["lowest", points.map(({ held }) => (held.length ? least(held) : null))],
    ["highest", points.map(({ held }) => (held.length ? greatest(held) : null))],
  ],
  "groups per minute": (points) => [
    ["sampled", rates(points, "sampled")],
    ["exchanged", rates(points, "accepted")],
  ],
  "groups trained on per minute": (points) => [
    ["local", rates(points, "trained_local")],
    ["external", rates(points, "trained_external")],
  ],
  "members that report": (points) => [["members", points.map(({ members }) => members)]],
};
const totals = ["sampled", "accepted", "trained_local", "trained_external"];

function rates(points, name) {
  return points.map((point, n) => (n && point[name] >= points[n - 1][name]
    ? ((point[name] - points[n - 1][name]) * 60) / (point.time - points[n - 1].time) : null));
}

/* One point a minute: what each member's newest report before it says. */
function timeline() {
  const newest = new Map(), points = [], sums = Object.fromEntries(totals.map((name) => [name, 0]));
  let next = 0;
  if (!reports.length) return points;
  const first = reports[0].at, last = reports[reports.length - 1].at;
  const step = Math.max(stepSeconds, (last - first) / 1000);
  for (let time = first; time < last + step; time += step) {
    for (; next < reports.length && reports[next].at <= time; next++) {
      const now = reports[next], before = newest.get(now.peer_id);
      for (const name of totals) sums[name] += now[name] - (before ? before[name] : 0);
      newest.set(now.peer_id, now);
    }
    const held = [];
    let members = 0;
    for (const row of newest.values()) {
      if (row.at <= time - freshSeconds) continue;
      members += 1;
      if (row.eval_reward !== null) held.push(row.eval_reward);
    }
    points.push({ time, members, held, ...sums });
  }
  return points;
}

/* Reward of some nodes over `x` of their reports, on one axis of as many places as the chart can show. */
function compared(peers, x) {
  const of = peers.map((peer) => (byPeer.get(peer) ?? []).filter((row) => row.eval_reward !== null));
  const all = of.flat().map(x), low = least(all), high = greatest(all);
  if (!(high > low)) return [[], []];
  const place = (row) => Math.round(((x(row) - low) / (high - low)) * bins);
  const axis = Array.from({ length: bins + 1 }, (_, n) => low + ((high - low) * n) / bins);
  return [axis, of.map((rows, n) => {
    const values = new Array(bins + 1).fill(null);
    for (const row of rows) values[place(row)] = row.eval_reward;
    return [labelOf(peers[n]), values];
  })];
}

const nameOf = (row) => plain(row.name || "?", 64);

/* A member's name, with the end of its id if another one has the same. */
function labelOf(id) {
  const all = shown ? shown.members : [], member = all.find((row) => row.peer_id === id);
  if (!member || !member.name) return short(id);
  return all.filter((row) => row.name === member.name).length > 1 ? `${nameOf(member)} ${short(id)}` : nameOf(member);
}

function chosenChart() {
  const chosen = at("metric").value;
  if (chosen === byName) return at("over").selectedIndex === 1 ? grown : shares;
  return chosen === reward ? shares : lines;
}

function draw() {
  const chosen = at("metric").value, used = chosenChart();
  at("over").disabled = chosen !== byName;
  for (const chart of [lines, shares, grown]) if (chart !== used) chart.clear();
  if (chosen === byName) {
    const [x, series] = compared(nodes.first(namedLines).map((row) => row.peer_id), (row) => (used === grown ? row.sampled : row.at));
    text("chart-empty", x.length ? "" : "The curves begin when two reports with an eval reward have arrived.");
    if (x.length) used.draw(x, series);
    return;
  }
  const points = timeline();
  text("chart-empty", points.length > 1 ? "" : "The curves begin with the second report, about a minute after the first node's start.");
  if (points.length > 1) used.draw(points.map(({ time }) => time), metrics[chosen](points));
}

function show(picture) {
  shown = picture;
  const rows = picture.members, now = picture.time;
  const members = rows.filter((row) => row.standing === "member");
  const fresh = members.filter((row) => row.reported > now - freshSeconds);
  const rewards = fresh.map(held).filter((value) => value !== null);
  const total = (name) => rows.reduce((sum, row) => sum + row[name], 0);
  document.title = `${picture.swarm} · swarm`;
  text("title", `${picture.swarm} · coordinator`);
  text("where", `swarm ${picture.swarm_id.slice(0, 16)}…`);
  const reporting = "nodes report here with: network.coordinator = \"https://…\"";
  if (fresh.length) verdict("good", `${fresh.length} of ${members.length} members report`, "");
  else if (rows.some((row) => row.reported)) verdict("warning", "no member reported in the last 15 minutes", reporting);
  else verdict("warning", "waiting for the first report, which a node sends when it connects", reporting);
  text("members", count(members.length));
  text("members-more", `that use this coordinator; ${count(rows.length - members.length)} left, expired or were revoked`);
  text("held", rewards.length ? mean(rewards).toFixed(3) : "–");
  text("held-more", rewards.length ? `mean of ${rewards.length}; ${least(rewards).toFixed(3)} to ${greatest(rewards).toFixed(3)}` : "nobody measured yet");
  text("made", count(total("sampled")));
  text("exchanged", count(total("accepted")));
  text("exchanged-more", `${count(total("trained_external"))} of them trained on`);
  families.draw(familyRows(fresh));
  const rated = new Map(picture.reputation.map((row) => [row.peer_id, row])), furthest = greatest(members.map((row) => row.version));
  nodes.draw(rows.map((row) => ({ ...row, rated: rated.get(row.peer_id) ?? null, reward: held(row), now, behind: Math.max(0, furthest - row.version) })));
  draw();
}

const held = (row) => mean(Object.values(row.eval_reward));

function familyRows(rows) {
  const found = new Map();
  for (const row of rows) {
    for (const [name, value] of Object.entries(row.eval_reward)) {
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(value);
    }
  }
  /* A member can invent any number of names: those that most members measured are shown. */
  const common = [...found].sort((a, b) => b[1].length - a[1].length).slice(0, mostFamilies);
  return common.map(([name, values]) => ({ name, members: values.length, least: least(values), mean: mean(values), most: greatest(values) }));
}

const figure = (title, of, say = (value) => value.toFixed(2)) => ({ title, kind: "n", value: of, say: (row) => say(of(row)) });

const families = dataTable("families", {
  key: (row) => row.name,
  sort: [0, 1],
  step: mostFamilies,
  columns: [
    { title: "family", kind: "name", value: (row) => row.name, say: (row) => plain(row.name, 64) },
    figure("members", (row) => row.members, count), figure("lowest", (row) => row.least), figure("highest", (row) => row.most),
    { title: "mean", kind: "n wide-card", value: (row) => row.mean, say: (row) => row.mean.toFixed(2), draw: meterCell((row) => row.mean, (row) => row.mean.toFixed(2)) },
  ],
});

const nodes = dataTable("nodes", {
  key: (row) => row.peer_id,
  stale: (row) => row.reported <= row.now - freshSeconds,
  sort: [0, 1],
  changed: () => { if (shown && at("metric").value === byName) draw(); },
  columns: [
    { title: "name", kind: "name", value: nameOf, say: nameOf },
    { title: "peer", kind: "id", value: (row) => row.peer_id, say: (row) => short(row.peer_id), tip: (row) => row.peer_id },
    { title: "until", value: memberUntil, say: memberUntil, tip: () => "end of the membership" },
    { title: "reported", kind: "n", value: (row) => row.reported, say: (row) => (row.reported ? `${span(row.now - row.reported)} ago` : "never") },
    { title: "model", kind: "word", value: (row) => plain(row.model, 32), say: (row) => plain(row.model, 32) || "–", tip: (row) => row.agent },
    figure("version", (row) => row.version, count),
    figure("behind", (row) => row.behind, count),
    { title: "eval", kind: "n", value: (row) => row.reward, say: (row) => share(row.reward), tip: () => "eval reward" },
    figure("sampled", (row) => row.sampled, count),
    figure("accepted", (row) => row.accepted, count),
    { ...figure("trained", (row) => row.trained_external, count), tip: () => "external groups trained on" },
    { title: "rejected", kind: "n", value: (row) => refused.get(row.peer_id) ?? 0, say: (row) => count(refused.get(row.peer_id) ?? 0) },
    { title: "trust", kind: "n", value: (row) => (row.rated ? row.rated.share : null), say: (row) => (row.rated ? percent(row.rated.share) : "–"),
      tip: (row) => (row.rated ? `${row.rated.raters} members reported about it` : "nobody reported about it") },
    { title: "reach", kind: "words", value: (row) => plain(row.reach), say: (row) => plain(row.reach) || "–" },
  ],
});

const taught = countMatrix("taught", { corner: "accepted, from", label: labelOf });
const events = eventLog("log");

function showExchange({ peers, groups }) {
  refused = new Map();
  for (const [, author, , bad] of groups) refused.set(peers[author], (refused.get(peers[author]) ?? 0) + bad);
  const cells = groups.filter(([, , useful]) => useful).map(([learner, author, useful]) => [peers[learner], peers[author], useful]);
  at("taught-section").hidden = cells.length === 0;
  if (cells.length) taught.draw(cells);
}

function take(history) {
  for (const row of history) {
    reports.push(row);
    if (!byPeer.has(row.peer_id)) byPeer.set(row.peer_id, []);
    byPeer.get(row.peer_id).push(row);
  }
  if (reports.length <= mostReports) return;
  reports = reports.slice(-mostReports);
  byPeer = Map.groupBy(reports, (row) => row.peer_id);
}

async function run() {
  await enter();
  for (let after = 0; ; ) {
    try {
      const picture = await (await ask(`/v1/picture?after=${after}`)).json();
      take(picture.history);
      after = reports.length ? reports[reports.length - 1].id : after;
      if (picture.next > 0) continue;
      const exchange = await (await ask("/v1/exchange")).json(), log = await (await ask("/v1/log")).json();
      shown = picture; // names for what follows
      showExchange(exchange);
      show(picture);
      at("log-section").hidden = log.rows.length === 0;
      events.draw(log.rows);
    } catch (error) {
      const locked = error.message === "locked";
      verdict("bad", locked ? "this page has no session" : "the coordinator does not answer",
        locked ? "run: swarm-coordinator open" : "members go on without it");
    }
    await sleep(10);
  }
}

choices(at("metric"), Object.keys(metrics));
for (const id of ["metric", "over"]) at(id).addEventListener("change", draw);
saver("save-chart", "chart", () => chosenChart().records(), () => chosenChart().figure(at("metric").value));
saver("save-families", "families", families.records);
saver("save-nodes", "nodes", nodes.records);
saver("save-taught", "taught", taught.records, taught.figure);
saver("save-log", "events", events.records);
run();
