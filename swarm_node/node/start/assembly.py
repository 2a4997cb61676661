"""Assembles a node from its parts. A real node and a simulated one differ only in the parts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from swarm_node.config import Settings
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.node.home.home import Membership
from swarm_node.node.loops.company import Company
from swarm_node.node.loops.coordinating import Coordinating
from swarm_node.node.loops.dialogues import DialogueMaker, dialogues_fit
from swarm_node.node.loops.evaluation import Evaluator
from swarm_node.node.loops.harvest import Harvest
from swarm_node.node.loops.judging import Judging
from swarm_node.node.loops.learner import Learner
from swarm_node.node.loops.levels import Levels
from swarm_node.node.loops.member import ProgramNode, ProgramPolicy
from swarm_node.node.loops.mixing import Mixer
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.overview import name_of
from swarm_node.node.loops.parts import Parts, Shared, Tally
from swarm_node.node.loops.rollout_maker import RolloutMaker
from swarm_node.node.loops.tasks import FittingTasks, SeededTasks
from swarm_node.node.loops.work import Work
from swarm_node.node.start.derive import mixture_settings, peers_wants, replay_settings
from swarm_node.p2p.exchange.exchange import Exchange, open_exchange
from swarm_node.p2p.exchange.meeting import Meeting
from swarm_node.p2p.exchange.serving import Answer, Server
from swarm_node.p2p.exchange.verify import Dialogues, Expected, GroupVerifier
from swarm_node.p2p.limits.budgets import Effort, Traffic
from swarm_node.p2p.limits.gates import SizeGate
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.local import Local
from swarm_node.p2p.membership.membership import Chain
from swarm_node.p2p.reach.probe import Prober, ProbeServer
from swarm_node.p2p.reach.punch import MAX_BODY, Puncher, place_of
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.p2p.reach.verdict import Relay
from swarm_node.p2p.wire.protocols import PROBE, PROBE_FOR, PUNCH
from swarm_node.policy.experience.slots import Slots
from swarm_node.policy.models.codec import check_tokens
from swarm_node.policy.sampling.sampler import InterruptibleSampler

#: Answers to each of the unseen tasks that measure pass@k.
_EVAL_TRIES = 4


def assemble(settings: Settings, membership: Membership, parts: Parts) -> Node:
    """Make a node of these parts. It does nothing until `Node.run`."""
    return Node(**_of_node(settings, membership, parts))


def assemble_member(
    settings: Settings, membership: Membership, parts: Parts, policy: ProgramPolicy
) -> ProgramNode:
    """Make a member of these parts, of which `policy` is trainer and sampler."""
    rng = _rng("train", settings, membership.identity.peer_id)
    return ProgramNode(policy=policy, rng=rng, **_of_node(settings, membership, parts))


def _of_node(settings: Settings, membership: Membership, parts: Parts) -> dict[str, Any]:
    """Make the arguments of `Node`."""
    shared = make_shared(settings, membership, parts)
    reaching = _reaching(settings, parts, shared)
    parts = replace(parts, transport=reaching)
    parts.reach.relays = lambda: [
        Relay(name_of(shared.members, relay)) for relay in reaching.relays.kept()
    ]
    return {
        "settings": settings,
        "parts": parts,
        "shared": shared,
        "reaching": reaching,
        "learner": make_learner(settings, parts, shared),
        "open_work": partial(_open_work, settings, membership.chain, parts, shared, reaching),
    }


def make_shared(settings: Settings, membership: Membership, parts: Parts) -> Shared:
    """Make the empty state that the loops of the node of `membership` share."""
    buffer, wants = parts.buffer(replay_settings(settings)), peers_wants(settings, parts.turns)
    local = Local.of(
        membership.identity,
        membership.swarm,
        parts.clock,
        parts.office,
        parts.banned,
        parts.names,
    )
    return Shared(
        local=local,
        tally=Tally(rejected=local.rejected),
        wants=wants,
        traffic=Traffic(wants, local.members.issuer),
        effort=Effort(wants.external, local.members.issuer),
        buffer=buffer,
        slots=Slots(buffer, settings.sampling.tasks_per_call),
    )


def make_learner(settings: Settings, parts: Parts, shared: Shared) -> Learner:
    """Make the node's learner."""
    return Learner(
        parts,
        shared,
        Mixer(mixture_settings(settings), shared.tally, shared.buffer),
        _rng("train", settings, shared.local.peer_id),
        correction=settings.experience.correction,
        advantage=settings.training.advantage,
        group_size=settings.sampling.group_size,
        checkpoint_updates=settings.run.checkpoint_updates,
    )


def _open_work(
    settings: Settings,
    chain: Chain,
    parts: Parts,
    shared: Shared,
    reaching: ReachingTransport,
    info: EnvironmentInfo,
    families: tuple[str, ...],
) -> Work:
    local, peer_id = shared.local, shared.local.peer_id
    levels = Levels(info, families, parts.storage, climbs=parts.climbs)
    seed = settings.run.seed
    tasks = SeededTasks(info, families, parts.storage, seed=seed, peer_id=peer_id, levels=levels)
    judging = Judging(parts.environment, shared.tally, shared.effort, parts.clock)
    fitting = FittingTasks(settings.sampling, parts, shared.tally, tasks, info.turns)
    maker = _maker(settings, parts, shared, judging, fitting, info)
    evaluator = _evaluator(settings, parts, shared, info, families, levels)
    verifier = GroupVerifier(
        local.swarm_id,
        _expected(settings, peer_id, parts, info),
        parts.storage,
        judging.of_peer,
        partial(check_tokens, parts.codec),
        parts.codec.encode_answer,
        Dialogues(judging.dialogues_of_peer, partial(dialogues_fit, parts.codec))
        if info.turns > 1
        else None,
    )
    # Server and exchange share one generator.
    rng = _rng("share", settings, peer_id)
    own = Credentials(local, chain, office=parts.office, use_secret=parts.transport.use_secret)
    exchange = _exchange(own, parts, shared, verifier, rng, reaching)
    probing = _rng("probe", settings, peer_id)
    further, prober, puncher = _probing(exchange, parts, shared, reaching, probing)
    _serve(own, parts, shared, rng, further)
    company = _company(settings, parts, shared, exchange.meeting, reaching)
    coordinating = _coordinating(settings, parts, shared, own, exchange.meeting)
    workers = exchange, company, levels, prober, puncher, coordinating
    return Work(fitting, judging, maker, evaluator, *workers)


def _maker(
    settings: Settings,
    parts: Parts,
    shared: Shared,
    judging: Judging,
    tasks: FittingTasks,
    info: EnvironmentInfo,
) -> RolloutMaker | DialogueMaker:
    seed, peer_id = settings.run.seed, shared.local.peer_id
    sampling, tally, slots = settings.sampling, shared.tally, shared.slots
    if info.turns > 1:
        return DialogueMaker(
            sampling, parts, tally, judging, tasks, slots, seed=seed, peer_id=peer_id
        )
    sampler, lag = parts.sampler, shared.buffer.settings.max_lag
    harvest = Harvest(sampler, lag) if isinstance(sampler, InterruptibleSampler) else None
    return RolloutMaker(
        sampling, parts, tally, judging, tasks, slots, harvest, seed=seed, peer_id=peer_id
    )


def _evaluator(
    settings: Settings,
    parts: Parts,
    shared: Shared,
    info: EnvironmentInfo,
    families: tuple[str, ...],
    levels: Levels,
) -> Evaluator:
    evals = shared.tally.evals
    return Evaluator(
        sampling=settings.sampling,
        parts=parts,
        info=info,
        own_families=families,
        levels=levels,
        tasks=settings.run.eval_tasks,
        earlier=evals[-1].seconds if evals else 0.0,
        tally=shared.tally,
        least=settings.run.eval_seconds,
        tries=_EVAL_TRIES,
    )


def _reaching(settings: Settings, parts: Parts, shared: Shared) -> ReachingTransport:
    """Make the node's transport, with relays for peers that cannot be dialled."""
    return ReachingTransport(
        shared.local,
        parts.transport,
        mode=settings.network.relay,
        dialable=parts.dialable,
        wants=shared.wants,
        rng=_rng("reach", settings, shared.local.peer_id),
        lan=parts.lan,
        answered=parts.answered,
    )


def _company(
    settings: Settings,
    parts: Parts,
    shared: Shared,
    meeting: Meeting,
    reaching: ReachingTransport,
) -> Company:
    return Company(
        meeting,
        reaching=reaching,
        storage=parts.storage,
        directory=shared.directory,
        clock=parts.clock,
        bootstrap=settings.network.bootstrap,
        poll_seconds=settings.network.poll_seconds,
        version=lambda: parts.trainer.version,
    )


def _coordinating(
    settings: Settings, parts: Parts, shared: Shared, own: Credentials, meeting: Meeting
) -> Coordinating | None:
    """Make the loop with the coordinator, if the settings or the ticket name one."""
    url = settings.network.coordinator
    if not url:
        return None
    return Coordinating(
        shared.local,
        url,
        credentials=own,
        meeting=meeting,
        keeper=parts.office,
        rng=_rng("coordinate", settings, shared.local.peer_id),
        tally=shared.tally,
    )


def _expected(settings: Settings, peer_id: str, parts: Parts, info: EnvironmentInfo) -> Expected:
    sampling = settings.sampling
    return Expected(
        info.name,
        info.version,
        frozenset(info.families),
        parts.policy,
        SizeGate.of(sampling.group_size, sampling.max_new_tokens, info.turns),
        peer_id=peer_id,
        turns=info.turns,
    )


def _serve(
    own: Credentials,
    parts: Parts,
    shared: Shared,
    rng: random.Random,
    further: Mapping[str, Answer],
) -> None:
    """Answer peers over the node's transport, which holds the server."""

    def on_pull() -> None:
        shared.tally.groups.taken += 1

    Server(
        shared.local,
        transport=parts.transport,
        credentials=own,
        storage=parts.storage,
        traffic=shared.traffic,
        rng=rng,
        further=further,
        on_pull=on_pull,
    )


def _probing(
    exchange: Exchange,
    parts: Parts,
    shared: Shared,
    reaching: ReachingTransport,
    rng: random.Random,
) -> tuple[Mapping[str, Answer], Prober | None, Puncher | None]:
    """Make the answers to members that ask for a probe or a direct link, and the parts that ask
    members for one."""
    if parts.knock is None:
        return {}, None, None
    local, asker, transport = shared.local, exchange.asker, parts.transport
    server = ProbeServer(local, asker, transport=transport, knock=parts.knock, rng=rng)
    prober = Prober(local, asker, parts.reach, transport=transport, rng=rng)
    puncher = _puncher(exchange, parts, shared, reaching)
    answers = {PROBE: server.answer, PROBE_FOR: server.answer_for, PUNCH: puncher.answer}
    return answers, prober, puncher


def _puncher(
    exchange: Exchange, parts: Parts, shared: Shared, reaching: ReachingTransport
) -> Puncher:
    """Make the part that opens direct links between nodes behind NAT."""

    async def ask(peer_id: str, payload: bytes) -> bytes | None:
        peer = shared.directory.get(peer_id)
        if peer is None:
            return None
        return await exchange.asker.ask(peer, PUNCH, payload, max_reply=MAX_BODY)

    puncher = Puncher(
        reaching.peer_id,
        partial(place_of, parts.reach),
        ask=ask,
        dial=partial(parts.transport.dial, held=True),
        issuer=shared.members.issuer,
        clock=parts.clock,
    )
    reaching.punch = puncher.punch
    return puncher


def _exchange(
    own: Credentials,
    parts: Parts,
    shared: Shared,
    verifier: GroupVerifier,
    rng: random.Random,
    reaching: ReachingTransport,
) -> Exchange:
    def let_go(peer_id: str) -> None:
        peer = shared.directory.get(peer_id)
        if peer is not None:
            shared.former[peer_id] = peer
        shared.directory.forget(peer_id)
        shared.buffer.forget(peer_id)

    exchange = open_exchange(
        shared.local,
        transport=parts.transport,
        credentials=own,
        let_go=let_go,
        storage=parts.storage,
        verifier=verifier,
        traffic=shared.traffic,
        effort=shared.effort,
        rng=rng,
        relays=lambda: reaching.serves,
        publisher=parts.publisher,
    )
    reaching.relays.introduce = exchange.asker.introduce
    return exchange


def _rng(purpose: str, settings: Settings, peer_id: str) -> random.Random:
    """Make a generator for one purpose. Draws for training then do not depend on peers."""
    seed = f"{purpose}:{settings.run.seed}:{peer_id}"
    return random.Random(seed)  # noqa: S311 - reproducible, not secret
