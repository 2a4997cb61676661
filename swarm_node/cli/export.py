"""`swarm-node export`: writes a home's newest checkpoint in the file formats of transformers and
peft. Cheap to import, so that `--help` is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from swarm_node.cli.options import ConfigOption, HomeOption


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
        typer.Option(help="The base model's public name, such as Qwen/Qwen2.5-0.5B-Instruct."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The base model this home trains: tiny, or a directory.")
    ] = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Export the newest checkpoint as a directory that transformers or peft loads.

    The node may be running. A new repository of --push is private.
    """
    from swarm_node.library.exporting import export as export_newest
    from swarm_node.policy.training.export import check_hub, check_target
    from swarm_node.policy.training.export import push as upload

    check_target(directory)
    if push is not None:
        check_hub(push)
    version = export_newest(directory, form, home=home, base=base, model=model, config=config)
    typer.echo(f"wrote policy version {version} to {directory}")
    if push is not None:
        typer.echo(f"pushed to {upload(directory, push)}")
