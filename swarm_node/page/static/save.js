"use strict";
/* What a figure or a table shows, as a file. The browser makes it; nothing is sent anywhere. */

/* A cell of CSV. A text that a spreadsheet would take for a formula begins with an apostrophe. */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const said = plain(value, 4000), safe = /^[=+\-@]/.test(said) ? `'${said}` : said;
  return /[",;]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvOf(records) {
  const names = [...new Set(records.flatMap((record) => Object.keys(record)))];
  return [names, ...records.map((record) => names.map((name) => record[name]))].map((row) => `${row.map(csvCell).join(",")}\r\n`).join("");
}

function download(name, blob) {
  const link = make("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/* Name of a file: the page's title has names of others. */
function fileName(what, end) {
  const swarm = document.title.split(" · ")[0].replace(/[^A-Za-z0-9_-]+/g, "-").slice(0, 32);
  return `${swarm}-${what}.${end}`;
}

/* Buttons that save `records()` and, if there is one, `figure()`. They stand in the element `id`. */
function saver(id, what, records, figure = null) {
  const text = (end, kind, write) => [end, () => download(fileName(what, end), new Blob([write()], { type: kind }))];
  const kinds = [
    text("csv", "text/csv", () => csvOf(records())),
    text("json", "application/json", () => JSON.stringify(records(), null, 1)),
  ];
  if (figure) {
    kinds.unshift(text("svg", "image/svg+xml", () => svgOf(figure())),
      ["png", () => canvasOf(figure()).toBlob((blob) => download(fileName(what, "png"), blob), "image/png")]);
  }
  const box = make("details", "save");
  box.append(make("summary", "", "save"), ...kinds.map(([end, pressed]) => button(end.toUpperCase(), pressed)));
  at(id).append(box);
}
