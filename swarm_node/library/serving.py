"""OpenAI's API of a stored checkpoint, while no node runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from swarm_node.config import load_settings
from swarm_node.library.endpoint import Endpoint, listening
from swarm_node.library.resolve_names import require_served
from swarm_node.library.stored_policy import open_sampler, stored_policies
from swarm_node.node.control.openai import OpenAIServer, ServedAt, model_name
from swarm_node.node.home.home import Home
from swarm_node.node.loops.openai_requests import OpenAIRequests
from swarm_node.node.preflight.defaults import for_model, torch_threads
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import hardware, place


async def serve_stored(
    checkpoint: str | None,
    on_listening: Callable[[ServedAt], object],
    *,
    at: Endpoint | None = None,
    home: Path | None = None,
    model: str | None = None,
    config: Path | None = None,
) -> None:
    """Serve a stored policy (see `stored_policies`) until cancelled, by default on loopback.
    `on_listening` is called once it listens.

    Raises:
        CheckpointError, ModelError: there is no such policy, or it cannot be sampled.
        HomeError: the file with the key cannot be written.
        MachineError: the port is taken.
    """
    settings = load_settings({"home": home, "model": model}, config=config, with_home=True)
    require_served(settings, checkpoint)
    directory = resolve(settings.model)
    shape = ModelConfig.from_directory(directory)
    settings = for_model(settings, shape)
    node_home = Home(settings.home)
    (policy,) = stored_policies(checkpoint, node_home.checkpoints, directory)
    codec = Codec.from_directory(policy.model)
    placement = place(settings.run.device, settings.training.dtype, hardware(settings.run.device))
    sampler = await open_sampler(policy, codec, placement, torch_threads(settings, shape))
    guests = OpenAIRequests(sampler, share=1.0)
    max_tokens = settings.sampling.max_new_tokens
    server = OpenAIServer(
        guests, codec, model=model_name(settings.model), token_limit=lambda: max_tokens
    )
    try:
        async with listening(at or Endpoint(), server.routes(), node_home) as (url, key):
            on_listening(ServedAt(url, key, server.served_model))
            try:
                while True:
                    await guests.step()
            finally:
                server.end()
    finally:
        await sampler.close()
