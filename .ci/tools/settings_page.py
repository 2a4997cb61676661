"""docs/settings.md, written from the settings' model: `make settings-page`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from swarm_node.cli.views.config_view import SettingRow, explain_settings
from swarm_node.config import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
_HEAD = """\
# Settings

`make settings-page` generates this page from [model.py](../swarm_node/config/model.py).
`swarm-node config` shows the values in force on a machine, and where each one comes from.
`swarm-node config --toml > node.toml` writes them as a settings file.

The sources of a setting, in order of precedence:

| source | how `experience.local` is written there |
| --- | --- |
| command line | `--set experience.local=6`; common settings have a flag (`--local 6`) |
| environment variable | `SWARM_NODE_EXPERIENCE__LOCAL=6` |
| TOML file (`--config FILE`, `SWARM_NODE_CONFIG`) | `[experience]`, below it `local = 6` |
| data directory (home) | values of earlier starts: `swarm-node config set experience.local=6` |
| default | the column below; some defaults depend on the model, the machine or the ticket |

A node remembers its flags, `--set` and the values of its settings file in its data directory, so
`swarm-node join` alone restarts it with the same settings and port. It does not remember
environment variables, tickets, `verbose`, `log_format` and `run.max_steps`. Passing a settings file
replaces all values that were remembered from an earlier one. `swarm-node join --forget KEY` returns
to the default. If the file `settings.json` in the data directory is lost, `doctor`, `config` and
the next start report it.

An unknown key or a value out of range aborts the start, with a message that names the key. `1..8`
includes both ends, `>0..1` excludes 0, and `-` is an empty value. Lists are written `["a", "b"]`.
`environment.options` is not merged: the strongest source that sets one of its keys supplies the
whole table.

When a running node reads its settings again, it applies those marked *at once*; the others take
effect at the next start. `swarm-node config set KEY=VALUE` stores a value in the data directory and
reloads the running node; with `--config FILE` or `SWARM_NODE_CONFIG`, it edits that file instead
and keeps its comments. If you edit a file by hand, reload the node with `kill -HUP PID`. If the
file has a mistake, nothing changes, and the log says why. A reload does not change settings that
were set by a flag or an environment variable.

There is no `top_p`, `top_k` or `min_p`. The loss divides the trained policy's probability of a
token by the probability with which it was sampled. If the sampler truncated its distribution, some
of these ratios would be undefined, and other nodes could not train on its completions. A
temperature below 1 makes unlikely tokens rarer, and every ratio stays finite.
"""


def settings_page() -> str:
    """The whole page."""
    parts = [_HEAD]
    keys = explain_settings({}, environ={})
    for table, members in groupby(keys, lambda key: key.name.rpartition(".")[0]):
        model = Settings.model_fields[table].annotation if table else None
        title = f"{table}: {_first_line(model)}" if table else "Node"
        parts.append(f"## {title}\n\n| setting | accepted | default | in use | meaning |\n")
        parts.append("| --- | --- | --- | --- | --- |\n" + "".join(map(_row, members)))
    page = "\n".join(parts)
    return page.replace("meaning |\n\n|", "meaning |\n|")


def _first_line(model: object) -> str:
    line = (model.__doc__ or "").partition("\n")[0].rstrip(".")
    return line[:1].lower() + line[1:]


def _row(key: SettingRow) -> str:
    default = "per user: see `swarm-node config`" if key.name == "home" else _default(key.default)
    effect = "at once" if key.at_once else "at a start"
    cells = (f"`{key.name}`", _cell(key.choices), default, effect, _cell(key.description))
    return f"| {' | '.join(cells)} |\n"


def _default(value: object) -> str:
    return "-" if value is None or value in ("", [], {}) else f"`{value}`"


def _cell(text: str) -> str:
    """Text inside a table of Markdown."""
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(settings_page())
