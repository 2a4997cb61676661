"use strict";
/* A table that its headings sort and words filter. On a narrow screen each row is a card, and a list sorts. Rows
   stay between two drawings and only what changed is written, so that hundreds of nodes cost little. */

const tableStep = matchMedia("(max-width: 860px)").matches ? 12 : 50, fewRows = 6;
const isNumber = ({ kind }) => (kind ?? "").split(" ").includes("n");
const letters = new Intl.Collator("en", { numeric: true });

/* `changed` is called when a person filters or sorts. `columns` are {title, kind, value, say, tip, draw}: what a row is sorted by, its text, its tip, and how its cell is
   drawn if not as text. `key` names a row. `sort` is the column that sorts first, with -1 for the greatest first. Rows that are `stale` are grey. */
function dataTable(id, { columns, key, sort, step = tableStep, changed = () => {}, stale = () => false }) {
  const table = at(id), known = new Map(), tools = make("div", "tools");
  const look = make("input"), by = make("select"), found = make("span", "small");
  const turn = button("", () => order(column, -way)), more = button("", () => { most += step; show(); });
  let all = [], seen = [], most = step, [column, way] = sort;

  function order(next, direction) {
    [column, way] = [next, direction];
    show();
    changed();
  }

  function heading(of, n) {
    const head = make("th", isNumber(of) ? "n" : "");
    head.scope = "col";
    head.setAttribute("role", "columnheader");
    head.append(button(of.title, () => order(n, n === column ? -way : isNumber(of) ? -1 : 1)));
    return head;
  }

  function build() {
    const head = make("thead"), body = make("tbody"), row = make("tr");
    table.className = "data";
    for (const [part, role] of [[table, "table"], [head, "rowgroup"], [body, "rowgroup"], [row, "row"]]) part.setAttribute("role", role);
    row.append(...columns.map(heading));
    head.append(row);
    table.replaceChildren(head, body);
    look.type = "search";
    look.maxLength = 64;
    found.setAttribute("role", "status");
    by.append(...columns.map(({ title }, n) => new Option(title, n)));
    look.addEventListener("input", () => { most = step; show(); changed(); });
    by.addEventListener("change", () => order(Number(by.value), isNumber(columns[by.value]) ? -1 : 1));
    const sorting = make("span", "narrow");
    sorting.append(labelled("sort by", by), turn);
    tools.append(labelled("filter", look), sorting, found);
    table.before(tools);
    more.className = "more";
    table.after(more);
  }

  function made(name) {
    const row = make("tr"), cells = columns.map(({ title, kind }) => {
      const cell = make("td", kind ?? "");
      cell.setAttribute("role", "cell");
      cell.dataset.label = title;
      return cell;
    });
    row.setAttribute("role", "row");
    row.append(...cells);
    known.set(name, { row, cells, said: [], tips: [] });
    return known.get(name);
  }

  function write(line) {
    const name = key(line), held = known.get(name) ?? made(name);
    columns.forEach((of, n) => {
      const said = of.say(line), tip = of.tip ? plain(of.tip(line)) : "";
      if (held.said[n] !== said) {
        held.said[n] = said;
        held.cells[n].classList.toggle("none", said === "" || said === "–");
        if (of.draw) of.draw(held.cells[n], line);
        else held.cells[n].textContent = said;
      }
      if ((held.tips[n] ?? "") !== tip) held.cells[n].title = held.tips[n] = tip;
    });
    held.row.classList.toggle("stale", stale(line));
    held.line = line;
    return name;
  }

  function compare(one, other) {
    const of = columns[column], a = of.value(one.line), b = of.value(other.line);
    if (a === null || b === null) return (a === null) - (b === null);
    return way * (typeof a === "number" && typeof b === "number" ? a - b : letters.compare(a, b));
  }

  function show() {
    const words = look.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = ({ said }) => { const whole = said.join("\n").toLowerCase(); return words.every((word) => whole.includes(word)); };
    seen = all.map((name) => known.get(name)).filter((held) => !words.length || has(held)).sort(compare);
    const body = table.tBodies[0], shown = seen.slice(0, most);
    shown.forEach(({ row }, n) => { if (body.rows[n] !== row) body.insertBefore(row, body.rows[n] ?? null); });
    while (body.rows.length > shown.length) body.lastChild.remove();
    [...table.tHead.rows[0].cells].forEach((head, n) => {
      if (n === column) head.setAttribute("aria-sort", way < 0 ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    by.value = column;
    turn.textContent = way < 0 ? "greatest first" : "least first";
    const told = words.length ? `${count(seen.length)} of ${count(all.length)}` : count(all.length);
    if (found.textContent !== told) found.textContent = told;
    more.hidden = seen.length <= most;
    more.textContent = `show ${count(Math.min(step, seen.length - most))} more of ${count(seen.length)}`;
  }

  function draw(lines) {
    all = lines.map(write);
    tools.hidden = all.length < fewRows && !look.value;
    const now = new Set(all);
    for (const name of known.keys()) if (!now.has(name)) known.delete(name);
    show();
  }

  /* All rows that the filter lets through, as they are sorted, for a file. */
  function records() {
    return seen.map(({ line }) => Object.fromEntries(columns.map((of) => [of.title, of.save ? of.save(line) : of.value(line)])));
  }

  build();
  return { draw, records, first: (many) => seen.slice(0, many).map(({ line }) => line) };
}

/* Draws a cell as a bar of a share, with words. */
function meterCell(of, say) {
  return (cell, row) => {
    const meter = make("meter");
    meter.value = of(row);
    meter.setAttribute("aria-label", `${plain(row.name, 64)}: ${of(row).toFixed(2)}`);
    cell.replaceChildren(meter, ` ${say(row)}`);
  };
}
