"""Antiderivatives are told by the rules of differentiation."""

from __future__ import annotations

import pytest

from swarm_node.environments.reasoning_gym.derivatives import is_antiderivative


@pytest.mark.parametrize(
    ("answer", "integrand"),
    [
        ("x**2/2 + C", "x"),
        ("x*sin(x) + cos(x)", "x*cos(x)"),
        ("x*sin(x)*x", "2*x*sin(x) + x**2*cos(x)"),
        ("exp(x)*sin(x) - 3*x", "exp(x)*(sin(x) + cos(x)) - 3"),
        ("log(x)/x", "(1 - log(x))/x**2"),
    ],
)
def test_products_and_quotients_follow_their_rules(answer: str, integrand: str) -> None:
    assert is_antiderivative(answer, integrand, "x")
    assert not is_antiderivative(f"x*({answer})", integrand, "x")
    assert not is_antiderivative(answer, f"x*({integrand})", "x")
