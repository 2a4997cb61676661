"""Which swarm a node belongs to when it starts, and who is told that it runs."""

import io
import os
import socket
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from machines import put_smi_first
from structlog.testing import capture_logs
from trained_homes import trained_home

from swarm_node.config import Settings, Sources, load_settings
from swarm_node.config.sources import set_remembered
from swarm_node.errors import (
    ConfigError,
    CoordinatorError,
    HomeError,
    MachineError,
    ModelError,
    TicketError,
    TicketExpiredError,
)
from swarm_node.node.home.home import Home
from swarm_node.node.start.join import belong, join_swarm, ticket_text_for_start
from swarm_node.node.start.resolve_names import ticket_text, with_ticket
from swarm_node.node.start.system import notify
from swarm_node.p2p.membership.ticket import parse_ticket

ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"


def _settings(home: Path, ticket: str) -> Settings:
    return load_settings({"home": home, "ticket": ticket}, environ={})


def _ticket(owner: Home, *, hours_ago: float = 0.0) -> str:
    now = time.time() - hours_ago * 3600
    return owner.invite([ADDRESS], now=now, valid_seconds=3600, member_seconds=86_400)


def test_a_member_starts_with_its_old_ticket_and_a_stranger_does_not(tmp_path: Path) -> None:
    owner, other, member = (Home(tmp_path / name) for name in ("owner", "other", "member"))
    owner.found_swarm("team", time.time())
    other.found_swarm("other", time.time())
    joined, founded = belong(_ticket(owner), member)
    assert not founded
    again, founded = belong(_ticket(owner, hours_ago=2), member)
    assert not founded
    assert again.chain == joined.chain
    with pytest.raises(TicketExpiredError, match="new one"):
        belong(_ticket(other, hours_ago=2), member)
    stranger = Home(tmp_path / "stranger")
    with pytest.raises(TicketExpiredError, match="new one"):
        belong(_ticket(owner, hours_ago=2), stranger)


def test_a_code_is_redeemed_by_a_home_without_a_swarm_and_by_no_other(tmp_path: Path) -> None:
    owner, member = Home(tmp_path / "owner"), Home(tmp_path / "member")
    owner.found_swarm("team", time.time())
    settings = load_settings({"home": member.path}, environ={})
    with pytest.raises(ConfigError, match="--coordinator URL"):
        ticket_text_for_start(settings, member, "AAAAA-AAAAA-AAAAA-AAAAA")
    nobody = settings.network.model_copy(update={"coordinator": "http://127.0.0.1:9"})
    settings = settings.model_copy(update={"network": nobody})
    with pytest.raises(TicketError, match="no code"):
        ticket_text_for_start(settings, member, "short")
    with pytest.raises(CoordinatorError, match=r"connection refused$"):
        ticket_text_for_start(settings, member, "AAAAA-AAAAA-AAAAA-AAAAA")
    member.join_swarm(parse_ticket(_ticket(owner), time.time()), time.time())
    assert ticket_text_for_start(settings, member, "AAAAA-AAAAA-AAAAA-AAAAA") is None
    assert ticket_text_for_start(settings, Home(tmp_path / "other"), None) is None


def test_a_ticket_on_stdin_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, member = Home(tmp_path / "owner"), Home(tmp_path / "member")
    owner.found_swarm("team", time.time())
    monkeypatch.setattr(sys, "stdin", io.StringIO(_ticket(owner)))
    settings = with_ticket(_settings(member.path, "@-"))
    assert sys.stdin.read() == ""
    for _ in range(2):
        joined, _ = belong(ticket_text(settings), member)
        assert joined.swarm.name == "team"


def test_a_ticket_is_read_from_regular_files_and_standard_input_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer for ever
    for place in (tmp_path / "pipe", Path(os.devnull), tmp_path):
        with pytest.raises(TicketError, match=f"{place}: .*--ticket-file -"):
            ticket_text(_settings(tmp_path, f"@{place}"))
    with pytest.raises(TicketError, match=r"none: .* directory$"):
        ticket_text(_settings(tmp_path, f"@{tmp_path / 'none'}"))
    (tmp_path / "link").symlink_to(tmp_path / "ticket")
    (tmp_path / "ticket").write_text("a ticket")
    assert ticket_text(_settings(tmp_path, f"@{tmp_path / 'link'}")) == "a ticket"
    broken = io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", broken)
    with pytest.raises(TicketError, match=r"-: .* text"):
        ticket_text(_settings(tmp_path, "@-"))


def test_what_makes_a_start_impossible_is_refused_before_a_swarm_is_founded(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        address = f"/ip4/127.0.0.1/tcp/{held.getsockname()[1]}"
        flags = {"home": home, "network.listen": [address], "run.device": "cpu"}
        with pytest.raises(MachineError, match=f"{address}.*--listen"):
            join_swarm(load_settings(flags, environ={}), Sources(flags))
    assert not home.exists()


@pytest.mark.slow(reason="starts many judges")
@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("environment.name", "drill", r"'drill'.* drills, .*:factory"),
        ("environment.name", "nowhere:create", "'nowhere:create' .*No module"),
        ("environment.name", "json:nothing", "'json:nothing' .*no attribute"),
        ("environment.name", "swarm_node.environments.lists.jsonl:create", "jsonl:create: missing"),
        ("environment.name", "decimal:Decimal.x", "be imported"),
        ("environment.name", "fractions:Fraction", "no 'name'"),
        ("environment.name", "os:abort", "'os:abort' .*the process"),
        ("environment.options", {"preset": "shrot"}, r"'shrot'.* short\?"),
        ("environment.families", ["revers"], "'revers'.* reversal"),
    ],
)
def test_an_environment_a_preset_and_a_family_are_refused_before_anything_is_printed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    key: str,
    value: object,
    told: str,
) -> None:
    flags = {"home": tmp_path / "home", key: value, "run.device": "cpu"}
    with pytest.raises(ConfigError, match=told):
        join_swarm(load_settings(flags, environ={}), Sources(flags, {}))
    assert "device CPU" not in capsys.readouterr().out
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("flags", "error", "told"),
    [
        ({"model": "tiny"}, ModelError, "tiny .*games: .*tiny-talk"),
        ({"model": "tiny-talk", "sampling.max_new_tokens": 600}, ConfigError, "1024: at most 510"),
    ],
)
def test_a_model_that_cannot_play_the_dialogues_is_refused_before_a_swarm_is_founded(
    tmp_path: Path, flags: dict[str, object], error: type[Exception], told: str
) -> None:
    home = tmp_path / "home"
    given = {"home": home, "environment.name": "games", "run.device": "cpu", **flags}
    with pytest.raises(error, match=told):
        join_swarm(load_settings(given, environ={}), Sources(given, {}))
    assert not home.exists()


def test_a_home_in_use_is_refused_before_anything_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"home": tmp_path, "run.device": "cpu"}
    with Home(tmp_path).lock(), pytest.raises(HomeError, match="already running"):
        join_swarm(load_settings(flags, environ={}), Sources(flags, {}))
    assert "device CPU" not in capsys.readouterr().out


def test_a_wrong_remembered_value_says_how_to_forget_it(tmp_path: Path) -> None:
    home = {"home": tmp_path}
    set_remembered(tmp_path, {"environment.options.preset": "shrot", "run.seed": 1})
    sources = Sources(home, {}, with_home=True)
    with pytest.raises(ConfigError, match=r"shrot.*environment\.options`") as told:
        join_swarm(sources.load(), sources)
    assert "run.seed" not in str(told.value)


def test_a_model_that_moved_is_not_forgotten_where_it_was_trained(tmp_path: Path) -> None:
    place = tmp_path / "home"
    Home(place).found_swarm("team", time.time())
    set_remembered(place, {"model": str(tmp_path / "gone.gguf")})
    sources = Sources({"home": place}, {}, with_home=True)
    with pytest.raises(ModelError, match="--forget model"):
        join_swarm(sources.load(), sources)
    trained_home(place, 8).close()
    with pytest.raises(ModelError, match="join --model PLACE` goes on") as told:
        join_swarm(sources.load(), sources)
    assert "--forget" not in str(told.value)


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_hears_that_the_node_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    name = f"@swarm-node-{uuid4().hex}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1")
        assert manager.recv(64) == b"READY=1"


def test_a_lost_service_manager_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with capture_logs() as logs:
        notify("READY=1")
    assert [line["log_level"] for line in logs] == ["warning"]


def test_a_gpu_that_torch_cannot_use_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    said = "#!/bin/sh\necho 'RTX 4070, 470.57'\necho 'CUDA Version : 11.4'\n"
    put_smi_first(tmp_path, said, monkeypatch)
    settings = load_settings({"home": tmp_path / "home", "run.device": "cuda"}, environ={})
    with pytest.raises(MachineError, match=r"470\.57 \(CUDA 11\.4\).*torch"):
        join_swarm(settings, Sources({}))
