"use strict";
/* Figures for a file: shapes, drawn as SVG or on a canvas. The colours are those of the page. */

const svgSpace = "http://www.w3.org/2000/svg", figureFont = "system-ui, sans-serif";

/* Shapes: {line: [[x, y], …], stroke, wide, dash}, {box: [x, y, w, h], fill}, {text, at: [x, y], end, fill, size, up}. */
function svgOf({ width, height, shapes }) {
  const root = document.createElementNS(svgSpace, "svg");
  const add = (tag, facts, said = "") => {
    const made = document.createElementNS(svgSpace, tag);
    for (const [name, value] of Object.entries(facts)) made.setAttribute(name, value);
    made.textContent = said;
    root.append(made);
  };
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "font-family": figureFont })) root.setAttribute(name, value);
  add("rect", { width, height, fill: colour("--card") });
  for (const shape of shapes) {
    if (shape.line) {
      const points = shape.line.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
      add("polyline", { points, fill: "none", stroke: shape.stroke, "stroke-width": shape.wide ?? 1, "stroke-dasharray": (shape.dash ?? []).join(" ") });
    } else if (shape.box) {
      const [x, y, w, h] = shape.box;
      add("rect", { x, y, width: w, height: h, fill: shape.fill });
    } else {
      const [x, y] = shape.at, turned = shape.up ? { transform: `rotate(-90 ${x} ${y})` } : {};
      add("text", { x, y, fill: shape.fill, "font-size": shape.size ?? 12, "text-anchor": shape.end ?? "start", ...turned }, shape.text);
    }
  }
  return new XMLSerializer().serializeToString(root);
}

function canvasOf({ width, height, shapes }, scale = 2) {
  const canvas = make("canvas"), pen = canvas.getContext("2d"), ends = { middle: "center", end: "right" };
  [canvas.width, canvas.height] = [width * scale, height * scale];
  pen.scale(scale, scale);
  pen.fillStyle = colour("--card");
  pen.fillRect(0, 0, width, height);
  for (const shape of shapes) {
    if (shape.line) {
      pen.beginPath();
      shape.line.forEach(([x, y], n) => (n ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      [pen.strokeStyle, pen.lineWidth] = [shape.stroke, shape.wide ?? 1];
      pen.setLineDash(shape.dash ?? []);
      pen.stroke();
    } else if (shape.box) {
      pen.fillStyle = shape.fill;
      pen.fillRect(...shape.box);
    } else {
      pen.save();
      pen.translate(...shape.at);
      if (shape.up) pen.rotate(-Math.PI / 2);
      [pen.fillStyle, pen.font, pen.textAlign] = [shape.fill, `${shape.size ?? 12}px ${figureFont}`, ends[shape.end] ?? "left"];
      pen.fillText(shape.text, 0, 0);
      pen.restore();
    }
  }
  return canvas;
}

/* Round numbers from `low` to `high`, about `many` of them. */
function ticksOf(low, high, many = 6) {
  const raw = (high - low) / many, power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw) ?? 10 * power;
  const first = Math.ceil(low / step), last = Math.floor(high / step);
  return Array.from({ length: Math.min(64, Math.max(0, last - first + 1)) }, (_, n) => Number(((first + n) * step).toPrecision(12)));
}

/* Lines through points with values; a point without one is left out, as on the page. */
function chartFigure(title, x, series, { shareAxis, sayX, styleOf }) {
  const width = 900, left = 64, right = 884, top = 40, bottom = 380, ink = colour("--ink"), dim = colour("--dim"), rule = colour("--line");
  const values = series.flatMap(([, ys]) => ys).filter((y) => y !== null && y !== undefined);
  const [low, high] = shareAxis ? [0, 1] : fromZero(null, least(values), greatest(values));
  const first = x[0], last = x[x.length - 1];
  const px = (value) => left + ((value - first) / (last - first || 1)) * (right - left);
  const py = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
  const shapes = [{ text: title, at: [left, 22], fill: ink, size: 15 }];
  for (const tick of ticksOf(low, high)) {
    shapes.push({ line: [[left, py(tick)], [right, py(tick)]], stroke: rule });
    shapes.push({ text: String(tick), at: [left - 8, py(tick) + 4], end: "end", fill: dim });
  }
  for (let n = 0; n <= 6; n++) {
    const value = first + ((last - first) * n) / 6;
    shapes.push({ text: sayX(value), at: [px(value), bottom + 20], end: n === 0 ? "start" : n === 6 ? "end" : "middle", fill: dim });
  }
  series.forEach(([label, ys], n) => {
    const { stroke, wide, dash } = styleOf(label, n);
    const line = ys.flatMap((y, m) => (y === null || y === undefined ? [] : [[px(x[m]), py(y)]]));
    const row = Math.floor(n / 3), from = left + (n % 3) * 275, y = bottom + 46 + 20 * row;
    shapes.push({ line, stroke, wide, dash }, { line: [[from, y - 4], [from + 24, y - 4]], stroke, wide, dash });
    shapes.push({ text: plain(label, 36), at: [from + 30, y], fill: ink });
  });
  return { width, height: bottom + 60 + 20 * Math.floor(Math.max(0, series.length - 1) / 3), shapes };
}

function matrixFigure(rows, columns, counts) {
  const cell = 46, left = 220, top = 200, most = Math.max(1, ...counts.flat().map(({ n, rest }) => (rest ? 0 : n))), shapes = [];
  const ink = colour("--ink"), dim = colour("--dim");
  columns.forEach((name, n) => shapes.push({ text: plain(name, 28), at: [left + (n + 0.6) * cell, top - 8], fill: dim, up: true }));
  rows.forEach((name, m) => {
    shapes.push({ text: plain(name, 30), at: [left - 8, top + (m + 0.6) * cell], end: "end", fill: ink });
    counts[m].forEach(({ n, rest }, k) => {
      const shade = rest ? "shade-0" : shadeOf(n, most);
      shapes.push({ box: [left + k * cell, top + m * cell, cell - 2, cell - 2], fill: colour(`--${shade}`) });
      shapes.push({ text: n ? compact.format(n) : "·", at: [left + (k + 0.48) * cell, top + (m + 0.58) * cell], end: "middle", fill: ink });
    });
  });
  return { width: left + columns.length * cell + 16, height: top + rows.length * cell + 16, shapes };
}

/* Without spreading into arguments, of which a browser takes only so many. */
const least = (values) => values.reduce((low, value) => Math.min(low, value), Infinity);
const greatest = (values) => values.reduce((high, value) => Math.max(high, value), -Infinity);
