"""From ``FILE``, ``FILE:NAME`` or ``package.module:NAME`` to the pipeline that is meant."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click

from sluiceway.cli.habits import hint_for
from sluiceway.cli.output import say
from sluiceway.errors import ConfigurationError

if TYPE_CHECKING:
    from sluiceway.api import DataStream, Pipeline

__all__ = ["MODULE_NAME", "load_pipeline", "load_target"]

MODULE_NAME: Final = "__sluiceway__"
"""``__name__`` of a file that the command line executes, so that ``if __name__ == "__main__":`` stays quiet."""

_ATTRIBUTE: Final = "flow"
_LISTED: Final = 5
_HELP: Final = frozenset({"-h", "--help", "help", "--version"})
"""Arguments with which a program exits with 0 as it should."""


class _Arguments(list[str]):
    """``sys.argv`` that records reads beyond the name of the script."""

    taken = False

    def __getitem__(self, index: Any) -> Any:
        self.taken = self.taken or index != 0
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[str]:
        self.taken = True
        return super().__iter__()

    def __len__(self) -> int:
        self.taken = True
        return super().__len__()


@contextmanager
def load_pipeline(target: str, arguments: Sequence[str] = ()) -> Iterator[Pipeline]:
    """Load a pipeline, as :func:`load_target` does, and refuse a stream."""
    with load_target(target, arguments) as found:
        if not isinstance(found, _pipeline_class()):
            raise ConfigurationError(f"{target} is a stream, which only 'sluiceway run' takes: name its Pipeline")
        yield found


def _pipeline_class() -> type[Pipeline]:
    from sluiceway.api import Pipeline

    return Pipeline


@contextmanager
def load_target(target: str, arguments: Sequence[str] = ()) -> Iterator[Pipeline | DataStream[Any]]:
    """Load a pipeline or a stream of one; meanwhile ``sys.argv`` and ``sys.path`` are as for the script itself.

    What the pipeline's own code raises is not caught. A program that exits by itself keeps its exit code, but for
    0, which is left to help texts: nothing was run or checked.

    Args:
        target: a path to a Python file or a module's name, then perhaps ``:`` and the name of the pipeline, of
            a stream, or of the function that makes it; without a name it is ``flow``.
        arguments: the script's own. They are ``sys.argv[1:]``, and the argument of a function that takes one.

    Raises:
        ConfigurationError: no such file, module or pipeline; names the pipelines that are there. Or the program
            exited with code 0.
        click.UsageError: there are arguments, and nothing has looked at them.
    """
    where, colon, name = target.rpartition(":")
    # The name of a file may have a colon in it.
    if not colon or os.path.isfile(target):
        where, name = target, ""
    if not where:
        raise ConfigurationError(f"{target!r} names no file: write FILE.py{target} or package.module{target}")
    is_file = where.endswith(".py") or os.sep in where or os.path.isfile(where) or where in (".", "..")
    script = where if is_file else where.rpartition(".")[2]
    argv = _Arguments([script, *arguments])
    # Before the directory of the program is searched, where a random.py would hide that of the standard library.
    import_module("sluiceway.api")
    old_argv, old_path = sys.argv, list(sys.path)
    sys.argv = argv
    # As python FILE and python -m MODULE do.
    sys.path.insert(0, os.path.dirname(os.path.abspath(where)) if is_file else os.getcwd())
    argv.taken = False
    try:
        with _refuse_to_run(), _tell_of_exit(where, arguments):
            module = _execute(where) if is_file else _import(where)
            pipeline = _pick(module, where, name or _ATTRIBUTE, argv, list(arguments))
        if arguments and not argv.taken:
            raise _untaken(arguments, where)
        yield pipeline
    finally:
        sys.argv = old_argv
        sys.path[:] = old_path
        sys.modules.pop(MODULE_NAME, None)


@contextmanager
def _refuse_to_run() -> Iterator[None]:
    # A script that ends in flow.run() would run its job twice: once while it is loaded, and once by the command.
    from sluiceway.api import DataStream, Pipeline

    def refuse(pipeline: Pipeline | DataStream[Any], *arguments: object, **options: object) -> None:
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        name = pipeline.name if isinstance(pipeline, Pipeline) else pipeline._pipeline.name
        raise ConfigurationError(
            f"{place} runs pipeline {name!r} while it is only to be loaded: "
            'put that under if __name__ == "__main__":, which does not run here; or start the script by itself, '
            f"with python {sys.argv[0]}"
        )

    refused = [(Pipeline, "run"), (Pipeline, "start"), (DataStream, "execute_and_collect"), (DataStream, "take")]
    real = [(owner, name, getattr(owner, name)) for owner, name in refused]
    for owner, name in refused:
        setattr(owner, name, refuse)
    try:
        yield
    finally:
        for owner, name, method in real:
            setattr(owner, name, method)


@contextmanager
def _tell_of_exit(where: str, arguments: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except SystemExit as left:
        frames = [frame for frame, _ in walk_tb(left.__traceback__)]
        # An argument parser has told all, but only of arguments: parse_args([]) and exit() is no help text.
        of_parser = frames[-1].f_globals.get("__name__") == "argparse"
        if left.code and of_parser:
            raise
        if not left.code and (not _HELP.isdisjoint(arguments) or (arguments and of_parser)):
            raise
        if frames[-1].f_globals.get("__name__") == "_sitebuiltins":  # exit() and quit(), in place of sys.exit()
            del frames[-1]
        place = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}"
        told = f"{place} exits while {where} is loaded, before a pipeline was found"
        if not left.code:
            raise ConfigurationError(
                f'{told}: leave that out, or put it under if __name__ == "__main__":, which does not run here'
            ) from None
        # The interpreter prints the text of sys.exit("text"), and exits with 1.
        say(f"error: {told}", err=True)
        raise


def _execute(where: str) -> ModuleType:
    path = Path(where)
    # Path.is_dir() raises where the path may not be looked at; reading the file below says what is wrong.
    if os.path.isdir(path):
        raise _directory(where)
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        near = get_close_matches(path.name, _python_files(path.parent), n=1)
        hint = f" Did you mean {path.parent / near[0]}?" if near else ""
        if not os.path.isdir(path.parent):
            hint = f" There is no directory {path.parent} either."
        raise ConfigurationError(f"there is no file {where}.{hint}") from None
    except OSError as error:
        raise ConfigurationError(f"{where} cannot be read: {error.strerror or error}") from error
    if (nul := source.find(0)) >= 0:  # the compiler's own error names no file
        why = "a source file cannot contain null bytes: save it as UTF-8"
        raise SyntaxError(why, (str(path), source.count(b"\n", 0, nul) + 1, None, None))
    module = ModuleType(MODULE_NAME)
    module.__file__ = str(path.absolute())
    # Pickle, dataclasses and typing look a class's module up there.
    sys.modules[MODULE_NAME] = module
    # Without the __future__ statements of this module.
    exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    return module


def _directory(where: str) -> ConfigurationError:
    files = ", ".join(sorted(_python_files(Path(where)))[:_LISTED])
    such = f", such as {files}" if files else ""
    return ConfigurationError(f"{where} is a directory: name a file in it{such}")


def _python_files(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir() if entry.suffix == ".py"]
    except OSError:
        return []


def _import(where: str) -> ModuleType:
    try:
        module = import_module(where)
    except ModuleNotFoundError as error:
        # One that the module itself imports is another matter: that is the user's own traceback.
        if error.name is None or not (where == error.name or where.startswith(f"{error.name}.")):
            raise
        raise ConfigurationError(
            f"there is no module {error.name!r} here or on sys.path; for a file write its path: "
            f"{error.name.replace('.', '/')}.py"
        ) from None
    except (TypeError, ValueError):  # a relative or an empty name
        raise ConfigurationError(f"{where!r} is neither a file nor the name of a module") from None
    if getattr(module, "__file__", None) is None and os.path.isdir(where):  # Python takes any for a package
        raise _directory(where)
    return module


def _pick(
    module: ModuleType, where: str, name: str, argv: _Arguments, arguments: list[str]
) -> Pipeline | DataStream[Any]:
    from sluiceway.api import DataStream, Pipeline

    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(f"{where} has no {name!r}: {_others(module, where)}") from None
    # A stream has to be asked for: that 'flow' is one is rather a mistake.
    if isinstance(found, Pipeline) or (isinstance(found, DataStream) and name != _ATTRIBUTE):
        return found
    if not callable(found):
        raise ConfigurationError(
            f"{name!r} in {where} is neither a Pipeline nor a function that returns one, but {_article(found)}: "
            f"{_others(module, where)}"
        )
    made = _call(found, f"{name}() in {where}", argv, arguments)
    if not isinstance(made, Pipeline):
        raise ConfigurationError(f"{name}() in {where} returned {_article(made)}, not a Pipeline")
    return made


def _call(factory: Any, shown: str, argv: _Arguments, arguments: list[str]) -> Any:
    if inspect.iscoroutinefunction(factory):
        raise ConfigurationError(f"{shown} is an async function; it has to be a plain one that returns a Pipeline")
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # a callable that does not tell
        parameters = []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p.name for p in positional[1:] if p.default is p.empty]
    required += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if required:
        raise ConfigurationError(
            f"{shown} asks for {', '.join(required)}: it may take one argument, the list of the script's own "
            "command-line arguments, or none"
        )
    if not positional:
        return factory()
    argv.taken = True
    return factory(arguments)


def _others(module: ModuleType, where: str) -> str:
    from sluiceway.api import Pipeline

    names = sorted(name for name, value in vars(module).items() if isinstance(value, Pipeline))
    if names:
        listed = ", ".join(f"{where}:{name}" for name in names)
        renamed = "" if _ATTRIBUTE in names else f", or call it {_ATTRIBUTE!r}"
        if len(names) == 1:
            return f"the Pipeline there is {listed}; name it like that{renamed}"
        return f"the Pipelines there are {listed}; name one of them{renamed}"
    if elsewhere := _made_elsewhere(module, where):
        return elsewhere
    return (
        f"there is no Pipeline at the top of the module; write {_ATTRIBUTE} = Pipeline(...), "
        f"or a function {_ATTRIBUTE}() that returns one"
    )


def _made_elsewhere(module: ModuleType, where: str) -> str:
    """Return a hint for a file that makes its Pipeline below the top of the module; empty if it makes none."""
    import ast

    try:
        parsed = ast.parse(Path(module.__file__ or "").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    for statement in parsed.body:
        if isinstance(statement, ast.FunctionDef) and (calls := _calls(statement)) & {"Pipeline"}:
            name = statement.name
            run = " instead of running it" if calls & {"run", "start"} else ""
            return f"{name}() makes one: have it return that{run}, and name the function: {where}:{name}"
        if (
            isinstance(statement, ast.If)
            and "__name__" in ast.dump(statement.test)
            and "Pipeline" in _calls(statement)
        ):
            return (
                'one is made under if __name__ == "__main__":, which does not run here: make it at the top of the '
                f"module, as {_ATTRIBUTE} = Pipeline(...), and leave only {_ATTRIBUTE}.run() there"
            )
    return ""


def _calls(statement: Any) -> set[str]:
    """Return the names that a statement calls, without what stands before a dot."""
    import ast

    called = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in called}


def _article(made: object) -> str:
    if made is None:
        return "nothing"
    if type(made).__module__.startswith("sluiceway.api"):
        return f"a {type(made).__name__}, which is a step of one; keep the Pipeline itself"
    return f"an object of type {type(made).__name__}"


def _untaken(arguments: Iterable[str], where: str) -> click.UsageError:
    ctx = click.get_current_context(silent=True)
    hint = ""
    if ctx is not None:
        options = [p for p in ctx.command.params if isinstance(p, click.Option) and not p.hidden]
        known = [opt for p in options for opt in (*p.opts, *p.secondary_opts) if opt.startswith("--")]
        for argument in arguments:
            option = argument.partition("=")[0]
            if instead := hint_for(option):
                hint = f" In place of {option}: {instead}."
                break
            if option.startswith("-") and (close := get_close_matches(option, known, n=1, cutoff=0.75)):
                hint = f" Did you mean {close[0]}?"
                break
    listed = " ".join(arguments)
    return click.UsageError(
        f"{where} takes no arguments of its own, and these are not options of sluiceway: {listed}.{hint} "
        f"(A script may read sys.argv, or define {_ATTRIBUTE}(arguments).)",
        ctx,
    )
