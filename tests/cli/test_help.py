"""What `swarm-node --help` lists."""

from typer.testing import CliRunner

from swarm_node.cli.main import app


def test_help_wraps_at_the_width_of_the_terminal_only() -> None:
    shown = CliRunner().invoke(app, ["join", "--help"], env={"COLUMNS": "80"}).stdout
    text = shown.partition("Options")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    paragraph = lines[lines.index(next(line for line in lines if line.startswith("Without"))) :]
    assert all(len(line) > 50 for line in paragraph[:-2]), shown


def test_the_panels_begin_with_what_one_needs_first() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    places = [shown.index(f" {panel} ─") for panel in ("Basic", "Network", "Model", "Experiments")]
    assert places == sorted(places)
