"""The click group and the command class: what all commands have in common.

`Verb` gives every command ``--json`` and ``--bytes`` and passes it an `Output`. `Verbs` turns an
error into one line ``raidx: ...`` on standard error and an exit status: 1 failed, 2 usage, 130
interrupted. An exception that errors.py does not define is a bug and keeps its traceback.
"""

from __future__ import annotations

import os
import sys
from collections import UserDict
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from raidx_fuse.cli import defaults, slips, streams
from raidx_fuse.cli.command_table import ALIASES, SECTIONS, TABLE
from raidx_fuse.cli.output import Output, warn
from raidx_fuse.errors import RaidxError, Reason, UsageError, shortage
from raidx_fuse.layouts.codes.code import LayoutError

SENTENCE = 1000  # characters: no first sentence of a help is longer
HELP_OPTIONS = {"help_option_names": ["--help", "-h"]}
WORD = 4096  # characters: what a message repeats of a word, which is at most a path


class Commands(UserDict[str, click.Command]):
    """The commands of the table by name. A module is imported when its command is first used."""

    def __init__(self) -> None:
        super().__init__()
        self.data |= dict.fromkeys(TABLE)  # type: ignore[arg-type]  # None: not imported yet

    def __getitem__(self, name: str) -> click.Command:
        if self.data[name] is None:
            module, _, word = TABLE[name].place.rpartition(".")
            self.data[name] = getattr(import_module(f"raidx_fuse.cli.commands.{module}"), word)
        return self.data[name]


class Verb(click.Command):
    """A command with ``--json`` and ``--bytes``; its `Output` is the context's object."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["context_settings"] = HELP_OPTIONS | (kwargs.get("context_settings") or {})
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON document.")
        )
        self.params.append(
            click.Option(["--bytes", "exact"], is_flag=True, help="Print sizes as exact bytes.")
        )

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Take the defaults of the command from the files (defaults.py)."""
        if parent is not None and parent.default_map:
            extra["default_map"] = defaults.of_command(self, parent.default_map.get(str(self.name)))
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does; raise UsageError for known slips (slips.py)."""
        slips.note(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with the `Output` that its two shared options describe."""
        ctx.obj = Output(json=ctx.params.pop("as_json"), exact=ctx.params.pop("exact"))
        return super().invoke(ctx)


class NoCommandError(click.UsageError):
    """There is no such command."""


_REASONS = (
    (NoCommandError, Reason.UNKNOWN_COMMAND),
    (click.NoSuchOption, Reason.UNKNOWN_OPTION),
    (click.MissingParameter, Reason.MISSING_ARGUMENT),
)


class Nouns(click.Group):
    """A group of `Verb` commands; the error for an unknown name suggests similar ones."""

    command_class = Verb

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(n, each.get_short_help_str(SENTENCE)) for n, each in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; raise UsageError with similar names for an unknown command.

        `help` before a command is `--help` behind it.
        """
        if args[0] == "help":
            if not args[1:]:
                click.echo(ctx.get_help(), color=ctx.color)
                ctx.exit()
            args = [*args[1:], "--help"]
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            from difflib import get_close_matches  # late: for this error alone

            near = get_close_matches(name, [*self.commands, *ALIASES], n=3, cutoff=0.6)
            hint = f"did you mean {' or '.join(near)}?" if near else "see 'raidx --help'"
            raise NoCommandError(f"no command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


class Verbs(Nouns):
    """The top group: errors become one line and an exit status."""

    group_class = Nouns

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        streams.guard()
        try:
            status = self._status(args, prog_name, complete_var, **extra)
            if sys.stdout is not None:
                sys.stdout.flush()  # at the exit of Python a failure would be a traceback
        except (BrokenPipeError, streams.OutputError) as error:
            sys.stdout = None  # nothing may flush it at exit
            # `raidx ... | head`: the reader has closed the pipe, and expects no word about it.
            status = complain(error) if isinstance(error, RaidxError) else 1
        if not standalone_mode:
            return status
        sys.exit(status if isinstance(status, int) else 0)

    def _status(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        **extra: Any,
    ) -> Any:
        """Run one command line; return its status. Raises what standard output raises."""
        as_json = "--json" in (sys.argv[1:] if args is None else args)
        say = _complain_in_json if as_json else complain
        try:
            tables = defaults.read()
            defaults.check_names(tables, self.commands)
            extra.setdefault("default_map", tables)
            return super().main(
                args, prog_name or "raidx", complete_var, standalone_mode=False, **extra
            )
        except click.exceptions.NoArgsIsHelpError as error:
            print(error.format_message(), file=sys.stderr)
            return 2
        except click.UsageError as error:
            return say(_usage(error), error.exit_code)
        except click.ClickException as error:
            return say(RaidxError(error.format_message()), error.exit_code)
        except LayoutError as error:
            return say(UsageError(str(error), reason=Reason.IMPOSSIBLE_LAYOUT))
        except (BrokenPipeError, streams.OutputError):
            raise
        except RaidxError as error:
            return say(error)
        except (click.Abort, KeyboardInterrupt):
            return complain(RaidxError("interrupted"), 130)
        except Exception as error:
            short = _without_folder(error) or shortage(error)
            if short is None:
                raise
            return say(short)

    def summary(self, name: str) -> str:
        """Return the first sentence about a command, without importing it if that is known."""
        row = TABLE.get(name)
        return row.summary if row else self.commands[name].get_short_help_str(SENTENCE)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the commands with their summaries, then the options."""
        names = (name for name in sorted(self.commands) if name.startswith(incomplete))
        found = [CompletionItem(name, help=self.summary(name)) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, rows in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, row.summary) for name, row in rows.items()])


def _without_folder(error: Exception) -> RaidxError | None:
    """Return what to say if *error* means that the working folder does not exist any more."""
    if not isinstance(error, FileNotFoundError):
        return None
    try:
        os.getcwd()
    except FileNotFoundError:
        return RaidxError("the working folder was removed", action="change to another: cd /")
    return None


def _usage(error: click.UsageError) -> UsageError:
    """Return a usage error as one line that says which --help to read."""
    if (found := slips.found(error)) is not None:
        return found
    message, action = error.format_message().rstrip("."), None
    if error.ctx is not None and "did you mean" not in message and "--help" not in message:
        action = f"see '{error.ctx.command_path} --help'"
    known = (reason for kind, reason in _REASONS if isinstance(error, kind))
    return UsageError(message, action=action, reason=next(known, None))


def complain(error: RaidxError, status: int | None = None) -> int:
    """Print *error* on one line of standard error; return *status*, by default that of *error*."""
    words = (w if len(w) <= WORD else f"{w[: WORD // 2]}...{w[-20:]}" for w in str(error).split())
    warn(" ".join(words))
    return error.exit_status if status is None else status


def _complain_in_json(error: RaidxError, status: int | None = None) -> int:
    """As `complain`, with the error as a document on standard output, too."""
    status = complain(error, status)
    Output(json=True).emit({"error": error.as_dict() | {"exit_status": status}})
    return status


def verb(
    name: str | None = None, group: click.Group | None = None
) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a function a command (of *group*).

    The function's first argument is the `Output`. It returns its exit status, or None for 0.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        command = click.command(name, cls=Verb)(click.pass_obj(function))
        if group is not None:
            group.add_command(command)
        return command

    return make
