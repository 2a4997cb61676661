"""`swarm-node support-bundle`: what is in it, and what must not be."""

from __future__ import annotations

import base64
import json
import secrets
import time
import zipfile
from pathlib import Path

import base58
import pytest
from page_server import row
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.cli.verbs.support import known_secrets, remove_secrets
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.history import MetricsFile
from swarm_node.p2p.membership.ticket import PREFIX

TOKEN = secrets.token_urlsafe(32)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home that wrote each of its secrets into its log, in several notations."""
    place = Home(tmp_path / "home")
    now = time.time()
    place.found_swarm("team", now)
    place.site_key()
    ticket = place.invite([], now=now, valid_seconds=3600, member_seconds=3600)
    (place.path / "metrics.token").write_text(TOKEN)
    (place.path / "control.json").write_text(
        json.dumps({"port": 1, "token": TOKEN[::-1], "pid": 1})
    )
    MetricsFile(place.metrics).append(row(1))
    said = [
        ticket,
        *(note.decode("latin-1") for secret in _secrets(place) for note in _notes(secret)),
    ]
    place.log.write_text("".join(json.dumps({"event": text}) + "\n" for text in said))
    return place


def _secrets(place: Home) -> list[bytes]:
    """Every secret of the home, as bytes."""
    keys = [place.path / name for name in ("node.key", "root.key", "issuer.key", "site.key")]
    return [*(key.read_bytes() for key in keys), place.swarm().secret]


def _notes(secret: bytes) -> list[bytes]:
    return [
        *(secret.hex().encode(), base64.b64encode(secret), base64.urlsafe_b64encode(secret)),
        *(base58.b58encode(secret), secret, repr(secret).encode()),
    ]


def bundled(home: Home, out: Path, *options: str) -> dict[str, bytes]:
    """The files of a bundle."""
    arguments = ["support-bundle", "--home", str(home.path), "--out", str(out), *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    with zipfile.ZipFile(out) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def test_it_helps_and_holds_no_secret(home: Home, tmp_path: Path) -> None:
    out = tmp_path / "bundle.zip"
    parts = bundled(home, out)
    assert out.stat().st_mode & 0o077 == 0
    everything = b"".join(parts.values())
    for secret in _secrets(home):
        for note in _notes(secret):
            assert note not in everything
            assert json.dumps(note.decode("latin-1")).encode()[1:-1] not in everything
    assert PREFIX.encode() not in everything
    assert TOKEN.encode() not in everything
    assert TOKEN[::-1].encode() not in everything
    assert {row["subject"] for row in json.loads(parts["checks.json"])} >= {"memory", "clock"}
    assert "torch" in json.loads(parts["versions.json"])
    assert any(row["name"] == "experience.local" for row in json.loads(parts["settings.json"]))
    assert "no node" in json.loads(parts["status.json"])["missing"]
    assert any(row["name"] == "root.key" for row in json.loads(parts["home.json"]))
    assert parts["log.jsonl"].count(b"taken out") > 20
    assert json.loads(parts["metrics.jsonl"])["steps"] == 1
    again = CliRunner().invoke(app, ["support-bundle", "--home", str(home.path), "--out", str(out)])
    assert again.exit_code == 1
    assert "--out" in again.output


def test_options_of_an_environment_and_the_users_name_stay_at_home(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment may be any program, which takes what it needs from its options."""
    monkeypatch.setenv("HOME", str(tmp_path))
    canary = secrets.token_urlsafe(32)
    monkeypatch.setenv("CANARY_TOKEN", canary)
    settings = tmp_path / "node.toml"
    settings.write_text(
        '[environment]\nname = "elsewhere:create"\n[environment.options]\npreset = "short"\n'
        f'judge_api_key = "{canary}"\nPassword = "{canary}"\n'
    )
    parts = bundled(home, tmp_path / "bundle.zip", "--config", str(settings))
    everything = b"".join(parts.values())
    assert canary.encode() not in everything
    assert str(tmp_path).encode() not in everything
    rows = {row["name"]: row["value"] for row in json.loads(parts["settings.json"])}
    assert rows["environment.options"]["preset"] == "short"
    assert rows["environment.options"].keys() == {"preset", "judge_api_key", "Password"}
    assert b"~/home" in parts["settings.json"]


def test_what_is_no_secret_stays() -> None:
    part = b"peer 12D3KooWxyz listens on /ip4/192.0.2.1/tcp/7, loss 0.25"
    assert remove_secrets(part, [b"x" * 16]) == part


def test_a_home_without_secrets_has_none(tmp_path: Path) -> None:
    assert known_secrets(tmp_path) == []
