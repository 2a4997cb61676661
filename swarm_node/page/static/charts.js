"use strict";
/* Line charts with uPlot, in the colours of the page and as wide as their place. */

/* Seconds between two marks: what people read as time. */
const steps = [1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800];
/* Lines that stand behind the others. */
const dim = ["alone", "seen texts", "old ground"], thin = ["seen texts"];
const colours = ["--one", "--two", "--three"];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/* A chart in `place`. `draw(x, series)` shows it anew: x in seconds, series as [label, values]. */
function lineChart(place, axis) {
  let chart = null, shape = "", last = null;

  function options(labels) {
    const line = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    return {
      width: Math.max(place.clientWidth, 200),
      height: 240,
      scales: { x: { time: axis.clock === true }, y: { range: axis.share ? [0, 1] : fromZero } },
      axes: [
        axis.clock ? { ...line, values: (_, ticks) => ticks.map(clock) } : { ...line, incrs: steps, values: (_, ticks) => ticks.map(span) },
        { ...line, size: 64 },
      ],
      series: [
        { label: axis.clock ? "time" : "up", value: axis.clock ? undefined : (_, v) => (v === null ? "" : span(v)) },
        ...labels.map((label, at) => ({
          label, stroke: colour(dim.includes(label) ? "--dim" : colours[at % colours.length]), width: thin.includes(label) ? 1 : 2, spanGaps: true,
          dash: at === 2 || label === "old ground" ? [6, 4] : undefined,
          value: (_, v) => (v === null || v === undefined ? "" : Number(v.toPrecision(3)).toString()),
        })),
      ],
    };
  }

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

  function again() {
    if (chart === null) return;
    clear();
    draw(...last);
  }

  new ResizeObserver(() => {
    if (chart !== null && Math.abs(place.clientWidth - chart.width) > 2) chart.setSize({ width: place.clientWidth, height: 240 });
  }).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return { draw, clear };
}

function fromZero(_, low, high) {
  const least = Math.min(0, low ?? 0), most = Math.max(0, high ?? 1);
  return most > least ? [least, most + (most - least) / 20] : [0, 1];
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} d`;
}
