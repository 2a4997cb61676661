"""docs/settings.md, written from the settings' model: `make settings-page`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from swarm_node.cli.views.config_view import SettingRow, explain_settings
from swarm_node.config import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
_HEAD = """\
# Settings

`make settings-page` writes this page from [model.py](../swarm_node/config/model.py).
`swarm-node config` shows the same with the values in force on a machine, and where each comes from.
`swarm-node config --toml > swarm.toml` writes them as a settings file.

The first of these sources that names a setting decides:

| source | how `experience.local` is written there |
| --- | --- |
| command line | `--set experience.local=6`; common ones have a flag (`--local 6`) |
| environment variable | `SWARM_NODE_EXPERIENCE__LOCAL=6` |
| TOML file (`--config FILE`, `SWARM_NODE_CONFIG`) | `[experience]`, below it `local = 6` |
| the home | what earlier starts were given: `swarm-node config set experience.local=6` |
| default | the column below, and what a model, a machine or a ticket brings |

A home remembers the flags of `join`, `--set`, and the values of a settings file, so that
`swarm-node join` alone goes on as before, also on its port. It does not remember variables,
tickets, `verbose`, `log_format` and `run.max_steps`. A settings file that is given stands for all
that one said before. `swarm-node join --forget KEY` returns to the default.
If its `settings.json` is lost, `doctor`, `config` and the next start say so.

A key that does not exist, and a value out of its range, end the start with a message that names the
key. `1..8` is a range with both ends, `>0..1` one without 0. A list is written `["a", "b"]`
everywhere. The strongest source with a key of `environment.options` replaces this table as a whole.
`-` is an empty value.

A running node takes over what is in use **at once** when its file is read again; the others wait
for a start. `swarm-node config set KEY=VALUE` writes into the home, with `--config` or
`SWARM_NODE_CONFIG` into that file and keeps its comments, and has the running node read it. After
an edit by hand `kill -HUP` does. A file with a mistake changes nothing: reply and log say why. What
the command line or a variable of the node names stays as it is.

There is no `top_p`, `top_k` or `min_p`. The loss divides the trained policy's probability of a
token by the probability that it was sampled with. A truncated distribution gives 0 to most tokens,
and after an update, or at a peer with other weights, it gives 0 to other ones: a ratio has no value
there, and an answer that is good for one node is impossible for the next. A temperature below 1
makes unlikely tokens rarer, and leaves every ratio finite.
"""


def settings_page() -> str:
    """The whole page."""
    parts = [_HEAD]
    keys = explain_settings({}, environ={})
    for table, members in groupby(keys, lambda key: key.name.rpartition(".")[0]):
        model = Settings.model_fields[table].annotation if table else None
        title = f"{table}: {_first_line(model)}" if table else "Of the node"
        parts.append(f"## {title}\n\n| setting | accepted | default | in use | meaning |\n")
        parts.append("| --- | --- | --- | --- | --- |\n" + "".join(map(_row, members)))
    joined = "\n".join(parts)
    return joined.replace("meaning |\n\n|", "meaning |\n|")


def _first_line(model: object) -> str:
    line = (model.__doc__ or "").partition("\n")[0].rstrip(".")
    return line[:1].lower() + line[1:]


def _row(key: SettingRow) -> str:
    default = "of the user: `swarm-node config`" if key.name == "home" else _default(key.default)
    when = "at once" if key.at_once else "at a start"
    cells = (f"`{key.name}`", _cell(key.choices), default, when, _cell(key.description))
    return f"| {' | '.join(cells)} |\n"


def _default(value: object) -> str:
    return "-" if value is None or value in ("", [], {}) else f"`{value}`"


def _cell(text: str) -> str:
    """Text inside a table of Markdown."""
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(settings_page())
