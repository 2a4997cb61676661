"""Members that report to a coordinator, for the tests and the benchmark of its page."""

from __future__ import annotations

from coordinator_runs import Hand, Running, found, sealed_report
from swarm_keys import Swarm

from swarm_node.simulation.seeded import EPOCH


async def report_of_crowd(
    running: Running, swarm: Swarm, hand: Hand, members: int, rounds: int = 3
) -> None:
    """Have as many members report, once a minute. Each got groups from up to 40 others."""
    crowd = [swarm.member(number, name=f"node {number}") for number in range(1, members + 1)]
    for turn in range(1, rounds + 1):
        for number, one in enumerate(crowd):
            others = [crowd[(number + step) % members] for step in range(1, min(41, members))]
            known = [
                found(other, turn * (step * number % 37), signature=int(step == 7))
                for step, other in enumerate(others)
            ]
            report = sealed_report(
                one,
                EPOCH + hand.seconds,
                version=10 * turn + number,
                eval_reward=(("gcd", turn / (rounds + 1)), ("chess", number / members)),
                sampled=10 * turn * (1 + number % 3),
                peers=tuple(known),
            )
            status, answer = await running.ask("POST", "/v1/reports", report, by=one)
            assert status == 200, answer
            hand.seconds += 60 / members
