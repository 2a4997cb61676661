"use strict";
/* Completions of a node and its peers: the two newest of a family, or all of the family that is chosen. */

const samplesOfFamily = 2, sampleStep = 12;

function sampleList() {
  const lists = ["sample-family", "sample-by", "sample-mark"].map(at);
  let all = [], most = sampleStep, named = (author) => short(author), last = "";

  function place({ family, author, version, reward, prompt, completion }) {
    const box = make("div", "sample"), head = make("p", "small"), right = reward >= 0.5;
    const who = author ? `peer ${named(author)}` : "this node";
    head.append(`${plain(family, 64)} · ${who} · version ${count(version)} · `, make("span", right ? "right" : "wrong", `${right ? "✓" : "✗"} ${share(reward)}`));
    box.append(head, make("pre", "", prompt), make("pre", "", completion));
    return box;
  }

  function chosen() {
    const [family, by, mark] = lists.map((list) => (list.selectedIndex > 0 ? list.value : ""));
    const fits = all.filter((sample) => (!family || sample.family === family) && (!by || (by === "peers") === Boolean(sample.author))
      && (!mark || (mark === "right") === sample.reward >= 0.5));
    if (family) return fits;
    /* A family's are the first own one, the newest own one and a peer's, in this order. */
    const of = Map.groupBy(fits, (sample) => sample.family);
    return [...of.values()].flatMap((samples) => samples.slice(-samplesOfFamily));
  }

  function show() {
    const now = chosen();
    at("samples").replaceChildren(...now.slice(0, most).map(place));
    text("sample-count", now.length ? `${count(Math.min(most, now.length))} of ${count(now.length)}` : "none");
    at("sample-more").hidden = now.length <= most;
  }

  function draw(samples, naming) {
    const now = JSON.stringify(samples);
    if (now === last) return; // a reader keeps place and selection
    [all, named, last] = [samples, naming, now];
    at("samples-section").hidden = all.length === 0;
    choices(lists[0], ["all families", ...new Set(all.map((sample) => sample.family))]);
    show();
  }

  for (const list of lists) list.addEventListener("change", () => { most = sampleStep; show(); });
  at("sample-more").addEventListener("click", () => { most += sampleStep; show(); });
  return { draw };
}
