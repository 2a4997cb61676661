"""Modules that are made without memory."""

from __future__ import annotations

import torch
from torch import nn

from swarm_node.policy.models.tensors import without_memory


def made() -> nn.Module:
    module = nn.Module()
    module.matrix = nn.Parameter(torch.ones(300, 200))
    module.register_parameter("same", module.matrix)
    module.vector = nn.Parameter(torch.ones(200))
    return module


def test_matrices_of_a_module_have_a_shape_and_no_memory() -> None:
    with without_memory():
        module = made()
    assert module.matrix is module.same
    assert module.matrix.shape == (300, 200)
    assert module.matrix.untyped_storage().nbytes() == 4
    assert module.vector.tolist() == [1.0] * 200
    assert made().matrix.untyped_storage().nbytes() == 4 * 300 * 200
