"""`assay push` and `assay pull`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from assay.show.console import Console
from assay.show.formatting import render_count, render_size
from assay.values.options import Request, argument, json_option, option, quiet_option, root_option, where_option

if TYPE_CHECKING:
    from assay.values.where import Where


class PushRequest(Request):
    names: tuple[str, ...] = argument("NAME...", multiple=True)
    to: str = option("--to", metavar="ADDRESS", required=True, help="s3://, gs:// or az://BUCKET/PREFIX, or a folder.")
    where: Where | None = where_option()
    check: bool = option(
        "--check", default=False, help="Ask the storage for every file; send files again that are damaged there."
    )
    dry_run: bool = option("--dry-run", default=False, help="Only print what would be sent.")
    quiet: bool = quiet_option()
    as_json: bool = json_option()
    root: str | None = root_option()


def push(request: PushRequest, console: Console) -> int:
    """Send NAME to shared storage: a study, STUDY/RUN, a pattern such as 'STUDY/lr=0.1*', or any other folder.

    Only files that are not there yet are sent; each file is then verified by its hash. After a kill the same command
    continues. Secrets are never sent; the code of a study is sent once.
    """
    from assay.exchange.sharing import choose_folders
    from assay.exchange.store import mirror
    from assay.exchange.store.remote import open_remote
    from assay.values.state import State

    console = console.quieted(request.quiet or request.as_json)
    remote = open_remote(request.to, console.message)
    private: list[str] = []
    folders = choose_folders(request.names, request.where, request.root, private)
    running = [each.name for each in folders if each.facts.get("state") in (State.RUNNING, State.QUEUED)]
    facts: list[dict[str, Any]] = []
    for sent in mirror.push(folders, remote, check=request.check, dry_run=request.dry_run):
        folder = sent.folder
        facts.append(
            {
                "kind": folder.kind,
                "name": folder.name,
                "files": len(sent.manifest.files),
                "bytes": sent.manifest.bytes,
                "sent_files": sent.sent,
                "sent_bytes": sent.sent_bytes,
                "is_new": sent.is_new,
                "is_running": folder.name in running and folder.kind == "run",
            }
        )
        if folder.kind in ("run", "folder") and not request.as_json:
            how = "new" if sent.is_new else "updated" if sent.sent else "unchanged"
            console.message(f"{folder.name}: {how}, {_count(sent.sent, sent.sent_bytes)}")
    for name in running:
        console.message(f"{name} is not finished: it was sent as it is now; send it again when it is")
    for path in private:
        console.warning(f"{path} may be read by its owner alone and was not sent")
    if request.as_json:
        console.write_json(facts)
        return 0
    _print_total("would send" if request.dry_run else "sent", facts, "sent", f"to {request.to}", console)
    return 0


class PullRequest(Request):
    names: tuple[str, ...] = argument("NAME...", multiple=True)
    address: str = option(
        "--from", metavar="ADDRESS", required=True, help="s3://, gs:// or az://BUCKET/PREFIX, or a folder."
    )
    where: Where | None = where_option("Only runs that matched EXPR when they were sent.")
    into: str | None = option("--into", metavar="DIR", help="Where a folder goes.  [default: ./NAME]")
    dry_run: bool = option("--dry-run", default=False, help="Only print what would be fetched.")
    quiet: bool = quiet_option()
    as_json: bool = json_option()
    root: str | None = root_option("Where the runs go.  [default: ./runs]")


def pull(request: PullRequest, console: Console) -> int:
    """Fetch NAME from the storage that `assay push` sent it to: a study, STUDY/RUN, STUDY/PATTERN, or a folder.

    Only files that are not here yet are fetched. A run appears when it is complete. An older state that is here is
    brought up to date. A run is refused if it has gone on here, or if another run has its name. Damaged runs in the
    storage are reported, and the others are fetched.
    """
    from assay.config.settings import load_settings
    from assay.errors import ExitCode, FormatError, UsageError
    from assay.exchange.sharing import check_pull, find_shared, pull_all
    from assay.exchange.store.remote import open_remote
    from assay.follow.locations import choose_root

    console = console.quieted(request.quiet or request.as_json)
    root, _ = choose_root(request.root, None, load_settings(os.getcwd(), os.environ))
    remote = open_remote(request.address, console.message)
    damaged: list[FormatError] = []
    found = find_shared(request.names, request.where, remote, damaged)
    if request.into is not None and [each.kind for each in found] != ["folder"]:
        raise UsageError("--into is for one folder", "choose where runs go with --root DIR")
    facts: list[dict[str, Any]] = []
    pulled = (check_pull if request.dry_run else pull_all)(found, remote, root, request.into)
    for manifest, done in zip(found, pulled, strict=True):
        if isinstance(done, FormatError):
            damaged.append(done)
            continue
        damaged += done.damaged
        fact = {"kind": manifest.kind, "name": manifest.name, "dir": done.path, "how": done.how}
        facts.append({**fact, "fetched_files": done.files, "fetched_bytes": done.bytes})
        for note in done.notes:
            console.message(f"{manifest.name}: {note}")
        console.message(f"{manifest.name}: {done.how}, {_count(done.files, done.bytes)}")
        if manifest.facts.get("state") == "running":
            console.message(f"{manifest.name} was not finished when it was sent")
    for text in dict.fromkeys(error.render() for error in damaged):  # print an error that several runs share only once
        console.warning(text)
    code = int(ExitCode.INTERNAL if damaged else ExitCode.OK)
    if request.as_json:
        console.write_json(facts)
        return code
    _print_total("would fetch" if request.dry_run else "fetched", facts, "fetched", f"from {request.address}", console)
    return code


def _count(files: int, size: int) -> str:
    return f"{render_count(files, 'file')}, {render_size(size)}"


def _print_total(verb: str, facts: list[dict[str, Any]], key: str, where: str, console: Console) -> None:
    runs = sum(each["kind"] == "run" for each in facts)
    folders = sum(each["kind"] == "folder" for each in facts)
    what = [render_count(runs, "run")] if runs or not folders else []
    what += [render_count(folders, "folder")] if folders else []
    files, size = sum(each[f"{key}_files"] for each in facts), sum(each[f"{key}_bytes"] for each in facts)
    console.print(f"{verb} {_count(files, size)} {where} ({' and '.join(what)})")
