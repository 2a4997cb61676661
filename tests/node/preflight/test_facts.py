"""Facts are read from this machine as it is, and from what nvidia-smi prints elsewhere."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch
from machines import put_smi_first
from torch.utils.flop_counter import FlopCounterMode

from swarm_node.cli.verbs.plan import shape_of
from swarm_node.config import load_settings
from swarm_node.node.home.home import Home
from swarm_node.node.preflight import facts as gathering
from swarm_node.node.preflight.doctor import measure_product_times
from swarm_node.node.preflight.facts import (
    Holder,
    Torch,
    find_busy,
    find_card,
    find_gpu,
    gather,
    installed_torch,
    parse_cuda,
    parse_holders,
    read_membership,
    read_ticket,
)
from swarm_node.node.preflight.probe import NOTHING_SEEN, Seen, probe, time_products
from swarm_node.policy.placement import Hardware, hardware

ADDRESS = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"
LOG = """
==============NVSMI LOG==============

Driver Version                            : 535.104.05
CUDA Version                              : 12.2

Attached GPUs                             : 1
"""
#: A program that answers as nvidia-smi does on a machine with one card.
SMI = f"""#!{sys.executable}
import sys
asked = " ".join(sys.argv[1:])
if "name,driver_version" in asked:
    assert asked.endswith("-i 0"), asked
    print("NVIDIA GeForce RTX 4070, 535.104.05")
elif "memory.free" in asked:
    print("11520, 12288")
elif "compute-apps" in asked:
    print("4711, /usr/bin/python3, 9216")
else:
    print({LOG!r})
"""


LISTEN = ["/ip4/0.0.0.0/tcp/0"]


def test_this_machine_is_described_and_nothing_is_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    before = time.time()
    facts = gather(Home(home), "auto", LISTEN)
    assert facts.python == sys.version_info[:2]
    assert before <= facts.now <= time.time()
    assert facts.installed_at <= facts.now
    assert min(facts.memory, facts.temp_space, facts.disk) > 0
    assert (facts.torch.version, facts.torch.cuda) == (
        metadata.version("torch"),
        torch.version.cuda,
    )
    assert (facts.is_running, facts.busy_addresses, facts.ticket, facts.membership) == (
        False,
        (),
        None,
        None,
    )
    assert not home.exists()


def test_facts_do_not_import_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from swarm_node.node.preflight.facts import Home, gather\n"
        f"gather(Home(Path({str(tmp_path)!r})), 'auto', {LISTEN!r})\n"
        "print(sorted({'torch', 'vllm', 'hivemind'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_products_of_a_model_are_timed_in_both_types() -> None:
    threads = torch.get_num_threads()
    for name in ("qwen2.5-0.5b", "qwen3-8b"):
        with FlopCounterMode(display=False) as counter:
            times = time_products(shape_of(name))
        assert min(times) > 0
        assert 0.05 < times.share < 50
        assert times.worthwhile is (times.bfloat16 <= 2 / 3 * times.float32)
        # Some 3 billion, however large the model is: a fraction of a second on any machine.
        assert 0 < counter.get_total_flops() < 4e9
    assert torch.get_num_threads() == threads


def test_products_are_timed_only_where_they_decide_something(tmp_path: Path) -> None:
    facts = gather(Home(tmp_path), "cpu", [])
    large, small = shape_of("qwen2.5-0.5b"), shape_of("tiny")
    settings = load_settings({}, environ={})
    assert measure_product_times(facts, settings, large).products is not None
    assert measure_product_times(facts, settings, small) is facts
    assert measure_product_times(replace(facts, torch=None), settings, large).products is None
    chosen = load_settings({"training.dtype": "float32"}, environ={})
    assert measure_product_times(facts, chosen, large) is facts
    on_card = replace(facts, probe=Seen(Hardware(1, True)))
    assert measure_product_times(on_card, settings, large) is on_card
    on_cpu = load_settings({"run.device": "cpu"}, environ={})
    assert measure_product_times(on_card, on_cpu, large).products is not None


def test_an_installation_without_torch_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm_node.node.preflight.facts.util.find_spec", lambda name: None)
    assert installed_torch() is None


def test_a_card_is_described_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_smi_first(tmp_path, SMI, monkeypatch)
    card, fault = find_card(0)
    assert fault == ""
    assert (card.driver, card.cuda) == ("535.104.05", (12, 2))
    assert card.memory == (11520 << 20, 12288 << 20)
    facts = gather(Home(tmp_path / "home"), "auto", LISTEN)
    assert facts.card == card
    assert facts.holders == (Holder(4711, "/usr/bin/python3", 9216 << 20),)


def test_a_gpu_is_probed_where_torch_and_a_driver_could_use_it_and_no_process_starts_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def probed(device: str, cards: int) -> Seen:
        asked.append(device)
        return Seen(Hardware(1, True))

    monkeypatch.setattr(gathering, "probe", probed)
    for cuda, fault, device, expected in (
        ("13.0", "it names no GPU", "auto", True),
        ("13.0", "it names no GPU", "cpu", False),
        ("13.0", "", "auto", False),
        (None, "it names no GPU", "auto", False),
    ):
        monkeypatch.setattr(gathering, "installed_torch", lambda cuda=cuda: Torch("2.13.0", cuda))
        monkeypatch.setattr(gathering, "find_card", lambda *_, fault=fault: (None, fault))
        asked.clear()
        assert find_gpu(device)[2] == (Seen(Hardware(1, True)) if expected else NOTHING_SEEN)
        assert asked == [device] * expected


@pytest.mark.slow(reason="a process of its own imports torch")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_the_probes_process_finds_no_gpu_here() -> None:
    assert probe("auto").hardware == Hardware(0, False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_probe_computes_on_a_gpu_and_shares_its_memory() -> None:
    seen = probe("cuda")
    assert (seen.fault, seen.unshared) == ("", "")
    assert seen.hardware == hardware()
    assert seen.capability == torch.cuda.get_device_capability(0)
    assert seen.memory.total == torch.cuda.mem_get_info(0)[1]


def test_a_driver_that_is_silent_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_smi_first(tmp_path, "#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n", monkeypatch)
    assert find_card(0)[1].startswith("NVIDIA-SMI")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_card(0)[1].startswith("CUDA_VISIBLE_DEVICES")


def test_a_driver_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_smi_first(tmp_path, "#!/bin/sh\nexec sleep 60\n", monkeypatch)
    monkeypatch.setattr("swarm_node.node.preflight.facts._SMI_SECONDS", 0.2)
    card, fault = find_card(0)
    assert card is None
    assert "not answer" in fault


def test_what_nvidia_smi_says_of_cuda_and_of_processes_is_read_with_care() -> None:
    assert parse_cuda(LOG) == (12, 2)
    assert parse_cuda("CUDA Version: 13.1") == (13, 1)
    for nonsense in ("", "CUDA Version : N/A", "CUDA Version : 99999.1"):
        assert parse_cuda(nonsense) is None
    listed = "12, /opt/a, b/python, 512\n13, [Not Found], [N/A]\nNo running processes found\n"
    assert parse_holders(listed) == (
        Holder(12, "/opt/a, b/python", 512 << 20),
        Holder(13, "[Not Found]", None),
    )
    assert len(parse_holders("1, python, 1\n" * 1000)) == 16


def test_an_occupied_port_is_found_and_a_free_one_is_not() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        address = f"/ip4/127.0.0.1/tcp/{held.getsockname()[1]}"
        ((busy, reason),) = find_busy([address], 0)
        assert (busy, "in use" in reason) == (address, True)
        kept = held.getsockname()[1]
        assert find_busy(["/ip4/127.0.0.1/tcp/0"], kept) == ((address, reason),)
    assert find_busy([address, "/ip4/127.0.0.1/tcp/0"], 0) == ()
    assert find_busy(["/dns4/here/tcp/80"], 0) == ()
    for none in ("nonsense", "/ip4/127.0.0.1/tcp/99999"):
        ((found, why),) = find_busy([none], 0)
        assert (found, "/ip4/0.0.0.0/tcp/31330" in why) == (none, True)
    ((_, why),) = find_busy(["/ip4/192.0.2.77/tcp/4001"], 0)
    assert "assign" in why


def test_a_running_node_and_what_its_checkpoints_take_are_seen(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    stored = home.checkpoints / "v0000000001"
    stored.mkdir(parents=True)
    with (stored / "model.safetensors").open("wb") as file:
        file.truncate(1 << 40)  # takes nothing of the disk
    assert not home.in_use()
    with home.lock():
        facts = gather(home, "auto", LISTEN)
        assert facts.is_running
        assert facts.disk > 1 << 40
    assert not home.in_use()


def test_ticket_and_membership_say_until_when(tmp_path: Path) -> None:
    now = time.time()
    owner, member = Home(tmp_path / "owner"), Home(tmp_path / "member")
    assert read_membership(owner) is None
    owner.found_swarm("team", now)
    ticket = owner.invite([ADDRESS], now=now, valid_seconds=3600, member_seconds=86_400)
    assert read_ticket(ticket, member, now).valid_until == int(now + 3600)
    late = read_ticket(ticket, member, now + 7200)
    assert (late.valid_until, late.is_needed) == (None, True)
    assert "expired on" in late.fault
    from swarm_node.p2p.membership.ticket import parse_ticket

    member.join_swarm(parse_ticket(ticket, now), now)
    kept = read_membership(member)
    assert kept.valid_until == int(now) + 86_400
    assert not read_ticket(ticket, member, now + 7200).is_needed
    assert "join ticket" in read_ticket("nonsense", member, now).fault
    (member.path / "membership").write_bytes(b"nonsense")
    damaged = read_membership(member)
    assert "damaged" in damaged.fault


def test_a_membership_for_another_key_is_no_membership(tmp_path: Path) -> None:
    one, other = Home(tmp_path / "one"), Home(tmp_path / "other")
    one.found_swarm("team", time.time())
    other.found_swarm("team", time.time())
    (one.path / "membership").write_bytes((other.path / "membership").read_bytes())
    found = read_membership(one)
    assert found.valid_until is None
    assert "join again" in found.fault
