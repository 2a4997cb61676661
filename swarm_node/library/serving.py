"""OpenAI's API of a stored checkpoint, while no node runs."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from swarm_node.config import load_settings
from swarm_node.durable import replace_private
from swarm_node.errors import HomeError
from swarm_node.library.stored_policy import ALL, open_sampler, stored_policies
from swarm_node.node.control.control import MAX_BODY
from swarm_node.node.control.openai import OpenAIServer, ServedAt, model_name
from swarm_node.node.home.home import Home
from swarm_node.node.loops.guests import Guests
from swarm_node.node.preflight.defaults import for_model
from swarm_node.page.entrance import bearer, is_local, is_one_of
from swarm_node.page.listening import Listening
from swarm_node.policy.models.codec import Codec
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.models.model import resolve
from swarm_node.policy.placement import hardware, place

#: Not the node's own file: a node that starts meanwhile writes that.
_TOKEN_FILE = "serve.token"  # noqa: S105 - a name


async def serve_stored(
    checkpoint: str | None,
    told: Callable[[ServedAt], object],
    *,
    home: Path | None = None,
    model: str | None = None,
    config: Path | None = None,
    port: int = 0,
) -> None:
    """Serve a stored policy (see `stored_policies`) on loopback until cancelled. `told` is called
    once it listens.

    Raises:
        CheckpointError, ModelError: there is no such policy, or it cannot be sampled.
        HomeError: the file with the token cannot be written.
        MachineError: the port is taken.
    """
    settings = load_settings({"home": home, "model": model}, config=config, with_home=True)
    directory = resolve(settings.model)
    settings = for_model(settings, Qwen2Config.from_directory(directory))
    stored = Home(settings.home)
    if checkpoint == ALL:
        raise HomeError("serve takes one checkpoint: name it, or leave --checkpoint out")
    (policy,) = stored_policies(checkpoint, stored.checkpoints, directory)
    codec = Codec.from_directory(policy.model)
    where = place(settings.run.device, settings.training.dtype, hardware(settings.run.device))
    sampler = await open_sampler(policy, codec, where, settings.run.threads)
    guests = Guests(sampler, share=1.0)
    longest = settings.sampling.max_new_tokens
    server = OpenAIServer(guests, codec, model=model_name(settings.model), longest=lambda: longest)
    token, key = secrets.token_urlsafe(32), stored.path / _TOKEN_FILE
    listening = Listening(_application(server, token), "127.0.0.1", port)
    try:
        chosen = await listening.start()
        try:
            stored.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_private(key, token.encode())
        except OSError as error:
            raise HomeError(f"cannot write {key}: {error.strerror}") from error
        told(ServedAt(f"http://127.0.0.1:{chosen}/v1", key, server.served))
        while True:
            await guests.step()
    finally:
        key.unlink(missing_ok=True)
        server.end()
        await listening.close()
        await sampler.close()


def _application(server: OpenAIServer, token: str) -> web.Application:
    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not is_local(request.host):
            raise web.HTTPForbidden(text="wrong Host header")
        if not is_one_of(bearer(request.headers.get("Authorization", "")), [token]):
            raise web.HTTPUnauthorized(text="missing or wrong token")
        return await handler(request)

    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY)
    app.add_routes(server.routes())
    return app
