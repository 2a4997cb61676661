"""The optimizer is torch's AdamW, and costs no import of torch's compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders import printed_by, trainer_settings
from torch import nn

from swarm_node.policy.training.update.optimizer import AdamW

BETAS, DECAY = (0.9, 0.99), 0.05


def test_it_is_torchs_adamw_step_for_step() -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((5, 3), (7,), (2, 2))]
    ours = [nn.Parameter(tensor.clone()) for tensor in start]
    theirs = [nn.Parameter(tensor.clone()) for tensor in start]
    optimizer = AdamW(ours, BETAS, DECAY)
    reference = torch.optim.AdamW(theirs, betas=BETAS, weight_decay=DECAY)
    for step in range(1, 21):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            missing = number == 2 and step % 2 == 1  # a parameter without a gradient stays put
            gradient = None if missing else torch.randn(one.shape, generator=generator)
            one.grad, other.grad = gradient, gradient
        rate = 0.01 * step
        reference.param_groups[0]["lr"] = rate
        reference.step()
        optimizer.step(rate)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.detach(), other.detach())
    assert not torch.equal(ours[2].detach(), start[2])
    for one, other in zip(ours, theirs, strict=True):
        for kind, value in reference.state[other].items():
            torch.testing.assert_close(optimizer.state[one][kind], value)


@pytest.mark.slow(reason="starts a process that imports torch")
def test_training_imports_no_compiler(random_qwen2: Path, tmp_path: Path) -> None:
    plain = trainer_settings().plain()
    code = f"""
import asyncio, sys
from pathlib import Path
import numpy as np
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.rollout import Provenance
model, work = Path({str(random_qwen2)!r}), Path({str(tmp_path)!r})
host = TrainerHost(model, work / "checkpoints", work, TrainerSettings.from_plain({plain!r}))
ids = np.arange(4, 9, dtype=np.uint32)
rows = tuple(
    TrainRow(ids, ids, np.full(5, -1.0, np.float32), sign, Provenance.LOCAL) for sign in (1.0, -1.0)
)
assert host.update(Batch(rows)).stats.skipped is None
host.checkpoint({{}})
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    assert printed_by(code) == "[]\n"
