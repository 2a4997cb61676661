"use strict";
/* What both pages share: the way in, and how things are shown. Every text of a member is set as text,
   never as HTML. */

const at = (id) => document.getElementById(id);
const pass = "swarm-node-pass";

async function enter() {
  const key = location.hash.slice(1);
  if (!key) return;
  history.replaceState(null, "", location.pathname);
  const answer = await fetch("/v1/enter", { method: "POST", body: JSON.stringify({ key }) });
  if (answer.ok) localStorage.setItem(pass, (await answer.json()).token);
}

async function ask(path, signal) {
  const answer = await fetch(path, { headers: { Authorization: `Bearer ${localStorage.getItem(pass)}` }, signal });
  if (answer.status === 401) throw new Error("locked");
  if (!answer.ok) throw new Error(`the node answered ${answer.status}`);
  return answer;
}

const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

function text(id, said) { at(id).textContent = said; }

function cell(row, said, kind) {
  const made = document.createElement("td");
  made.textContent = said;
  if (kind) made.className = kind;
  row.append(made);
  return made;
}

function fill(id, items, write) {
  const body = document.createElement("tbody");
  for (const item of items) {
    const row = document.createElement("tr");
    write(row, item);
    body.append(row);
  }
  at(id).tBodies[0].replaceWith(body);
}

function bar(value, label) {
  const meter = document.createElement("meter");
  meter.value = value;
  meter.title = label;
  meter.setAttribute("aria-label", label);
  return meter;
}

const share = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const percent = (value) => `${Math.round(value * 100)}%`;
const numbers = new Intl.NumberFormat("en"); // made once: toLocaleString makes one for each number
const count = (value) => numbers.format(value);
const short = (peer) => `…${peer.slice(-8)}`;
const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);
const counted = (counts) => Object.entries(counts).map(([what, n]) => `${what} ${count(n)}`).join(", ");

function verdict(kind, said, remedy) {
  at("verdict").className = kind;
  text("said", said);
  text("remedy", remedy ? `→ ${remedy}` : "");
}

