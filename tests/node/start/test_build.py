"""A real node whose start fails leaves nothing behind, and repeats no number of its log."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from fits import fit

from swarm_node.config import Settings, Sources, load_settings
from swarm_node.config.reloading import Reloading
from swarm_node.errors import HomeError, ModelError, UnmappedError
from swarm_node.node.home.home import Home
from swarm_node.node.preflight.doctor import this_machine
from swarm_node.node.start import build
from swarm_node.node.start.build import build_parts, make_built_in, run_node
from swarm_node.node.start.derive import Resolved
from swarm_node.node.start.progress import NodeProgress
from swarm_node.policy.memory.footprint import TrainingMethod
from swarm_node.policy.models.model import Model, resolve
from swarm_node.policy.placement import ON_CPU, has_bitsandbytes
from swarm_node.policy.planning.fit import Fit
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.checkpoints.stored import stored_rank
from swarm_node.storage import Storage


@pytest.mark.slow(reason="imports bitsandbytes")
@pytest.mark.skipif(not has_bitsandbytes(), reason="needs bitsandbytes")
def test_the_sampler_in_an_engines_place_has_a_base_of_four_bits_where_the_engine_had() -> None:
    model, whole = Model.read("tiny", resolve("tiny")), TrainingMethod(4)
    for training in (whole, replace(whole, nf4=True)):
        found = Fit(ON_CPU, vllm=True, training=training)
        sampler = make_built_in(load_settings({}, environ={}), model, found)
        layers = [*sampler._model.blocks()]
        assert all(bool(layer.four_bit) == training.nf4 for layer in layers)


def test_an_answer_of_all_positions_leaves_none_for_a_prompt(tmp_path: Path) -> None:
    model, home = Model.read("tiny", resolve("tiny")), Home(tmp_path)
    longest = model.codec.positions
    flags = {"run.device": "cpu", "sampling.engine": "torch", "sampling.max_new_tokens": longest}
    settings, found = load_settings(flags, environ={}), Fit(ON_CPU, False, TrainingMethod())
    with pytest.raises(ModelError, match=f"{longest} .* {longest}, for prompt"):
        build_parts(settings, home, home.found_swarm("team", time.time()), model, found)


def test_parts_are_closed_where_the_control_file_cannot_be_written(tmp_path: Path) -> None:
    settings = load_settings({"run.device": "cpu"}, environ={})
    reloading = Reloading(Sources({}), settings)
    home = Home(tmp_path)
    membership = home.found_swarm("team", time.time())
    home.control_file.mkdir()
    model = Model.read("tiny", resolve("tiny"))
    found = fit(settings, model.config, this_machine(settings))

    def held() -> list[str]:
        """The files of the home that this process holds open, and its directories of weights."""
        opened = [file.path for file in psutil.Process().open_files()]
        weights = Path("/dev/shm").glob(f"swarm-node-*-{membership.identity.peer_id}-*")
        return [name for name in opened if name.startswith(str(tmp_path))] + list(map(str, weights))

    async def run() -> None:
        start = Resolved(settings, found, {}, lambda: found)
        await run_node(start, home, membership, model, NodeProgress(), reloading)

    epochs = []
    for _ in range(2):
        with pytest.raises(HomeError, match=r"control\.json"):
            asyncio.run(run())
        assert held() == []
        storage = Storage(home.database)
        epochs.append(storage.epoch)
        storage.close()
    assert epochs[0] < epochs[1]


class Unmapping(TorchSampler):
    """A sampler in a process that cannot map what another one exported."""

    async def load(self, weights: Path, version: int) -> None:
        raise UnmappedError("cannot map the trainer's memory on the GPU: invalid device context")


@pytest.mark.nightly(reason="a fallback of GPUs alone, which takes four starts of a trainer")
@pytest.mark.slow(reason="runs a whole node twice, the second time to its first update")
def test_a_node_whose_sampler_cannot_map_the_base_starts_once_more_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"run.device": "cpu", "run.max_steps": 1, "training.lora_rank": 4}
    settings = load_settings({**flags, "network.listen": ["/ip4/127.0.0.1/tcp/0"]}, environ={})
    home = Home(tmp_path)
    membership = home.found_swarm("team", time.time())
    model = Model.read("tiny", resolve("tiny"))
    sharing = fit(settings, model.config, this_machine(settings))
    assert sharing.shares_base
    own, made = replace(sharing, shares_base=False), []

    def first_unmapping(settings: Settings, model: Model, found: Fit) -> TorchSampler:
        made.append(found)
        kind = Unmapping if found.shares_base else TorchSampler
        return kind.from_directory(
            model.directory, found.placement, codec=model.codec, shares=found.shares_base
        )

    monkeypatch.setattr(build, "make_sampler", first_unmapping)
    start = Resolved(settings, sharing, {}, lambda: own)
    reloading = Reloading(Sources({}), settings)
    asyncio.run(run_node(start, home, membership, model, NodeProgress(), reloading))
    assert made == [sharing, own]
    assert stored_rank(home.checkpoints) == 4, "it trained"
    with pytest.raises(UnmappedError):  # once, and not again and again
        asyncio.run(
            run_node(
                replace(start, unshared=lambda: sharing),
                *(home, membership, model, NodeProgress(), reloading),
            )
        )
