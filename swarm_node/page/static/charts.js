"use strict";
/* Line charts with uPlot, in the colours of the page and as wide as their place. */

/* Seconds between two marks: what people read as time. */
const steps = [1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
/* Lines that stand behind the others. */
const dim = ["isolated", "training prompts"], thin = ["training prompts"];
const colours = ["--one", "--two", "--three", "--four", "--five", "--six"];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function styleOf(label, at) {
  return {
    stroke: colour(dim.includes(label) ? "--dim" : colours[at % colours.length]),
    wide: thin.includes(label) ? 1 : 2,
    dash: at % 6 === 2 || at >= colours.length ? [6, 4] : undefined,
  };
}

/* Numbers on an axis of counts. */
const counts = { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 1e7], values: (_, ticks) => ticks.map((tick) => compact.format(tick)) };

/* A chart in `place`. `draw(x, series)` shows it anew: x in seconds, or in what `axis.counts` names; series as
   [label, values]. */
function lineChart(place, axis) {
  let chart = null, shape = "", last = null;

  function options(labels) {
    const line = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    return {
      width: Math.max(place.clientWidth, 200),
      height: 240,
      scales: { x: { time: axis.clock === true }, y: { range: axis.share ? [0, 1] : fromZero } },
      axes: [
        axis.counts ? { ...line, ...counts } : axis.clock ? { ...line, incrs: steps.filter((step) => step >= 60), values: (_, ticks) => ticks.map(clock) } : { ...line, incrs: steps, values: (_, ticks) => ticks.map(tickSpan) },
        { ...line, size: 52 },
      ],
      series: [
        { label: axis.counts ?? (axis.clock ? "time" : "up"), value: (plot, v, n, index) => sayX(shownValue(plot, v, n, index)) },
        ...labels.map((label, at) => ({
          label: plain(label, 32), stroke: styleOf(label, at).stroke, width: styleOf(label, at).wide, dash: styleOf(label, at).dash, spanGaps: true,
          value: (plot, v, n, index) => { const held = shownValue(plot, v, n, index); return held === null ? "–" : Number(held.toPrecision(3)).toString(); },
        })),
      ],
    };
  }

  const sayX = axis.counts ? count : axis.clock ? moment : span;

  function draw(x, series) {
    last = [x, series];
    const labels = series.map(([label]) => label), now = labels.join("\n");
    if (chart === null || shape !== now) {
      if (chart !== null) chart.destroy();
      chart = new uPlot(options(labels), [x, ...series.map(([, values]) => values)], place);
      shape = now;
    } else {
      chart.setData([x, ...series.map(([, values]) => values)]);
    }
  }

  function clear() {
    if (chart !== null) chart.destroy();
    chart = null;
  }

  /* What is drawn, as rows for a file, and as a figure. */
  function records() {
    const [x, series] = last ?? [[], []], name = axis.counts ?? (axis.clock ? "time" : "seconds");
    return x.map((value, n) => ({ [name]: value, ...Object.fromEntries(series.map(([label, values]) => [label, values[n] ?? null])) }));
  }

  function figure(title) {
    return chartFigure(title, ...(last ?? [[], []]), { shareAxis: axis.share === true, sayX, styleOf });
  }

  function again() {
    if (chart === null) return;
    clear();
    draw(...last);
  }

  new ResizeObserver(() => {
    if (chart !== null && Math.abs(place.clientWidth - chart.width) > 2) chart.setSize({ width: place.clientWidth, height: 240 });
  }).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return { draw, clear, records, figure };
}

/* What a legend shows: the value under the cursor or, without one, the newest of the line. */
function shownValue(plot, value, n, index) {
  if (index !== null && index !== undefined) return value ?? null;
  return (plot.data?.[n] ?? []).findLast((held) => held !== null && held !== undefined) ?? null;
}

function fromZero(_, low, high) {
  const least = Math.min(0, low ?? 0), most = Math.max(0, high ?? 1);
  return most > least ? [least, most + (most - least) / 20] : [0, 1];
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
}

/* A moment with its day, if that is not today. */
function moment(seconds) {
  const day = new Date(seconds * 1000);
  return day.toDateString() === new Date().toDateString() ? clock(seconds) : `${day.toLocaleDateString([], { month: "short", day: "numeric" })} ${clock(seconds)}`;
}

/* A tick at half a minute, which `span` rounds. */
function tickSpan(seconds) {
  return seconds >= 120 && seconds < 7200 && seconds % 60 ? `${(seconds / 60).toFixed(1)} min` : span(seconds);
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} d`;
}
