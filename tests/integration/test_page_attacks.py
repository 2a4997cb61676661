"""What pages of others can do to a node whose page is open in the same browser: nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from page_server import CHROMIUM, FLAGS, served, snapshot

playwright = pytest.importorskip("playwright.sync_api", reason="NOT RUN: needs playwright")

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="NOT RUN: needs chromium (apt-get install chromium)"
    ),
    pytest.mark.slow(reason="starts a browser"),
]

#: Returns what it could read, run or reach.
_ATTACK = """async (node) => {
  const got = [], pass = localStorage.getItem("swarm-node-pass");
  const bearer = { headers: { Authorization: `Bearer ${pass}` } };
  const read = async (path, how) => {
    try {
      got.push([path, await (await fetch(node + path, how)).text()]);
    } catch { /* refused */ }
  };
  const paths = ["/", "/v1/status", "/v1/events", "/v1/samples", "/metrics", "/static/node.js"];
  for (const path of paths) {
    for (const how of [{}, { credentials: "include" }, bearer]) await read(path, how);
  }
  for (const path of ["/v1/stop", "/v1/key", "/v1/eval", "/v1/enter"]) {
    try {
      await fetch(node + path, { method: "POST", mode: "no-cors", body: "{}" });
    } catch { /* refused */ }
    await read(path, { method: "POST", ...bearer });
  }
  const form = document.createElement("form"), sink = document.createElement("iframe");
  sink.name = "sink";
  Object.assign(form, { method: "POST", action: node + "/v1/stop", target: "sink" });
  document.body.append(sink, form);
  form.submit();
  const heard = (made, event) => new Promise((done) => {
    made["on" + event] = () => done(true);
    made.onerror = () => done(false);
    setTimeout(() => done(false), 3000);
  });
  const events = new EventSource(node + "/v1/events");
  if (await heard(events, "message")) got.push(["events", ""]);
  const socket = new WebSocket(node.replace("http", "ws") + "/v1/events");
  if (await heard(socket, "open")) got.push(["socket", ""]);
  const script = document.createElement("script"), frame = document.createElement("iframe");
  script.src = node + "/static/common.js";
  document.body.append(script);
  if (await heard(script, "load")) got.push(["script", ""]);
  frame.src = node + "/";
  document.body.append(frame);
  await new Promise((done) => { frame.onload = done; setTimeout(done, 3000); });
  const opened = window.open(node + "/");
  await new Promise((done) => setTimeout(done, 1000));
  try {
    if (opened && !opened.closed) got.push(["window", opened.length]);
  } catch { /* refused */ }
  return got;
}"""


class _Elsewhere(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>innocent</title><body>")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _site() -> Iterator[int]:
    """Another server on this machine. Its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def context() -> Iterator[Any]:
    """A browser in which attacker.example, whose owner changed it, is this machine."""
    rules = "--host-resolver-rules=MAP attacker.example 127.0.0.1"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, rules])
        yield browser.new_context()
        browser.close()


def test_a_page_of_another_origin_reads_nothing_and_stops_nothing(
    tmp_path: Path, context: Any
) -> None:
    with served(tmp_path, snapshot()) as one, _site() as port:
        owner = context.new_page()
        address = one.address()
        owner.goto(address)
        playwright.expect(owner.locator("#nodes tbody tr")).to_have_count(2)
        assert owner.evaluate("history.length") <= 2
        node = address.partition("/#")[0]
        for site in (f"http://127.0.0.1:{port}/", f"http://attacker.example:{port}/"):
            page = context.new_page()
            page.goto(site)
            assert page.evaluate(_ATTACK, node) == []
            assert f"{node}/" not in [frame.url for frame in page.frames], "it is framed"
            page.close()
        assert one.stopped == 0
        playwright.expect(owner.locator("#said")).to_have_text("learning and sharing")


def test_a_name_that_comes_to_mean_this_machine_is_not_served(tmp_path: Path, context: Any) -> None:
    with served(tmp_path, snapshot()) as one:
        port = one.address().partition("/#")[0].rpartition(":")[2]
        page = context.new_page()
        answer = page.goto(f"http://attacker.example:{port}/")
        assert answer.status == 403
        for path in ("/", "/v1/status", "/static/node.js", "/v1/enter"):
            said = page.evaluate("async (path) => (await fetch(path)).status", path)
            assert said == 403, path
        assert one.stopped == 0
