"""Assembles a node from its parts. A real node and a simulated one differ only in the parts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from swarm_node.config import Settings
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.node.home.home import Membership
from swarm_node.node.loops.learning.learner import Learner
from swarm_node.node.loops.learning.mixing import Mixer
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.node_parts import Parts, Shared, Tally
from swarm_node.node.loops.peers.connectivity import Connectivity
from swarm_node.node.loops.reporting.evaluation import Evaluator
from swarm_node.node.loops.reporting.snapshots import name_of
from swarm_node.node.loops.sampling.fit import turns_fit
from swarm_node.node.loops.sampling.levels import Levels
from swarm_node.node.loops.sampling.partial_rollouts import PartialRollouts
from swarm_node.node.loops.sampling.rollout_maker import RolloutMaker
from swarm_node.node.loops.sampling.scoring import Scoring
from swarm_node.node.loops.sampling.tasks import FittingTasks, SeededTasks
from swarm_node.node.loops.workers import Workers
from swarm_node.node.start.derive import mixture_settings, peers_wants, replay_settings
from swarm_node.p2p.exchange.discovery import Discovery
from swarm_node.p2p.exchange.exchange import Exchange, open_exchange
from swarm_node.p2p.exchange.requests import Asker
from swarm_node.p2p.exchange.serving import Answer, Server
from swarm_node.p2p.exchange.verify import Expected, GroupVerifier, MultiTurn
from swarm_node.p2p.limits.budgets import Effort, Traffic
from swarm_node.p2p.limits.gates import SizeGate
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.reach.probe import Prober, ProbeServer
from swarm_node.p2p.reach.punch import MAX_BODY, Puncher, place_of
from swarm_node.p2p.reach.reachability import Relay
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.p2p.wire.protocols import PROBE, PROBE_FOR, PUNCH
from swarm_node.policy.experience.slots import Slots
from swarm_node.policy.models.text.codec import check_tokens
from swarm_node.policy.sampling.sampler import InterruptibleSampler

if TYPE_CHECKING:
    from swarm_node.node.loops.peers.coordinator_loop import CoordinatorLoop

#: Answers to each of the unseen tasks that measure pass@k.
_EVAL_TRIES = 4


def assemble(settings: Settings, membership: Membership, parts: Parts) -> Node:
    """Make a node of these parts. It does nothing until `Node.run`."""
    return Node(**Assembly(settings, membership, parts).of_node())


def make_shared(settings: Settings, membership: Membership, parts: Parts) -> Shared:
    """Make the empty state that the loops of the node of `membership` share."""
    buffer, wants = parts.buffer(replay_settings(settings)), peers_wants(settings, parts.turns)
    of_parts = parts.clock, parts.office, parts.block_list, parts.names
    local = LocalNode.of(membership.identity, membership.swarm, *of_parts)
    return Shared(
        local=local,
        tally=Tally(rejected=local.rejected),
        wants=wants,
        traffic=Traffic(wants, local.members.issuer),
        effort=Effort(wants.external_ratio, local.members.issuer),
        buffer=buffer,
        slots=Slots(buffer, settings.sampling.max_concurrent_groups),
    )


def make_learner(settings: Settings, parts: Parts, shared_state: Shared) -> Learner:
    """Make the node's learner."""
    return Learner(
        parts,
        shared_state,
        Mixer(mixture_settings(settings), shared_state.tally, shared_state.buffer),
        _rng("train", settings, shared_state.local.peer_id),
        correction=settings.experience.external_correction,
        advantage=settings.training.advantage,
        group_size=settings.sampling.group_size,
        save_steps=settings.run.save_steps,
    )


class Assembly:
    """Makes the objects of one node, which work on the same settings, parts and state."""

    def __init__(self, settings: Settings, membership: Membership, parts: Parts) -> None:
        self.settings, self.chain = settings, membership.chain
        self.shared_state = shared_state = make_shared(settings, membership, parts)
        self.local, self.tally = shared_state.local, shared_state.tally
        #: The node's transport, with relays for peers that cannot be dialled.
        self.reaching = reaching = ReachingTransport(
            shared_state.local,
            parts.transport,
            mode=settings.network.relay,
            is_dialable=parts.is_dialable,
            wants=shared_state.wants,
            rng=self.rng("reach"),
            lan=parts.lan,
            journal=parts.relay_journal,
        )
        self.parts = replace(parts, transport=reaching)
        parts.reach.relays = lambda: [
            Relay(name_of(shared_state.members, relay))
            for relay in reaching.relays.relay_addresses()
        ]

    def rng(self, purpose: str) -> random.Random:
        return _rng(purpose, self.settings, self.local.peer_id)

    def of_node(self) -> dict[str, Any]:
        """Make the arguments of `Node`."""
        return {
            "settings": self.settings,
            "parts": self.parts,
            "shared_state": self.shared_state,
            "reaching": self.reaching,
            "learner": make_learner(self.settings, self.parts, self.shared_state),
            "open_work": self.open_work,
        }

    def open_work(self, info: EnvironmentInfo, families: tuple[str, ...]) -> Workers:
        """Make the workers of the node's loops: see `OpenWorkers`."""
        settings, parts, local, evals = self.settings, self.parts, self.local, self.tally.evals
        levels = Levels(info, families, parts.storage, climbs=parts.climbs)
        seed, peer_id = settings.run.seed, local.peer_id
        chooser = SeededTasks(
            info, families, parts.storage, seed=seed, peer_id=peer_id, levels=levels
        )
        scoring = Scoring(parts.environment, self.tally, self.shared_state.effort, parts.clock)
        tasks = FittingTasks(settings.sampling, parts, self.tally, chooser, info.turns)
        evaluator = Evaluator(
            sampling=settings.sampling,
            parts=parts,
            info=info,
            own_families=families,
            levels=levels,
            tasks=settings.run.eval_tasks,
            elapsed=evals[-1].seconds if evals else 0.0,
            tally=self.tally,
            min_pause=settings.run.eval_seconds,
            tries=_EVAL_TRIES,
        )
        maker, verifier = self.maker(info, scoring, tasks), self.verifier(info, scoring)
        use_secret = parts.transport.use_secret
        credentials = Credentials(local, self.chain, office=parts.office, use_secret=use_secret)
        exchange, prober, puncher = self.exchange(credentials, verifier)
        connectivity = Connectivity(
            exchange.discovery,
            reaching=self.reaching,
            storage=parts.storage,
            directory=local.directory,
            clock=parts.clock,
            bootstrap=settings.network.bootstrap,
            poll_seconds=settings.network.poll_seconds,
            version=lambda: parts.trainer.version,
        )
        coordinator_loop = self.coordinator_loop(credentials, exchange.discovery)
        workers = exchange, connectivity, levels, credentials.me, prober, puncher, coordinator_loop
        return Workers(tasks, scoring, maker, evaluator, *workers)

    def maker(self, info: EnvironmentInfo, scoring: Scoring, tasks: FittingTasks) -> RolloutMaker:
        sampler, partial_rollouts = self.parts.sampler, None
        if info.turns == 1 and isinstance(sampler, InterruptibleSampler):
            partial_rollouts = PartialRollouts(
                sampler, self.shared_state.buffer.settings.max_staleness
            )
        return RolloutMaker(
            self.settings.sampling,
            self.parts,
            self.tally,
            scoring,
            tasks,
            self.shared_state.slots,
            partial_rollouts,
            turns=info.turns,
            seed=self.settings.run.seed,
            peer_id=self.local.peer_id,
        )

    def verifier(self, info: EnvironmentInfo, scoring: Scoring) -> GroupVerifier:
        sampling, parts, codec = self.settings.sampling, self.parts, self.parts.codec
        expectations = Expected(
            info.name,
            info.version,
            frozenset(info.families),
            parts.policy,
            SizeGate.of(sampling.group_size, sampling.max_new_tokens, info.turns),
            peer_id=self.local.peer_id,
            turns=info.turns,
        )
        multi_turn = MultiTurn(scoring.rerun_of_peer, partial(turns_fit, codec))
        return GroupVerifier(
            self.local.swarm_id,
            expectations,
            parts.storage,
            scoring.of_peer,
            partial(check_tokens, codec),
            codec.encode_answer,
            multi_turn if info.turns > 1 else None,
        )

    def exchange(
        self, credentials: Credentials, verifier: GroupVerifier
    ) -> tuple[Exchange, Prober | None, Puncher | None]:
        """Make what asks peers, and the server on the node's transport, which answers them."""
        shared_state, tally, reaching = self.shared_state, self.tally, self.reaching
        rng = self.rng("share")  # of server and exchange

        def let_go(peer_id: str) -> None:
            peer = shared_state.directory.get(peer_id)
            if peer is not None:
                shared_state.former[peer_id] = peer
            shared_state.directory.forget(peer_id)
            shared_state.buffer.forget(peer_id)

        def on_pull() -> None:
            tally.groups.sent += 1

        exchange = open_exchange(
            self.local,
            transport=reaching,
            credentials=credentials,
            let_go=let_go,
            storage=self.parts.storage,
            verifier=verifier,
            traffic=shared_state.traffic,
            effort=shared_state.effort,
            rng=rng,
            relays=lambda: reaching.serves,
            publisher=self.parts.publisher,
        )
        reaching.relays.introduce = exchange.asker.introduce
        extra_handlers, prober, puncher = self.probing(exchange.asker)
        Server(
            self.local,
            transport=reaching,
            credentials=credentials,
            storage=self.parts.storage,
            traffic=shared_state.traffic,
            rng=rng,
            extra_handlers=extra_handlers,
            on_pull=on_pull,
        )
        return exchange, prober, puncher

    def probing(self, asker: Asker) -> tuple[Mapping[str, Answer], Prober | None, Puncher | None]:
        """Make the answers to members that ask for a probe or a direct link between nodes behind
        NAT, and the parts that ask members for one."""
        local, reach, reaching, rng = self.local, self.parts.reach, self.reaching, self.rng("probe")
        if self.parts.knock is None:
            return {}, None, None

        async def ask(peer_id: str, payload: bytes) -> bytes | None:
            peer = local.directory.get(peer_id)
            if peer is None:
                return None
            return await asker.ask(peer, PUNCH, payload, max_reply=MAX_BODY)

        server = ProbeServer(local, asker, transport=reaching, knock=self.parts.knock, rng=rng)
        prober = Prober(local, asker, reach, transport=reaching, rng=rng)
        puncher = Puncher(
            local.peer_id,
            partial(place_of, reach),
            ask=ask,
            dial=partial(reaching.dial, is_punch=True),
            issuer=local.members.issuer,
            clock=self.parts.clock,
        )
        reaching.punch = puncher.punch
        answers = {PROBE: server.answer, PROBE_FOR: server.answer_for, PUNCH: puncher.answer}
        return answers, prober, puncher

    def coordinator_loop(
        self, credentials: Credentials, discovery: Discovery
    ) -> CoordinatorLoop | None:
        """Make the loop with the coordinator, if the settings or the ticket name one."""
        url = self.settings.network.coordinator
        if not url:
            return None
        from swarm_node.node.loops.peers.coordinator_loop import CoordinatorLoop

        return CoordinatorLoop(
            self.local,
            url,
            credentials=credentials,
            discovery=discovery,
            keeper=self.parts.office,
            rng=self.rng("coordinate"),
            tally=self.tally,
        )


def _rng(purpose: str, settings: Settings, peer_id: str) -> random.Random:
    """Make a generator for one purpose. Draws for training then do not depend on peers."""
    seed = f"{purpose}:{settings.run.seed}:{peer_id}"
    return random.Random(seed)  # noqa: S311 - reproducible, not secret
