"use strict";
/* A matrix of counts with shades: as many rows and columns as fit, those with most first, the rest in one sum. */

/* The class of a count's shade. Sums of what does not fit have none: they would outshine the rest. */
const shadeOf = (n, most) => `shade-${Math.ceil((n / most) * matrixShades)}`;
const greatestShown = (rows, columns, of) => Math.max(1, ...rows.flatMap((r) => columns.map((c) => (r === null || c === null ? 0 : of(r, c)))));

const matrixRows = 12, matrixColumns = 14, matrixCell = 43, matrixShades = 5;

/* `cells` are [row, column, count]; `label` names a key for people. `corner` says what rows and columns are. */
function countMatrix(id, { corner, label = (key) => key, columnLabel = label }) {
  const table = at(id);
  let cells = [], width = 0;

  function sums(n) {
    const found = new Map();
    for (const cell of cells) found.set(cell[n], (found.get(cell[n]) ?? 0) + cell[2]);
    return [...found].sort((a, b) => b[1] - a[1]);
  }

  /* The keys that are shown, and for each key the one in whose place it counts: "" for the rest. */
  function cut(totals, most) {
    const kept = totals.slice(0, totals.length > most ? most - 1 : most).map(([key]) => key);
    return { shown: totals.length > most ? [...kept, null] : kept, held: new Set(kept), rest: totals.length - kept.length };
  }

  /* What is shown: the keys of rows and columns, null for the rest, and their counts. */
  function shown() {
    const room = Math.max(3, Math.floor((table.parentElement.clientWidth - 112) / matrixCell) - 1);
    const rows = cut(sums(0), matrixRows), columns = cut(sums(1), Math.min(matrixColumns, room));
    const at = new Map();
    for (const [row, column, n] of cells) {
      const place = JSON.stringify([rows.held.has(row) ? row : null, columns.held.has(column) ? column : null]);
      at.set(place, (at.get(place) ?? 0) + n);
    }
    return { rows, columns, of: (row, column) => at.get(JSON.stringify([row, column])) ?? 0 };
  }

  const named = (of, { rest }) => (key) => (key === null ? `${count(rest)} others` : plain(of(key), 40));

  function head(kind, said, scope) {
    const made = make("th", kind);
    made.append(make("span", "", said));
    made.title = said;
    made.scope = scope;
    return made;
  }

  function show() {
    width = table.parentElement.clientWidth;
    const { rows, columns, of } = shown(), row = named(label, rows), column = named(columnLabel, columns);
    const most = greatestShown(rows.shown, columns.shown, of);
    const top = make("tr"), begin = make("td", "small", corner), body = make("tbody");
    top.append(begin, ...columns.shown.map((c) => head("across", column(c), "col")), head("across", "all", "col"));
    for (const r of rows.shown) {
      const line = make("tr"), name = row(r);
      let sum = 0;
      line.append(head("name", name, "row"));
      for (const c of columns.shown) {
        const n = of(r, c), cell = make("td", r === null || c === null ? "" : shadeOf(n, most), n ? compact.format(n) : "·");
        cell.title = `${name}, ${column(c)}: ${count(n)}`;
        sum += n;
        line.append(cell);
      }
      line.append(make("td", "sum", compact.format(sum)));
      body.append(line);
    }
    table.className = "matrix";
    const above = make("thead");
    above.append(top);
    table.replaceChildren(above, body);
  }

  function draw(now) {
    const same = now.length === cells.length && now.every((cell, n) => cell.every((value, m) => value === cells[n][m]));
    cells = now;
    if (!same) show();
  }

  new ResizeObserver(() => {
    if (cells.length && Math.abs(table.parentElement.clientWidth - width) > 8) show();
  }).observe(table.parentElement);

  return {
    draw,
    records: () => cells.map(([row, column, n]) => ({ row: label(row), row_id: row, column: columnLabel(column), column_id: column, count: n })),
    figure: () => {
      const { rows, columns, of } = shown();
      return matrixFigure(rows.shown.map(named(label, rows)), columns.shown.map(named(columnLabel, columns)),
        rows.shown.map((r) => columns.shown.map((c) => ({ n: of(r, c), rest: r === null || c === null }))));
    },
  };
}
