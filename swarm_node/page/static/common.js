"use strict";
/* What both pages share: the way in, and how things are shown. Every text of a member is set as text,
   never as HTML, without control characters and cut. */

const at = (id) => document.getElementById(id);
const pass = "swarm-node-pass";

async function enter() {
  const key = location.hash.slice(1);
  if (key.length < 40) return; // the name of a part of the page
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

const mostChars = 200;

/* A member's text on one line: control characters, and those that turn the direction of what follows, are blanks. */
function plain(said, most = mostChars) {
  const clean = String(said).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, " ");
  return clean.length > most ? `${clean.slice(0, most - 1)}…` : clean;
}

function text(id, said) { at(id).textContent = said; }

function make(tag, kind = "", said = "") {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (said) made.textContent = said;
  return made;
}

function button(said, pressed) {
  const made = make("button", "", said);
  made.type = "button";
  made.addEventListener("click", pressed);
  return made;
}

function labelled(said, field) {
  const made = make("label", "", `${said} `);
  made.append(field);
  return made;
}

/* Offer these choices in a list, and keep the one that was made if it is still there. */
function choices(list, names) {
  if (list.options.length === names.length && names.every((name, n) => list.options[n].value === name)) return;
  const before = list.value;
  list.replaceChildren(...names.map((name) => new Option(plain(name, 64), name)));
  list.value = names.includes(before) ? before : names[0];
}

/* Terms and what they are, in a list of definitions. */
function define(id, facts) {
  at(id).replaceChildren(...facts.flatMap(([name, said]) => [make("dt", "", name), make("dd", "", said)]));
}

const share = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
const percent = (value) => `${Math.round(value * 100)}%`;
const numbers = new Intl.NumberFormat("en"); // made once: toLocaleString makes one for each number
const count = (value) => numbers.format(value);
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 2 });
const short = (peer) => `…${peer.slice(-8)}`;
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const day = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);
const memberUntil = (row) => (row.standing === "member" ? day(row.until) : plain(row.standing, 32));
/* A number of bytes as `swarm-node peers` writes it: 812 B, 3.4 kB, 12 MB. */
function sizeOf(bytes) {
  if (!bytes) return "–";
  let value = bytes, unit = "B";
  for (const larger of ["kB", "MB", "GB", "TB"]) if (value >= 999.5) [value, unit] = [value / 1e3, larger];
  return `${value.toFixed(unit !== "B" && value < 9.95 ? 1 : 0)} ${unit}`;
}
const counted = (counts) => Object.entries(counts).map(([what, n]) => `${what} ${count(n)}`).join(", ");

function verdict(kind, said, remedy) {
  at("verdict").className = kind;
  text("said", said);
  text("remedy", remedy ? `→ ${remedy}` : "");
}
