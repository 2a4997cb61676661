"""The `swarm-node` command. Each subcommand imports what it needs when it runs, so that `--help` is
quick. An error is one line on stderr with exit code 1 (2 for a wrong command line, 3 for a
node that its swarm does not admit)."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from swarm_node.cli.home import ask, chosen_home, show, sound_home
from swarm_node.cli.options import (
    AcceptOption,
    AloneOption,
    AnswerFieldOption,
    AssignOption,
    ChoicesFieldOption,
    CodeOption,
    ConfigOption,
    CoordinatorOption,
    DeviceOption,
    EnvironmentOption,
    FamiliesOption,
    ForgetOption,
    HomeOption,
    JsonOption,
    LogFormatOption,
    LoraRankOption,
    ModelOption,
    QuestionFieldOption,
    SamplerOption,
    TicketFileOption,
    TicketOption,
    VerboseOption,
    require_report,
    task_flags,
)
from swarm_node.cli.verbs import watching
from swarm_node.cli.verbs.backup import backup, restore
from swarm_node.cli.verbs.config import config_app
from swarm_node.cli.verbs.doctor import doctor
from swarm_node.cli.verbs.env import env_app
from swarm_node.cli.verbs.evaluating import evaluate
from swarm_node.cli.verbs.membership import members
from swarm_node.cli.verbs.membership.delegate import delegate_app
from swarm_node.cli.verbs.peers import peers, ping
from swarm_node.cli.verbs.plan import plan
from swarm_node.cli.verbs.service import service_app
from swarm_node.cli.verbs.serving import serve
from swarm_node.cli.verbs.simulate import simulate
from swarm_node.cli.verbs.support import support_bundle
from swarm_node.cli.verbs.tracking.track import track
from swarm_node.program.commands import home_option
from swarm_node.program.terminal import RefusingGroup, show_page, version_option

if TYPE_CHECKING:
    from swarm_node.config import Sources

app = typer.Typer(
    name="swarm-node",
    cls=RefusingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Post-train language models together by sharing signed rollouts.\n\n"
    "Start with `swarm-node demo`, or `swarm-node join --model tiny`.",
)
model_app = typer.Typer(no_args_is_help=True, help="Models that ship with the program.")

_BASIC, _MEMBERS, _NETWORK = "Basic", "Members", "Network"


@app.callback()
def _main(
    version: Annotated[bool, version_option("swarm-node")] = False,
) -> None:
    pass


@app.command(rich_help_panel=_BASIC)
def demo(
    nodes: Annotated[int, typer.Option(min=2, max=9, help="Node processes.")] = 3,
    minutes: Annotated[
        float | None, typer.Option(min=0.5, max=120, help="Minutes to run: 3, or 15 with --model.")
    ] = None,
    report: Annotated[Path, typer.Option(help="Directory of the report.")] = (Path("demo-report")),
    sampler: SamplerOption = None,
    environment: Annotated[str, typer.Option(help="drills, or games of two turns.")] = "drills",
    model: Annotated[str | None, typer.Option(help="A pretrained model: smollm2-135m …")] = None,
) -> None:
    """Watch a private swarm of real nodes on this machine learn from each other.

    Each node samples three of the nine task families and meets the others only in its peers'
    rollouts. With `--environment games`, each samples one of three games. With a pretrained model,
    which takes 15 minutes, there are five families of graded tasks. Ctrl-C ends the demo cleanly.
    """
    from swarm_node.policy.models.model import require_model

    if model is not None:
        require_model(model)
    require_report(report)
    from swarm_node.demo.tasks import ground_of

    ground_of(environment, nodes, model)
    from swarm_node.demo.run import run_demo

    raise typer.Exit(asyncio.run(run_demo(nodes, minutes, report, sampler, environment, model)))


@app.command(rich_help_panel=_BASIC)
def init(
    name: Annotated[str, typer.Argument(help="The swarm's name: letters, digits, space, _ . -")],
    home: HomeOption = None,
) -> None:
    """Create a private swarm: its root key and its swarm file."""
    place = chosen_home(home)
    with place.lock():
        membership = place.found_swarm(name, time.time())
    option = home_option(home)
    typer.echo(f"Created swarm {membership.swarm.name!r} in {place.path}")
    typer.echo(f"  swarm id   {membership.swarm.swarm_id.hex()}")
    typer.echo(f"  root key   {membership.swarm.fingerprint} (fingerprint)")
    typer.echo(f"  this node  {membership.identity.peer_id}")
    typer.echo(f"Keep {place.path / 'root.key'} safe: whoever has it decides who is a member.")
    typer.echo("Next:")
    typer.echo(f"  swarm-node join{option} --model tiny        start this node")
    typer.echo(f"  swarm-node invite{option} --name NAME --out NAME.ticket    a ticket for NAME")
    typer.echo("  swarm-node join --ticket-file NAME.ticket    on NAME's machine")


@app.command(rich_help_panel=_BASIC)
def join(
    model: ModelOption = None,
    ticket: TicketOption = None,
    ticket_file: TicketFileOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
    environment: EnvironmentOption = None,
    families: FamiliesOption = None,
    accept: AcceptOption = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset: short, long, chat, graded …; or sapo.")
    ] = None,
    listen: Annotated[list[str] | None, typer.Option(help="Address to listen on.")] = None,
    advertise: Annotated[list[str] | None, typer.Option(help="Address to advertise.")] = None,
    bootstrap: Annotated[list[str] | None, typer.Option(help="Address of another peer.")] = None,
    coordinator: CoordinatorOption = None,
    code: CodeOption = None,
    local: Annotated[int | None, typer.Option(help="Local groups per step (I).")] = None,
    external: Annotated[str | None, typer.Option(help="External groups (J), or auto.")] = None,
    sampler: SamplerOption = None,
    question: QuestionFieldOption = None,
    answer: AnswerFieldOption = None,
    choices: ChoicesFieldOption = None,
    device: DeviceOption = None,
    lora_rank: LoraRankOption = None,
    learning_rate: Annotated[float | None, typer.Option(help="AdamW learning rate.")] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after this many; 0: never.")] = None,
    track_with: Annotated[
        str | None, typer.Option("--track", help="Log to tensorboard, wandb or trackio.")
    ] = None,
    assign: AssignOption = None,
    verbose: VerboseOption = None,
    log_format: LogFormatOption = None,
    forget: ForgetOption = None,
    alone: AloneOption = False,
) -> None:
    """Run a node: sample, share, learn, until Ctrl-C.

    Without a ticket, it resumes the swarm of its data directory, or creates one and prints how to
    invite the next node. The data directory remembers its options, so `join` alone goes on as
    before. If the swarm does not admit the node, the exit code is 3. Options are also TOML keys:
    see `swarm-node config`."""
    from swarm_node.config import Sources, parse_assignments

    flags: dict[str, Any] = {
        "home": home,
        "model": model,
        "ticket": ticket if ticket_file is None else f"@{ticket_file}",
        **task_flags(environment, families, preset, question, answer, choices, accept),
        **{"network.listen": listen, "network.advertise": advertise},
        **{"network.bootstrap": bootstrap, "network.coordinator": coordinator},
        **{"experience.local": local, "experience.external": external},
        **{"sampling.engine": sampler, "run.device": device, "run.max_steps": steps},
        **{"training.lora_rank": lora_rank, "training.learning_rate": learning_rate},
        **{"verbose": verbose, "log_format": log_format, "run.track": track_with},
        **parse_assignments(assign or []),
    }
    sources = Sources(flags, config=config, with_home=True)
    sources.forget(forget or [])
    _start(sources, code, alone)


def _start(sources: Sources, code: str | None, alone: bool) -> None:
    from swarm_node.node.start.resolve_names import require_named

    settings = sources.load()
    require_named(settings, sources)
    # What a typo need not wait for.
    from swarm_node.cli.views.live import live_screen
    from swarm_node.node.start.join import join_swarm

    join_swarm(settings, sources, code, live_screen(settings.log_format), alone=alone)


for command in (
    *(members.invite, members.members, members.revoke, members.rotate_secret),
    *(members.rename, members.block, members.unblock, backup, restore),
):
    app.command(rich_help_panel=_MEMBERS)(command)
app.add_typer(delegate_app, name="delegate", rich_help_panel=_MEMBERS)
app.add_typer(config_app, name="config", rich_help_panel=_BASIC)
app.command(rich_help_panel=_BASIC)(doctor)


@app.command(name="open", rich_help_panel=_BASIC)
def open_page(
    home: HomeOption = None,
    show: Annotated[
        bool, typer.Option("--print", help="Only print the address; open no browser.")
    ] = False,
) -> None:
    """Open the dashboard of the running node in a browser.

    The link works once, within a minute, and is read-only. Over ssh, forward the port that the
    command prints, and open the link on your machine.
    """
    show_page(ask(home, lambda client: client.page()), only_print=show)


app.command(rich_help_panel=_BASIC)(track)
app.add_typer(service_app, name="service", rich_help_panel=_BASIC)
app.command(name="support-bundle", rich_help_panel=_BASIC)(support_bundle)
for command in (watching.samples, watching.top, watching.logs):
    app.command(rich_help_panel=_BASIC)(command)


@app.command(name="train-host", rich_help_panel=_NETWORK)
def train_host(
    node: Annotated[str, typer.Argument(help="HOST:PORT of the node's run.trainer_hosts.")],
    key: Annotated[Path, typer.Option(help="A copy of site.key from the node's data directory.")],
    model: Annotated[
        str | None, typer.Option(help="The node's model, by the same name. [SWARM_NODE_MODEL]")
    ] = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Train for a node on another machine of this site, until that node ends.

    The node sets how many processes train here. They stop and restart with those of the node.
    """
    from swarm_node.config import load_settings
    from swarm_node.errors import ConfigError
    from swarm_node.node.home.home import Home
    from swarm_node.node.hosts.worker_host import WorkerHost
    from swarm_node.p2p.wire.identity import Identity
    from swarm_node.policy.models.model import policy_digests, resolve

    if not re.fullmatch(r"[A-Za-z0-9.-]{1,253}:[1-9]\d{0,4}", node):
        raise ConfigError(f"train-host takes HOST:PORT, such as 10.0.0.1:29400, not {node!r}")
    settings = load_settings({"home": home, "model": model}, config=config)
    place, secret = Home(settings.home), Identity.load(key).seed()
    with place.lock():
        directory = resolve(settings.model)
        attendant = WorkerHost(
            node,
            secret,
            directory,
            policy_digests(directory)[0],
            place.path / "train-host",
            lambda line: typer.echo(line, err=True),
        )
        asyncio.run(attendant.attend())


@app.command(name="id", rich_help_panel=_NETWORK)
def identify(
    home: HomeOption = None,
    swarm_file: Annotated[
        bool, typer.Option("--swarm-file", help="Describe the swarm, for `swarm-coordinator`.")
    ] = False,
) -> None:
    """Print this node's peer id and its swarm."""
    place = sound_home(home)
    swarm = place.swarm()
    if swarm_file:
        typer.echo(f'name = "{swarm.name}"\nroot_key = "{swarm.root_key.hex()}"')
        return
    typer.echo(f"peer   {place.identity().peer_id}")
    typer.echo(f"swarm  {swarm.name} ({swarm.swarm_id.hex()})")
    typer.echo(f"root   {swarm.fingerprint}")


@app.command(rich_help_panel=_BASIC)
def status(
    home: HomeOption = None,
    json: JsonOption = False,
    healthy: Annotated[bool, typer.Option(help="State only; exit code 0 if it runs.")] = False,
) -> None:
    """Show the health of the running node, its metrics, and its eval reward over time.

    The first line is its health. The exit code is 1 if that is an error (✗), such as a
    revoked membership, or if no node runs.
    """
    snapshot = ask(home, lambda client: client.status())
    if healthy:
        typer.echo(snapshot.state)
        raise typer.Exit(0 if snapshot.state == "running" else 1)
    from swarm_node.cli.views.status_view import status_view

    show(json, snapshot, lambda: status_view(snapshot))
    if snapshot.findings and snapshot.findings[0].level == "bad":
        raise typer.Exit(1)


app.command(rich_help_panel=_NETWORK)(peers)
app.command(rich_help_panel=_NETWORK)(ping)
app.command(name="eval", rich_help_panel=_BASIC)(evaluate)
app.command(rich_help_panel=_BASIC)(serve)


@app.command(rich_help_panel=_BASIC)
def stop(home: HomeOption = None) -> None:
    """Stop the running node. It stores a checkpoint first."""
    ask(home, lambda client: client.leave())
    typer.echo("stopped")


@app.command(rich_help_panel=_BASIC)
def losses(json: JsonOption = False) -> None:
    """List the available losses and advantages, with their sources."""
    from swarm_node.cli.views.views import choices_rows, choices_view
    from swarm_node.node.metrics.snapshot import SCHEMA

    show(json, {"schema": SCHEMA, **choices_rows()}, choices_view)


@model_app.command("build-tiny")
def build_tiny(
    out: Annotated[Path, typer.Option(help="Directory to write the model to.")],
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same weights.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Warm-start steps; default: as shipped.")
    ] = None,
    bare: Annotated[
        float | None,
        typer.Option(help="Fraction of right completions that score; default: as shipped."),
    ] = None,
    wrong: Annotated[float | None, typer.Option(help="Fraction of wrong completions.")] = None,
    evasive: Annotated[float | None, typer.Option(help="Fraction of empty completions.")] = None,
    size: Annotated[str, typer.Option(help="small, tiny or medium.")] = "tiny",
    tokenizer: Annotated[str, typer.Option(help="phrases or words.")] = "phrases",
    corpus: Annotated[str, typer.Option(help="single-turn or multi-turn.")] = "single-turn",
) -> None:
    """Build a tiny model from scratch: tokenizer, shape and SFT warm-up, in minutes.

    The corpus "multi-turn" makes tiny-talk. Other sizes and tokenizers make cross-model swarms.
    """
    from swarm_node.policy.models.build_tiny import shipped_recipe
    from swarm_node.simulation.building import build_with_progress

    shares = {"bare_share": bare, "wrong_share": wrong, "evasive_share": evasive}
    build_with_progress(
        out, shipped_recipe(corpus, shares, size=size, tokenizer=tokenizer, steps=steps, seed=seed)
    )


@app.command(rich_help_panel="Model")
def export(
    directory: Annotated[Path, typer.Argument(help="Where to write; must be new or empty.")],
    form: Annotated[
        Literal["hf", "peft"],
        typer.Option("--format", help="The whole model, or the LoRA adapter alone."),
    ] = "hf",
    push: Annotated[
        str | None, typer.Option(help="Also upload to OWNER/NAME of the Hugging Face hub.")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="The base's OWNER/NAME on the hub, if it was not fetched from there."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The base model this data directory trains: tiny, or a directory."),
    ] = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Export the newest checkpoint as a directory that transformers or peft loads.

    The node may be running. A new repository of --push is private.
    """
    from swarm_node.config import load_settings
    from swarm_node.node.home.home import Home
    from swarm_node.policy.models.model import require_model
    from swarm_node.policy.training.checkpoints.target import (
        check_hub,
        check_target,
        require_checkpoint,
    )

    check_target(directory)
    if push is not None:
        check_hub(push)
    settings = load_settings({"home": home, "model": model}, config=config, with_home=True)
    require_model(settings.model)
    require_checkpoint(Home(settings.home).checkpoints, form)
    # Both import torch.
    from swarm_node.library.exporting import export as export_newest
    from swarm_node.policy.training.checkpoints.export import push as upload

    version = export_newest(directory, form, home=home, base=base, model=model, config=config)
    typer.echo(f"wrote policy version {version} to {directory}")
    if push is not None:
        typer.echo(f"pushed to {upload(directory, push)}")


# In this order the panels of --help: Basic, Network, Model, Experiments.
app.command(rich_help_panel="Model")(plan)
app.add_typer(model_app, name="model", rich_help_panel="Model")
app.add_typer(env_app, name="env", rich_help_panel="Model")
app.command(rich_help_panel="Experiments")(simulate)
