"use strict";
/* The page of a coordinator: what /v1/picture says, every ten seconds. */

const lines = lineChart(at("chart"), { clock: true });
const shares = lineChart(at("chart"), { clock: true, share: true });
const stepSeconds = 60, mostFamilies = 64;
let reports = [], shown = null;

const metrics = {
  "reward on unseen texts": (points) => [
    ["mean", points.map(({ held }) => mean(held))],
    ["least", points.map(({ held }) => (held.length ? Math.min(...held) : null))],
    ["most", points.map(({ held }) => (held.length ? Math.max(...held) : null))],
  ],
  "groups a minute": (points) => [
    ["made", rates(points, "published")],
    ["exchanged", rates(points, "received")],
  ],
  "groups trained on a minute": (points) => [
    ["own", rates(points, "trained_own")],
    ["of peers", rates(points, "trained_external")],
  ],
  "members that report": (points) => [["members", points.map(({ members }) => members)]],
};

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

function rates(points, name) {
  return points.map((point, n) => (n && point[name] >= points[n - 1][name]
    ? ((point[name] - points[n - 1][name]) * 60) / (point.time - points[n - 1].time) : null));
}

/* One point a minute: what each member's newest report before it says. */
function timeline() {
  const newest = new Map(), points = [];
  let next = 0;
  if (!reports.length) return points;
  const first = reports[0].at, last = reports[reports.length - 1].at;
  const step = Math.max(stepSeconds, (last - first) / 1000);
  for (let time = first; time < last + step; time += step) {
    for (; next < reports.length && reports[next].at <= time; next++) newest.set(reports[next].peer_id, reports[next]);
    const rows = [...newest.values()], sum = (name) => rows.reduce((total, row) => total + row[name], 0);
    points.push({
      time, members: rows.filter((row) => row.at > time - 900).length,
      held: rows.filter((row) => row.held_out !== null && row.at > time - 900).map((row) => row.held_out),
      published: sum("published"), received: sum("received"),
      trained_own: sum("trained_own"), trained_external: sum("trained_external"),
    });
  }
  return points;
}

function draw() {
  const chosen = at("metric").value, points = timeline();
  if (points.length < 2) return;
  const [used, other] = chosen === "reward on unseen texts" ? [shares, lines] : [lines, shares];
  other.clear();
  used.draw(points.map(({ time }) => time), metrics[chosen](points));
}

function show(picture) {
  shown = picture;
  const rows = picture.members, now = picture.time;
  const members = rows.filter((row) => row.standing === "member");
  const fresh = members.filter((row) => row.reported > now - 900);
  const held = (row) => mean(Object.values(row.held_out));
  const rewards = fresh.map(held).filter((value) => value !== null);
  const total = (name) => rows.reduce((sum, row) => sum + row[name], 0);
  document.title = `${picture.swarm} · swarm`;
  text("title", `${picture.swarm} · coordinator`);
  text("where", `swarm ${picture.swarm_id.slice(0, 16)}…`);
  if (fresh.length) verdict("good", `${fresh.length} of ${members.length} members report`, "");
  else verdict("warning", "no member reported in the last 15 minutes", "nodes report here with: network.coordinator = \"https://…\"");
  text("members", count(members.length));
  text("members-more", `${count(rows.length - members.length)} left, expired or were revoked`);
  text("held", rewards.length ? mean(rewards).toFixed(3) : "–");
  text("held-more", rewards.length ? `mean of ${rewards.length}; ${Math.min(...rewards).toFixed(3)} to ${Math.max(...rewards).toFixed(3)}` : "nobody measured yet");
  text("made", count(total("published")));
  text("exchanged", count(total("received")));
  text("exchanged-more", `${count(total("trained_external"))} of them trained on`);
  showFamilies(fresh);
  showNodes(rows, new Map(picture.reputation.map((row) => [row.peer_id, row])), now, held);
  draw();
}

function showFamilies(rows) {
  const families = new Map();
  for (const row of rows) {
    for (const [name, reward] of Object.entries(row.held_out)) {
      if (!families.has(name)) families.set(name, []);
      families.get(name).push(reward);
    }
  }
  /* A member can invent any number of names: those that most members measured are shown. */
  const common = [...families].sort((a, b) => b[1].length - a[1].length).slice(0, mostFamilies);
  fill("families", common.sort(), (row, [name, rewards]) => {
    cell(row, name, "name");
    cell(row, Math.min(...rewards).toFixed(2), "n");
    cell(row, mean(rewards).toFixed(2), "n");
    cell(row, Math.max(...rewards).toFixed(2), "n");
    cell(row, "").append(bar(mean(rewards), `${name}: ${mean(rewards).toFixed(2)}`));
  });
}

function showNodes(rows, reputation, now, held) {
  const sorted = [...rows].sort((a, b) => b.reported - a.reported);
  fill("nodes", sorted, (row, member) => {
    const rated = reputation.get(member.peer_id), reward = held(member);
    cell(row, member.name || "?", "name");
    cell(row, short(member.peer_id), "id").title = member.peer_id;
    cell(row, member.standing === "member" ? `until ${day(member.until)}` : member.standing);
    cell(row, member.reported ? `${span(now - member.reported)} ago` : "never", "n");
    cell(row, member.model || "–").title = member.agent;
    cell(row, count(member.version), "n");
    cell(row, reward === null ? "–" : reward.toFixed(3), "n");
    cell(row, count(member.published), "n");
    cell(row, count(member.received), "n");
    cell(row, count(member.trained_external), "n");
    const rating = cell(row, rated ? percent(rated.share) : "–", "n");
    rating.title = rated ? `${rated.raters} members reported about it` : "nobody reported about it";
    cell(row, member.reach || "–", "words");
  });
}

async function run() {
  await enter();
  for (let after = 0; ; ) {
    try {
      const picture = await (await ask(`/v1/picture?after=${after}`)).json();
      reports.push(...picture.history);
      reports = reports.slice(-50000);
      after = reports.length ? reports[reports.length - 1].id : after;
      if (picture.next > 0) continue;
      show(picture);
    } catch (error) {
      const locked = error.message === "locked";
      verdict("bad", locked ? "this page has no pass" : "the coordinator does not answer",
        locked ? "run: swarm-coordinator open" : "members go on without it");
    }
    await sleep(10);
  }
}

at("metric").replaceChildren(...Object.keys(metrics).map((name) => new Option(name)));
at("metric").addEventListener("change", draw);
run();
