"""What `swarm-node --help` lists."""

from typer.testing import CliRunner

from swarm_node.cli.main import app


def test_the_panels_begin_with_what_one_needs_first() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    places = [shown.index(f" {panel} ─") for panel in ("Basic", "Network", "Model", "Experiments")]
    assert places == sorted(places)
