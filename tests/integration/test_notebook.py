"""Pipelines in a real Jupyter kernel."""

from __future__ import annotations

import os
import pickle
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.api.notebook import in_notebook

nbformat = pytest.importorskip("nbformat", reason="not installed: pip install nbclient ipykernel")
nbclient = pytest.importorskip("nbclient", reason="not installed: pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="not installed: pip install ipykernel")

SLOW = """
import time
import sluiceway as sw

def slow(n):
    time.sleep(0.02)
    return n

flow = sw.Pipeline("slow")
flow.generate(count=100).rebalance().map(slow).for_each(lambda n: None)
"""


class Notebook:
    """Cells that are executed one after the other by one kernel."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._count = 0

    def run(self, source: str) -> list[Any]:
        """Execute a cell, and return its outputs. Raises CellExecutionError."""
        cell = nbformat.v4.new_code_cell(source)
        self._client.nb.cells.append(cell)
        self._count += 1
        try:
            self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        finally:
            self.outputs = cell.outputs
        return list(cell.outputs)

    def interrupt(self) -> None:
        """Interrupt the kernel, as the stop button does."""
        os.kill(self._client.km.provisioner.pid, signal.SIGINT)


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    client = nbclient.NotebookClient(nbformat.v4.new_notebook(), timeout=PATIENT_S, kernel_name="python3")
    with client.setup_kernel():
        yield Notebook(client)


def htmls(outputs: list[Any]) -> list[str]:
    return [o.data["text/html"] for o in outputs if "data" in o and "text/html" in o.data]


def test_a_run_shows_its_figures_in_one_output(notebook: Notebook) -> None:
    outputs = notebook.run(SLOW + "flow.run()")
    [shown] = htmls(outputs)
    assert "<b>slow</b> finished" in shown
    assert "100 records in · 100 out" in shown
    assert "JobResult of 'slow': finished" in outputs[-1].data["text/plain"]
    assert len(outputs) == 2


def test_a_short_run_shows_nothing_but_its_result(notebook: Notebook) -> None:
    outputs = notebook.run(
        "import sluiceway as sw\nflow = sw.Pipeline('x')\nc = flow.from_collection(range(200_000)).collect()\n"
        "flow.run()"
    )
    assert len(outputs) == 1
    [text] = [o.data["text/plain"] for o in notebook.run("c")]
    assert text.endswith("... and 199,980 more])")
    assert len(text) < 200


def test_a_plan_is_a_picture(notebook: Notebook) -> None:
    outputs = notebook.run(SLOW + "flow.explain()")
    assert "<svg" in htmls(outputs)[0]
    assert "map(slow)" in outputs[0].data["text/plain"]
    [told] = notebook.run("print(flow.explain())")
    assert told.output_type == "stream"


def test_a_failure_shows_the_users_frames(notebook: Notebook) -> None:
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        notebook.run(
            "import sluiceway as sw\n\n"
            "def parse(line):\n    return int(line)\n\n"
            "flow = sw.Pipeline('fails')\nflow.from_collection(['1', 'x']).map(parse).for_each(print)\nflow.run()"
        )
    [error] = [o for o in notebook.outputs if o.output_type == "error"]
    told = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert "return int(line)" in told
    assert "record: 'x'" in told
    assert "job_master" not in told
    assert "tasklet" not in told


def test_a_failure_shows_what_was_handled_when_it_was_raised(notebook: Notebook) -> None:
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        notebook.run(
            "import sluiceway as sw\n\n"
            "def parse(line):\n    try:\n        return int(line)\n    except ValueError:\n"
            "        raise KeyError(line)\n\n"
            "flow = sw.Pipeline('fails')\nflow.from_collection(['x']).map(parse).for_each(print)\nflow.run()"
        )
    [error] = [o for o in notebook.outputs if o.output_type == "error"]
    told = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    assert "return int(line)" in told
    assert "During handling of the above exception" in told
    assert "job_master" not in told


def test_an_interrupt_ends_the_job_and_the_cell(notebook: Notebook) -> None:
    notebook.run("import threading")
    timer = threading.Timer(1.0, notebook.interrupt)
    timer.start()
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        notebook.run(SLOW.replace("count=100", "") + "job = None\nflow.run()")
    timer.join()
    [error] = [o for o in notebook.outputs if o.output_type == "error"]
    assert error.ename == "KeyboardInterrupt"
    [shown] = htmls(notebook.outputs)
    assert "<b>slow</b> canceled" in shown
    threads = notebook.run("print([t.name for t in threading.enumerate() if 'sluiceway' in t.name])")
    assert threads[0].text == "[]\n"


def test_a_handle_shows_itself_until_the_job_ends(notebook: Notebook) -> None:
    # The client of this test takes updates of the cell that runs alone; a notebook takes them at any time.
    show = "handle = await flow.start()\ndisplay(handle)\n"
    wait = "[t.join() for t in threading.enumerate() if t.name == 'sluiceway-notebook']"
    outputs = notebook.run(f"{SLOW}{show}import threading\nawait handle.result()\n{wait}")
    [shown] = htmls(outputs)
    assert "<b>slow</b> finished" in shown


def test_a_program_is_no_notebook() -> None:
    assert not in_notebook()


def test_the_text_of_a_plan_is_a_text() -> None:
    flow = sw.Pipeline("x")
    flow.from_collection([0]).for_each(print)
    plan = flow.explain()
    assert repr(plan) == str(plan) == plan
    assert type(pickle.loads(pickle.dumps(plan))) is str
    assert "<svg" in plan._repr_html_()  # type: ignore[attr-defined]
