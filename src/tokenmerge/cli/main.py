"""The entry point: reads the command line, runs the command, and turns errors into sentences.

A command is a module with `add_parser(subparsers)` and `run(args) -> int`. It imports what is heavy inside `run`, so
that `--help` answers at once. To add one, write the module and name it in COMMANDS.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Collection, Sequence
from typing import Any, NoReturn, TextIO

from tqdm import tqdm

from tokenmerge.errors import TokenMergeError, UsageError, nearest
from tokenmerge.runtime.plain_text import shown_plainly

COMMANDS = (
    "tokenmerge.cli.generate",
    "tokenmerge.cli.compare",
    "tokenmerge.cli.tune",
    "tokenmerge.cli.explain",
    "tokenmerge.cli.predict",
    "tokenmerge.cli.bench",
    "tokenmerge.cli.evaluate",
    "tokenmerge.cli.serve",
    "tokenmerge.cli.doctor",
)
WRONG_USE = 2
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Raises what argparse would print and exit with, so that every error is reported in one place."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}: see `{self.prog} --help`.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = action.option_strings[-1] if action.option_strings else "command"
            raise UsageError(f"{what} {value!r} is not known: {_advice(value, list(action.choices), self.prog)}")


def _advice(word: object, known: Collection[str], prog: str) -> str:
    """What to do about a word that a command does not take."""
    near = nearest(word, known)
    meant = f"did you mean {near}? Otherwise" if near else f"use one of {', '.join(known)}, and"
    return f"{meant} see `{prog} --help`."


def not_understood(unknown: Sequence[str], options: Collection[str], prog: str) -> str:
    """The sentence for words that are left over.

    >>> not_understood(["apple"], ["--model"], "tokenmerge generate")
    "'apple' was not understood: put a prompt of several words in quotes, and see `tokenmerge generate --help`."
    >>> not_understood(["--modle", "flux"], ["--model"], "tokenmerge generate")
    "option '--modle' is not known: did you mean --model? Otherwise see `tokenmerge generate --help`."
    """
    named = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
    if named is None:
        words = " ".join(unknown)
        return f"{words!r} was not understood: put a prompt of several words in quotes, and see `{prog} --help`."
    near = nearest(named, options)
    return f"option {named!r} is not known: {f'did you mean {near}? Otherwise ' if near else ''}see `{prog} --help`."


def build_parser() -> Parser:
    from tokenmerge import __version__

    parser = Parser(
        prog="tokenmerge",
        description="Faster image and video generation with diffusion models, without training.",
        epilog='Try: tokenmerge compare "red apple"',
    )
    parser.add_argument("--version", action="version", version=f"tokenmerge {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    subparsers = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for name in COMMANDS:
        module = importlib.import_module(name)
        command = module.add_parser(subparsers)
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        options = [word for action in command._actions for word in action.option_strings]
        command.set_defaults(run=module.run, help_of=command.prog, options_of=options)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0; 2 for anything the user can put right; 130 when interrupted; 1 for a bug."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    _quiet_libraries(debug)
    try:
        args, unknown = build_parser().parse_known_args(arguments)
        if unknown:
            known = getattr(args, "options_of", ())
            raise UsageError(not_understood(unknown, known, getattr(args, "help_of", "tokenmerge")))
        if not hasattr(args, "run"):
            raise UsageError("no command was given: see `tokenmerge --help`.")
        return int(args.run(args) or 0)
    except TokenMergeError as error:
        return _report(str(error), debug, WRONG_USE)
    except KeyboardInterrupt:
        return _report("interrupted.", debug, INTERRUPTED)
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if _is_out_of_memory(error):
            return _report("the device ran out of memory: use a smaller --size or another --device.", debug, WRONG_USE)
        return _report(
            f"unexpected {type(error).__name__}: {error}. Run again with --debug to see where, and please report it.",
            debug,
            1,
        )


def _report(sentence: str, debug: bool, code: int) -> int:
    if debug:
        traceback.print_exc()
    print(f"tokenmerge: {shown_plainly(sentence)}", file=sys.stderr)
    return code


def _is_out_of_memory(error: Exception) -> bool:
    """A GPU has a kind of error for it; on a CPU torch says it in a sentence."""
    kinds = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return kinds or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))


def _quiet_libraries(debug: bool) -> None:
    """Keep remarks of the libraries to themselves, and show warnings of our own as plain lines."""
    if debug:
        return
    for library in ("transformers", "diffusers"):
        # The variable for a library that is yet to be imported, the level for one that has been. Errors are left out
        # too: diffusers logs some with a traceback before it raises them, and raised they become sentences.
        os.environ.setdefault(f"{library.upper()}_VERBOSITY", "critical")
        logging.getLogger(library).setLevel(logging.CRITICAL)
    warnings.showwarning = _show_warning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if category.__module__.startswith("tokenmerge"):
        tqdm.write(f"note: {shown_plainly(str(message))}", file=sys.stderr)  # moves progress bars out of the way


if __name__ == "__main__":
    sys.exit(main())
