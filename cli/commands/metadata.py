"""`raidx save-metadata` and `raidx restore-metadata`: configurations of arrays in files."""

from __future__ import annotations

import os
import shlex
from functools import partial
from typing import TYPE_CHECKING

import click

from raidx_fuse.cli.app import verb
from raidx_fuse.cli.asking import array_named, ask, is_place
from raidx_fuse.cli.output import Output, plural, warn
from raidx_fuse.cli.parameters import ARRAYS, PATH
from raidx_fuse.errors import UsageError
from raidx_fuse.members.spec import absolute

if TYPE_CHECKING:
    from raidx_fuse.documents import MetadataRestored, MetadataSaved, SavedMetadata


@verb()
@click.argument("words", metavar="ARRAY | MEMBER... FILE", nargs=-1, required=True, type=ARRAYS)
def save_metadata(out: Output, words: tuple[str, ...]) -> None:
    """Save the configuration of an array in a file, for members that lose their superblocks.

    The array may be mounted, or is named by all of its members. Keep the file elsewhere. Content,
    log and maps are not in it. A mount keeps the last ten configurations by itself, in the state
    directory (/var/lib/raidx/metadata, ~/.local/state/raidx/metadata).
    """
    import trio

    from raidx_fuse.daemon import metadata

    *arrays, file = words
    if not arrays:
        raise UsageError(
            "save-metadata needs an array and a file", action="see raidx save-metadata --help"
        )
    place = array_named(arrays[0]) if len(arrays) == 1 else arrays[0]
    saved: SavedMetadata
    if len(arrays) == 1 and is_place(place):
        saved = ask(out, place, "save-metadata")
    else:
        specs = [absolute(member) for member in arrays]
        saved = trio.run(metadata.save_at_rest, specs)
    path = os.path.abspath(file)
    metadata.write_file(path, saved)
    config = saved["configuration"]
    saying: MetadataSaved = {
        "path": path,
        "array": config["name"],
        "array_uuid": config["array_uuid"],
        "events": config["events"],
        "saved": saved,
    }
    document = out.fit(saying)
    members = plural(len(saved["members"]), "member")
    out.emit(
        document,
        f"{document['path']}: array {document['array']} of {members}, event {document['events']}",
    )


@verb()
@click.argument("file", type=PATH)
@click.argument("members", metavar="[ROLE=]MEMBER...", nargs=-1, required=True, type=PATH)
@click.option("--yes", is_flag=True, help="Write; without it, only report what would be written.")
@click.option(
    "--start-degraded",
    is_flag=True,
    help="Although members of the array are not given, or what they wrote last is in doubt.",
)
@click.option(
    "--accept-older",
    is_flag=True,
    help="Yes: members, layout and volumes have not changed since the file was saved.",
)
@click.option(
    "--overwrite-signature",
    is_flag=True,
    help="Overwrite an array, file system or partition table found in front of a member.",
)
def restore_metadata(
    out: Output,
    file: str,
    members: tuple[str, ...],
    yes: bool,
    start_degraded: bool,
    accept_older: bool,
    overwrite_signature: bool,
) -> None:
    """Give members that have lost their superblocks new ones from a saved configuration.

    Give all members of the array, those with a superblock, too: if theirs is newer than the file,
    the others get theirs. Without --yes nothing is written.

    A member is recognised by its content, else by a lasting path. If nothing says which one it is,
    name it: ROLE=MEMBER or UUID=MEMBER. What could harm is refused: a file from before a change of
    the array, a member that is out of date, a wrong order, maps that are lost on all members.
    """
    import trio

    from raidx_fuse.daemon import metadata

    words = [metadata.parted(member) for member in members]
    request = metadata.RestoreRequest(
        file=os.path.abspath(file),
        members=tuple(absolute(member) for _, member in words),
        names={at: name for at, (name, _) in enumerate(words) if name is not None},
        degraded=start_degraded,
        older=accept_older,
        overwrite_signature=overwrite_signature,
    )
    document = out.fit(trio.run(partial(metadata.restore, request, write=yes)))
    for text in document["warnings"]:
        warn(f"warning: {text}")
    out.emit(document, _text(document))


def _text(document: MetadataRestored) -> str:
    would = "would be" if document["dry_run"] else "is"
    source = "of the file" if document["source"] == "file" else "of the other members"
    lines = [f"array {document['array']}, configuration {source}, event {document['events']}"]
    for each in document["members"]:
        done = f"superblock {would} written" if each["action"] == "write" else "superblock is valid"
        lines.append(
            f"  role {each['role']}: {each['path']}, recognised {each['recognised']}: {done}"
        )
    lines += [f"  not given: {path}" for path in document["absent"]]
    checked = f"{document['stripes_checked']} stripes checked, {document['stripes_wrong']} wrong"
    lines.append(f"it mounts; state {document['state']}; {checked}")
    paths = shlex.join(each["path"] for each in document["members"])
    if document["dry_run"]:
        lines.append("nothing was written: add --yes")
    else:
        lines.append(f"look at it first: raidx mount --read-only {paths} MOUNTPOINT")
    return "\n".join(lines)
