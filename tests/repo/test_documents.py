"""What README, CONTRIBUTING and docs/ tell people to type, typed. The rules are in CONTRIBUTING.md."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from arrowpipe import OPEN
from patience import PATIENT_S

assert OPEN

pytestmark = [pytest.mark.docs, pytest.mark.usefixtures("delta_runtime", "iceberg_runtime")]

ROOT = Path(__file__).parents[2]
PAGES = [p for p in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if p.exists()] + sorted(
    ROOT.glob("docs/**/*.md")
)

# What is not run as it stands, and why that is no loss.
EXEMPT = {
    re.compile(r"make [a-z-]+"): "would run this very test; the target is looked up instead",
    re.compile(r"(python3? -m )?pip install .*"): "changes the environment; test_wheel.py installs for itself",
}
# This one is not exempt: it is done in a way that changes nothing outside the page's directory.
INSTALL_HERE = re.compile(r"(python3? -m )?pip install --editable '?\.(\[\w+\])?'?")

FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
NOTE = re.compile(r"<!-- *(?P<note>(?:(?!-->).)*?) *-->\s*\Z", re.S)


class DocumentError(AssertionError):
    """What a page says is not so."""


@dataclass
class Block:
    """A fenced block of a page."""

    line: int
    language: str
    title: str
    note: str
    text: str

    @property
    def background_port(self) -> str | None:
        found = re.fullmatch(r"background, port (\d+)", self.note)
        return found[1] if found else None

    @property
    def not_run(self) -> bool:
        return re.match(r"not run: \S", self.note) is not None


@dataclass
class Command:
    """A line to type, and lines that it should print."""

    text: str
    expected: list[str] = field(default_factory=list)


def blocks(page: str) -> Iterator[Block]:
    for match in FENCE.finditer(page):
        language, _, rest = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        note = NOTE.search(page[: match.start()])
        yield Block(
            line=page.count("\n", 0, match.start()) + 2,
            language=language,
            title=title[1] if title else "",
            note=note["note"] if note else "",
            text=textwrap.dedent(match["text"]),
        )


def commands(text: str) -> list[Command]:
    found: list[Command] = []
    continued = False
    for line in text.splitlines():
        if continued:
            found[-1].text += "\n" + line
        elif line.startswith("$ "):
            found.append(Command(line[2:]))
        elif found:
            found[-1].expected.append(line)
        elif line.strip():
            raise DocumentError(f"a console block begins with a command, not with {line!r}")
        continued = (continued or line.startswith("$ ")) and line.endswith("\\")
    return found


def check_output(expected: list[str], output: str) -> None:
    lines = iter(output.splitlines())
    for wanted in expected:
        if wanted.strip() in ("", "..."):
            continue
        pattern = ".*".join(re.escape(part) for part in wanted.rstrip().split("..."))
        if not any(re.fullmatch(pattern, line.rstrip()) for line in lines):
            raise DocumentError(f"this line does not come, or not in this order: {wanted!r}")


class Page:
    """Runs one page in a directory of its own."""

    def __init__(self, directory: Path, free_port: Callable[[], int]) -> None:
        self.free_port = free_port
        self.ports: dict[str, int] = {}
        self.background: list[subprocess.Popen[bytes]] = []
        self.module = types.ModuleType("__main__")
        self.cwd = directory / "page"
        self.cwd.mkdir()
        self.where = directory / "where"
        # Hidden ones are caches (ruff's, Hypothesis'), which tests beside this one write meanwhile.
        skipped = shutil.ignore_patterns("__pycache__", "dist", "build", "*.egg-info", ".*")
        for name in ("examples", "contrib"):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.cwd / name, ignore=skipped)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICEWAY_", "PYTEST_"))}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        temporary = directory / "temporary"
        temporary.mkdir()
        self.environment = kept | {"PATH": path, "HOME": str(directory), "TMPDIR": str(temporary)}
        self.environment |= {"NO_COLOR": "1", "COLUMNS": "120"}

    def run(self, text: str) -> None:
        if len(re.findall("^ *```", text, re.M)) % 2:
            raise DocumentError("a fenced block has no end")
        found = list(blocks(text))
        self.ports = {b.background_port: self.free_port() for b in found if b.background_port}
        for block in found:
            try:
                self.run_block(block)
            except Exception as error:
                error.add_note(f"in the block at line {block.line}")
                raise

    def run_block(self, block: Block) -> None:
        if block.note.startswith("background") and block.background_port is None:
            raise DocumentError("write the note as 'background, port NUMBER'")
        if block.language in ("sh", "bash", "shell", "zsh"):
            raise DocumentError(f"commands stand in console blocks, with '$ ', not in {block.language} blocks")
        if block.note.startswith("not run") and not block.not_run:
            raise DocumentError("write the note as 'not run: REASON'")
        if block.not_run:
            return
        if block.title:
            target = self.cwd / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self.with_ports(block.text))
        elif block.language == "python":
            text = "\n" * (block.line - 1) + self.with_ports(block.text)  # for the line numbers of a traceback
            exec(compile(text, "page", "exec"), self.module.__dict__)
        elif block.language == "console":
            for command in commands(block.text):
                self.type(command, block.background_port)

    def with_ports(self, text: str) -> str:
        for documented, free in self.ports.items():
            text = re.sub(rf"\b{documented}\b", str(free), text)
        return text

    def install_here(self) -> None:
        """As an editable install does: metadata of the project, and its code from where it is."""
        site = self.where.with_name("site")
        quiet = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
        install = [sys.executable, "-m", "pip", "install", *quiet, "--target", str(site), str(self.cwd)]
        result = subprocess.run(install, env=self.environment, capture_output=True, text=True)
        if result.returncode:
            raise DocumentError(f"cannot be installed: {self.cwd.name}\n{result.stdout}{result.stderr}")
        self.environment["PYTHONPATH"] = os.pathsep.join([str(self.cwd), str(site)])

    def type(self, command: Command, port: str | None) -> None:
        if INSTALL_HERE.fullmatch(command.text):
            self.install_here()
            return
        if any(pattern.fullmatch(command.text) for pattern in EXEMPT):
            if command.text.startswith("make "):
                subprocess.run(
                    ["make", "-n", *command.text.split()[1:]], cwd=ROOT, check=True, capture_output=True
                )
            return
        if port is not None:
            self.start(self.with_ports(command.text), self.ports[port])
            return
        result = subprocess.run(
            ["bash", "-c", f"{self.with_ports(command.text)}\ns=$?; pwd > '{self.where}'; exit $s"],
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENT_S,
        )
        try:
            if result.returncode:
                raise DocumentError(f"ends with exit code {result.returncode}")
            check_output([self.with_ports(line) for line in command.expected], result.stdout)
        except DocumentError as error:
            error.add_note(f"$ {command.text}\n{result.stdout}")
            raise
        self.cwd = Path(self.where.read_text().strip())

    def start(self, text: str, port: int) -> None:
        process = subprocess.Popen(
            ["bash", "-c", text], cwd=self.cwd, env=self.environment, start_new_session=True
        )
        self.background.append(process)
        deadline = time.monotonic() + PATIENT_S
        while not listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise DocumentError(f"nothing listens on port {port} after: $ {text}")
            time.sleep(0.01)  # polls

    def close(self) -> None:
        if Path(self.environment["HOME"], ".sluiceway", "cluster.json").exists():  # a page that failed half way
            subprocess.run([sys.executable, "-m", "sluiceway", "cluster", "stop"], env=self.environment)
        for process in self.background:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def listens(port: int) -> bool:
    """Found out without connecting: a connection would be taken for the client's."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    listing = "".join(t.read_text() for t in tables if t.exists())
    return re.search(rf":{port:04X} [0-9A-F]+:0000 0A ", listing) is not None


@pytest.fixture
def page(tmp_path: Path, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    if not sys.platform.startswith("linux"):
        pytest.skip("asks Linux who listens on a port")
    made = Page(tmp_path, free_port)
    monkeypatch.chdir(made.cwd)
    monkeypatch.setitem(sys.modules, "__main__", made.module)
    monkeypatch.syspath_prepend(made.cwd)
    imported = set(sys.modules)
    yield made
    made.close()
    for name, module in list(sys.modules.items()):
        if name not in imported and str(made.cwd) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_does_as_it_says(path: Path, page: Page) -> None:
    page.run(path.read_text())


# ---- the runner itself ------------------------------------------------------------------------------------


def test_commands_keep_their_directory_and_their_files(page: Page) -> None:
    page.run(
        textwrap.dedent("""
        ```toml title="sub/settings.toml"
        answer = 42
        ```

        - in a list:

            ```console
            $ cd sub
            $ cat \\
                settings.toml
            answer = 42
            $ false; echo $?
            1
            ```

        ```python
        answer = 6 * 7
        ```
        ```python
        assert answer == 42
        ```
        """)
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("```console\n$ exit 3\n```", "exit code 3"),
        ("```console\n$ echo one\ntwo\n```", "does not come.*'two'"),
        ("```console\n$ printf 'a\\nb\\n'\nb\na\n```", "does not come.*'a'"),
        ("```console\nls\n```", "begins with a command"),
        ("```sh\nls\n```", "console blocks"),
        ("```console\n$ exit 1\n", "no end"),
        ("```python\nassert 1 == 2, 'no'\n```", "no"),
        ("<!-- not run -->\n```console\n$ ls\n```", "not run: REASON"),
        ("<!-- background, port 9999 -->\n```console\n$ exit 0\n```", "nothing listens"),
    ],
)
def test_a_page_that_is_wrong_fails(page: Page, block: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        page.run(block)


def test_a_project_that_is_installed_is_found(page: Page) -> None:
    page.run(
        textwrap.dedent("""
        ```console
        $ sluiceway new pipeline clicks
        $ cd clicks
        $ pip install --editable '.[test]'
        $ cd ..
        $ python -c "import clicks, importlib.metadata as m; print(m.version('clicks'))"
        0.1.0
        ```
        """)
    )


def test_dots_stand_for_any_text(page: Page) -> None:
    page.run("```console\n$ printf 'took 3 s\\nx\\ndone\\n'\ntook ... s\n...\ndone\n```")


def test_what_is_not_run_says_why(page: Page) -> None:
    page.run("<!-- not run: needs a cluster -->\n```console\n$ exit 1\n```")


def test_a_server_in_the_background(page: Page) -> None:
    page.run(
        textwrap.dedent("""
        <!-- background, port 9999 -->
        ```console
        $ printf 'to be\\n' | python examples/serve_lines.py --port 9999
        ```
        ```console
        $ python -c "import socket; print(socket.create_connection(('127.0.0.1', 9999)).recv(99).decode())"
        to be
        ```
        ```python
        assert 9999 != 10_000 - 1
        ```
        """)
    )
    assert not listens(page.ports["9999"])


def test_each_block_has_its_own_note(page: Page) -> None:
    with pytest.raises(DocumentError, match="exit code 1"):
        page.run("<!-- not run: no -->\n```console\n$ exit 2\n```\n<!-- a remark -->\n```console\n$ exit 1\n```")


def test_listens_sees_a_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listens(server.getsockname()[1])
