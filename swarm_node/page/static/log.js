"use strict";
/* The log of a swarm's events, the newest first. Events of one kind about one node are one line with a count. */

const logStep = 20;

function eventLog(id) {
  const place = at(id), list = make("ol", "log"), kind = make("select"), look = make("input"), more = button("show more", () => { most += logStep; show(); });
  const found = make("span", "small"), tools = make("div", "tools");
  let rows = [], most = logStep;

  function line(row) {
    const item = make("li"), time = make("time", "", moment(row.at));
    time.dateTime = new Date(row.at * 1000).toISOString();
    item.append(time, make("span", `kind ${row.level}`, row.kind), make("strong", "", row.name ? plain(row.name, 64) : short(row.peer_id)),
      make("span", "", `${plain(row.text)}${row.count > 1 ? ` · ${count(row.count)} times since ${moment(row.since)}` : ""}`));
    item.title = plain(row.peer_id);
    return item;
  }

  function chosen() {
    const words = look.value.toLowerCase();
    return rows.filter((row) => (kind.selectedIndex < 1 || row.kind === kind.value)
      && (!words || `${row.name}\n${row.peer_id}\n${row.text}`.toLowerCase().includes(words)));
  }

  function show() {
    const now = chosen();
    list.replaceChildren(...now.slice(0, most).map(line));
    found.textContent = now.length < rows.length ? `${count(now.length)} of ${count(rows.length)}` : "";
    more.hidden = now.length <= most;
  }

  function draw(newest) {
    if (newest.length === rows.length && newest.every((row, n) => row.at === rows[n].at && row.peer_id === rows[n].peer_id && row.count === rows[n].count)) return;
    rows = newest;
    choices(kind, ["every kind", ...[...new Set(rows.map((row) => row.kind))].sort()]);
    show();
  }

  look.type = "search";
  look.maxLength = 64;
  found.setAttribute("role", "status");
  for (const field of [kind, look]) field.addEventListener("input", () => { most = logStep; show(); });
  tools.append(labelled("show", kind), labelled("filter", look), found);
  more.className = "more";
  place.append(tools, list, more);
  return { draw, records: () => chosen().map((row) => ({ ...row })) };
}
