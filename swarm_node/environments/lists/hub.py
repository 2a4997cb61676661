"""Questions of a hub, by the name of their data set, as JSON Lines of one commit.

A program of its own fetches and prints them, for two reasons. Package `datasets` starts threads,
which would not survive the forks of the environment's process. And what a hub sends is bounded here
by time and bytes like any other program's output, before the usual reader parses it line by line.

The files of the commit are fetched by `huggingface_hub`, which keeps them and knows whether they
are all there, so that a later start needs no network. `datasets` reads them from the disk, offline.
It runs no code of a data set.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

from swarm_node.environments.lists.rows import MAX_FILE_BYTES, MAX_ROWS, Source, refuse
from swarm_node.environments.registry import HUB
from swarm_node.errors import ConfigError, extra_of, words_of
from swarm_node.process import die_with_parent
from swarm_node.process.bounded import bounded_run

#: The most that is fetched of a data set, and the longest file that reading it may write.
MAX_FETCHED_BYTES: Final = 4 << 30
#: A start waits for an environment for ten minutes (`workers/processes.py`).
_SECONDS: Final = 540.0
#: The formats of rows, and the page that tells subsets apart. Archives and code stay on the hub.
_FILES: Final = (
    *("*.parquet", "*.arrow", "*.json", "*.jsonl", "*.csv", "*.tsv", "README.md"),
    *("*.json.gz", "*.jsonl.gz", "*.csv.gz", "*.json.zst", "*.jsonl.zst"),
)
_REPO: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/([A-Za-z0-9][\w.-]{0,63})", re.ASCII)
_REVISION: Final = re.compile(r"(?!.*\.\.)[\w./-]{1,255}", re.ASCII)
_SUBSET: Final = re.compile(r"[\w .:+@=,-]{0,128}", re.ASCII)
_SPLIT: Final = re.compile(r"\w+(\.\w+)*(\[[0-9%:-]{0,40}\])?", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_HAND: Final = "or export the rows as JSON Lines and give that file"


class HubRows(NamedTuple):
    """A data set of a hub: OWNER/NAME, a revision ("" for main), one of its subsets ("" for the
    only one), and a split, such as "train" or "train[:1000]"."""

    repo: str
    revision: str
    subset: str
    split: str


def hub_rows(path: str, subset: str, split: str, revision: str) -> HubRows:
    """What `path`, hub:OWNER/NAME or hub:OWNER/NAME@REVISION, and the options name. Pure.

    Raises:
        ConfigError: one of them is malformed, or there are two revisions.
    """
    repo, _, path_revision = path.removeprefix(HUB).partition("@")
    if not _REPO.fullmatch(repo):
        raise refuse("path", f"{path[:200]!r}: name a data set as {HUB}OWNER/NAME")
    if path_revision and revision and path_revision != revision:
        raise refuse(
            "revision", f"{revision!r} is not that of the path, {path_revision!r}: give one"
        )
    for option, value, form in (
        ("revision", path_revision or revision or "main", _REVISION),
        ("subset", subset, _SUBSET),
        ("split", split, _SPLIT),
    ):
        if not isinstance(value, str) or not form.fullmatch(value):
            raise refuse(option, f"{value!r} is none of a data set; see its page on the hub")
    return HubRows(repo, path_revision or revision, subset, split)


def fetch(dataset: HubRows) -> tuple[Source, str]:
    """Fetch the rows of a data set, as a program of its own, and say which commit they are of.
    That is part of what members compare.

    Raises:
        ConfigError: `datasets` is not installed, or the data set cannot be had; says why.
    """
    path = f"{HUB}{dataset.repo}"
    if find_spec("datasets") is None:
        raise refuse("path", f"{path} needs the package datasets: run {extra_of('data')}, {_HAND}")
    command = [sys.executable, "-m", __name__, str(os.getpid()), json.dumps(dataset)]
    try:
        # With room for the line of the commit.
        process = bounded_run(command, _SECONDS, max_bytes=MAX_FILE_BYTES + 4096)
    except (OSError, subprocess.SubprocessError) as error:
        raise refuse(
            "path", f"{path}: {words_of(error)}: try again, which goes on where it stopped, {_HAND}"
        ) from error
    if process.returncode:
        lines = process.stderr.decode(errors="replace").strip().splitlines() or [
            "it ended the process"
        ]
        if lines[-1].startswith("environment."):
            raise ConfigError(lines[-1])
        raise refuse("path", f"{path}: package datasets failed ({lines[-1][:300]}): {_HAND[3:]}")
    commit, _, data = process.stdout.partition(b"\n")
    name = commit.decode("ascii", "replace")
    if not _COMMIT.fullmatch(name):
        raise refuse("path", f"{path}: no commit was named, but {name[:40]!r}: {_HAND[3:]}")
    family = dataset.repo.partition("/")[2]
    pin = f"{path}@{name} {dataset.subset} {dataset.split}\0"
    return Source(family, f"{path}@{name[:12]}", data, pin), name


def json_line(row: Mapping[str, Any]) -> bytes:
    """A row as a line of JSON. What JSON does not have is null if it is a number, and else an
    object that names its type, which no field of a question may be."""
    line = json.dumps(_plain(row), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return line.encode("utf-8", "surrogatepass") + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {"type": type(value).__name__}


def download(dataset: HubRows) -> Path:
    """Return the directory of a dataset's files at one commit, which names it. Files of an earlier
    start are not fetched again.

    Raises:
        ConfigError: the hub does not have it, or does not give it, or it is too large.
    """
    from httpx2 import HTTPError
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    options: dict[str, Any] = {"repo_type": "dataset", "allow_patterns": list(_FILES)}
    revision = dataset.revision or "main"
    path = f"{HUB}{dataset.repo}"
    try:
        try:
            files = snapshot_download(dataset.repo, revision=revision, dry_run=True, **options)
        except errors.DryRunError:  # no network: the cache may have it
            files = []
        size = sum(file.file_size or 0 for file in files)
        if size > MAX_FETCHED_BYTES:
            raise refuse(
                "path",
                f"{path} has {size / 1e9:.1f} GB, and {MAX_FETCHED_BYTES / 1e9:.1f} are the most: "
                f"{_HAND[3:]}",
            )
        # The revision may have moved on since.
        commit = files[0].commit_hash if files else revision
        return Path(snapshot_download(dataset.repo, revision=commit, **options))
    except errors.RepositoryNotFoundError as error:
        raise refuse(
            "path",
            f"the hub has no data set {dataset.repo}, or a private one: check its name, or run "
            "`hf auth login`",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise refuse("revision", f"{dataset.repo} has no revision {revision!r}") from error
    except (OSError, HTTPError, errors.HFValidationError) as error:
        reason = words_of(error).strip().partition("\n")[0][:200]
        raise refuse(
            "path",
            f"{path} cannot be fetched ({reason}): try again, or run `hf download --repo-type "
            f"dataset {dataset.repo}` first, which also takes proxies and tokens, {_HAND}",
        ) from error


def read(place: Path, subset: str, split: str) -> Iterator[bytes]:
    """The rows of a split of the data set in a directory, as lines of JSON. No file outside the
    directory is read, whatever its page says.

    Raises:
        ConfigError: there is no such subset or split, or `datasets` cannot read its files.
    """
    # Read when it is imported. Everything is on the disk.
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    import datasets

    datasets.disable_progress_bars()
    step, option = "subset", subset
    try:
        builder = datasets.load_dataset_builder(str(place), name=subset or None)
        _check_within(place, builder.config.data_files or {})
        step, option = "split", split
        builder.download_and_prepare()
        dataset = builder.as_dataset(split=split)
    except (datasets.exceptions.DatasetsError, ValueError, RuntimeError, OSError) as error:
        cause = error.__cause__ or error  # of files that cannot be read
        reason = " ".join(words_of(cause).split())[:300]
        raise refuse(step, f"{option!r} cannot be had: {reason}") from error
    if dataset.num_rows > MAX_ROWS:
        part = f"{split.partition('[')[0]}[:{MAX_ROWS}]"
        raise refuse("split", f"{split!r} has {dataset.num_rows} rows: take part of it, as {part}")
    # Pictures and sounds are decoded by packages that need not be there.
    media = [name for name, kind in dataset.features.items() if hasattr(kind, "decode")]
    for row in dataset.remove_columns(media):
        yield json_line(row)


def _check_within(place: Path, files: Mapping[str, Any]) -> None:
    """Raise if a data set names a file that is not its own: its page could name a file of this
    machine, or an address. Files of a cache are links, so paths count as they are written."""
    root = os.path.realpath(place) + os.sep
    for paths in files.values():
        for file in paths:
            if not os.path.normpath(str(file)).startswith(root):
                raise ValueError(f"it names {str(file)[:120]!r}, which is not one of its files")


def main(parent: str, request: str) -> None:
    """The program: prints the commit and then the rows. What is wrong is the last line of its
    standard error."""
    die_with_parent(int(parent))
    # A small file of a hub may unpack to any size.
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FETCHED_BYTES, MAX_FETCHED_BYTES))
    dataset, left = HubRows(*json.loads(request)), MAX_FILE_BYTES
    try:
        place = download(dataset)
        sys.stdout.buffer.write(f"{place.name}\n".encode())
        for line in read(place, dataset.subset, dataset.split):
            left -= len(line)
            if left < 0:
                part = f"{dataset.split.partition('[')[0]}[:10%]"
                raise refuse(
                    "split", f"more than {MAX_FILE_BYTES >> 20} MiB: take part of it, as {part}"
                )
            sys.stdout.buffer.write(line)
    except ConfigError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
