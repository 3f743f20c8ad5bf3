"""``python docs/map.py``: writes the rooms of the core and the ways through them into docs/architecture.md.

Purposes are the first lines of the packages' docstrings, imports are those that the contracts in pyproject.toml
allow, and each step of a way names a function that exists: a step whose function was renamed is an error here.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
CORE = DOCS.parent / "core" / "sluiceway"
PAGE = DOCS / "architecture.md"

FLOORS = {"4 faces": 4, "3 runtime": 3, "2 mechanisms": 2, "1 contracts": 1, "0 words": 0}

# Where to start reading, as ``file:name`` below the room; a room that is one module starts there.
START = {
    "api": "pipeline.py:Pipeline",
    "checkpoint": "directory.py:CheckpointDirectory",
    "cli": "app.py:app",
    "columns": "transforms.py:Transform",
    "config": "settings.py:Settings",
    "connector": "sources.py:Source",
    "engine": "base.py:Engine",
    "metrics": "figures.py:JobMetrics",
    "entrypoint": "worker.py:main",
    "functions": "process.py:KeyedProcessFunction",
    "graph": "builder.py:build_stream_graph",
    "monitoring": "diagnosis.py:why_slow",
    "network": "input_gate.py:InputGate",
    "operators": "base.py:Operator",
    "plugins": "manager.py:PluginManager",
    "savepoint": "reader.py:read",
    "scheduler": "pipelined_region.py:pipelined_regions",
    "serializers": "registry.py:serializer_for",
    "state": "backends.py:KeyedStateBackend",
    "steps": "base.py:Step",
    "templates": "__init__.py:instantiate",
    "testing": "operators.py:OperatorHarness",
    "transport": "channel.py:Transport",
    "util": "redaction.py:redact",
    "windows": "base.py:WindowAssigner",
    "runtime/cluster": "job_manager.py:JobManager",
    "runtime/failures": "explanation.py:explain_failure",
    "runtime/jobmanager": "job_master.py:JobMaster",
    "runtime/local": "engine.py:LocalEngine",
    "runtime/logging": "context.py:LogOrigin",
    "runtime/loop": "tasklet.py:TaskletLoop",
    "runtime/messages": "handlers.py:Handlers",
    "runtime/microbatch": "planner.py:BatchPlanner",
    "runtime/reporters": "jsonl.py:JsonLinesReporter",
    "runtime/source": "threaded_function.py:ThreadedFunctionSource",
    "runtime/stepped": "stepped_task.py:SteppedTask",
    "runtime/task": "task.py:Task",
    "runtime/taskmanager": "task_manager.py:TaskManager",
}

# Each step: a function below core/sluiceway, and what it does on this way.
WAYS: dict[str, list[tuple[str, str]]] = {
    "record": [
        ("runtime/task/source_input.py:SourceInput.poll", "polls the reader of the source for a batch"),
        ("runtime/task/task.py:Task.step", "passes the batch to the head of the chain"),
        (
            "operators/fused_loops.py:generate",
            "has compiled the loop of map, filter and flat_map",
        ),
        (
            "network/result_partition.py:ResultPartition.emit",
            "splits the batch by consumer, joins small parts",
        ),
        ("network/local_channel.py:_LocalChannel.send", "passes it by reference, under credit"),
        ("network/input_gate.py:InputGate.poll", "reads the channels of the consumer in turn"),
        ("operators/keyed.py:KeyedReduceOperator.process", "reads and writes the state of each key in one loop"),
        ("operators/sink.py:SinkOperator.process", "gives the batch to the writer of the sink"),
    ],
    "watermark": [
        (
            "runtime/task/source_watermarks.py:SourceTime.take",
            "takes timestamps, asks the split's generator",
        ),
        ("operators/base.py:Operator.control", "passes the watermark down the chain, after what it made due"),
        ("network/result_partition.py:ResultPartition.control", "sends it to every consumer, behind the records"),
        (
            "network/watermark_valve.py:WatermarkValve.watermark",
            "merges the channels to their minimum",
        ),
        ("operators/base.py:Operator.advance", "tells the operator how far event time is"),
    ],
    "timer": [
        ("operators/timer_queue.py:TimerQueue.register", "adds the timer to the queue of its time domain"),
        (
            "operators/keyed_timers.py:TimedKeyedOperator.advance",
            "holds the watermark back until due timers have fired",
        ),
        (
            "operators/keyed_timers.py:TimedKeyedOperator.on_processing_time",
            "fires timers of processing time that are due",
        ),
        ("operators/keyed_timers.py:TimedKeyedOperator.work", "fires timers of event time, 1,024 at a time"),
        ("operators/keyed_timers.py:TimedKeyedOperator.fire", "calls the function for each timer, in order"),
    ],
    "barrier": [
        (
            "runtime/jobmanager/checkpoint_coordinator.py:CheckpointCoordinator.maybe_trigger",
            "begins a checkpoint",
        ),
        (
            "runtime/jobmanager/job_checkpoints.py:JobCheckpoints.trigger",
            "sends a message to each task without running producers",
        ),
        ("runtime/task/checkpointing.py:TaskCheckpoints.start", "puts the barrier among the source's batches"),
        ("network/barrier_alignment.py:BarrierAlignment.barrier", "aligns the channels of a consumer"),
        (
            "runtime/task/checkpointing.py:TaskCheckpoints.snapshot",
            "flushes, and snapshots each operator",
        ),
        ("network/channel_state.py:Recording", "records the input that an unaligned barrier has overtaken"),
        ("runtime/task/outputs.py:TaskOutputs.barrier", "sends the barrier to every consumer"),
        ("runtime/taskmanager/snapshot_writer.py:StorageWriter.write", "writes the state in a helper thread"),
        ("runtime/jobmanager/checkpoint_coordinator.py:CheckpointCoordinator.acknowledge", "counts the subtasks"),
        (
            "runtime/jobmanager/checkpoint_store.py:StorageCheckpointStore.keep",
            "writes the metadata, last",
        ),
        ("runtime/task/checkpointing.py:TaskCheckpoints.completed", "has sinks commit"),
    ],
    "failure": [
        ("runtime/task/task.py:Task.step", "catches what a function, a reader or a writer raises"),
        ("runtime/task/operator_chain.py:OperatorChain.explain", "looks for the step that was at work"),
        ("runtime/failures/explanation.py:explain_failure", "adds record, step and subtask to the exception"),
        ("record_errors.py:locate", "finds the record and the step in the frames of the traceback"),
        ("runtime/jobmanager/job_master.py:JobMaster._update", "changes the execution's state, once"),
        (
            "runtime/jobmanager/failover.py:Failover.failed",
            "asks the restart strategy, and cancels the rest of the region",
        ),
        ("runtime/jobmanager/failover.py:Failover.ended", "waits for the last of them, and for the delay"),
        (
            "runtime/jobmanager/region_restarts.py:RegionRestarts.begin",
            "reads the checkpoint to restart from, and takes slots",
        ),
        ("runtime/jobmanager/job_master.py:JobMaster.restart_region", "creates new attempts"),
        ("runtime/jobmanager/job_master.py:JobMaster._deploy", "sends each worker the tasks of its slots"),
        (
            "runtime/jobmanager/deployment_factory.py:TaskDeploymentFactory.make",
            "has made a descriptor of each",
        ),
        ("runtime/task/snapshot.py:JobSnapshot.share", "has given it its share of the last checkpoint"),
    ],
    "command": [
        ("cli/cluster.py:cancel", "is the command `sluiceway cancel JOB`"),
        ("runtime/cluster/client.py:ClusterClient.cancel", "sends the message and waits for the answer"),
        ("runtime/cluster/connection.py:Connection.send", "frames it, on a connection that proved the secret"),
        ("runtime/cluster/dispatcher.py:Dispatcher._cancel", "is the handler of the message `CancelJob`"),
        ("runtime/cluster/job_run.py:JobRun.cancel", "passes it to the job's master"),
        ("runtime/jobmanager/job_master.py:JobMaster.cancel", "cancels every execution that has not ended"),
        ("runtime/taskmanager/task_manager.py:TaskManager.cancel", "is the handler of the message `CancelTask`"),
        ("runtime/task/task.py:Task.cancel", "ends the task between two steps"),
    ],
}


def rooms() -> dict[str, str]:
    """Purpose of each room: packages and modules of the core, and the packages of its runtime."""
    found = {}
    for folder in (CORE, CORE / "runtime"):
        for path in sorted(folder.iterdir()):
            module = path / "__init__.py" if path.is_dir() else path
            if module.exists() and path.suffix in ("", ".py") and not path.name.startswith("_"):
                docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
                found[path.relative_to(CORE).with_suffix("").as_posix()] = docstring.partition("\n")[0].rstrip(".")
    del found["runtime"]
    return found


def contract(name: str) -> list[str]:
    """Layers of a contract in ``pyproject.toml``, from the highest down, with the comments between them."""
    text = (DOCS.parent / "pyproject.toml").read_text()
    found = re.search(rf'id = "{name}".*?layers = \[\n(.*?)\n\]', text, re.S)
    assert found, name
    return [line.strip() for line in found[1].splitlines()]


def floors() -> dict[str, list[list[str]]]:
    """Layers of each floor, from the highest down. A comment above them names the floor."""
    found: dict[str, list[list[str]]] = {title: [] for title in FLOORS}
    layers: list[list[str]] = []
    for line in contract("floors"):
        if line.startswith("# "):
            layers = found[line.removeprefix("# ")]
        else:
            layers.append(re.findall(r"\w+", line))
    return found


def check(place: str) -> None:
    """Raise LookupError if a ``file:name`` or ``file:Class.method`` does not exist."""
    file, _, name = place.partition(":")
    if not (CORE / file).is_file():
        raise LookupError(f"docs/map.py names {file}, which does not exist")
    body = ast.parse((CORE / file).read_text()).body
    for part in name.split("."):
        here = [n for n in body if part in _names(n)]
        if not here:
            raise LookupError(f"docs/map.py names {place}, which does not exist")
        body = getattr(here[0], "body", [])


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return {node.name}
    targets = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    )
    return {target.id for target in targets if isinstance(target, ast.Name)}


def tables() -> Iterator[str]:
    """Lines of the tables of rooms, floor by floor, in the order of the layers."""
    purposes = rooms()
    runtime = [re.findall(r"\w+", line) for line in contract("runtime")]
    for title, layers in floors().items():
        floor = FLOORS[title]
        yield f"### Floor {title}\n"
        yield "| room | what it is for | may import | start with |"
        yield "|---|---|---|---|"
        if floor == FLOORS["3 runtime"]:
            layers, prefix = runtime, "runtime/"
        else:
            prefix = ""
        for place, layer in enumerate(layers):
            allowed = [f"`{name}`" for below in layers[place + 1 :] for name in below]
            if floor:
                allowed.append("floor 0" if floor == 1 else f"floors 0 to {floor - 1}")
            for room in (prefix + name for name in layer):
                if room in purposes:
                    yield f"| `{room}` | {purposes[room]} | {', '.join(allowed) or 'none'} | {_start(room)} |"
        yield ""


def _start(room: str) -> str:
    if (CORE / f"{room}.py").is_file():
        return f"`{room}.py`"
    place = f"{room}/{START[room]}"
    check(place)
    file, _, name = START[room].partition(":")
    return f"`{name}` in `{file}`"


def ways() -> Iterator[str]:
    """Lines of the lists of steps, way by way."""
    for way, steps in WAYS.items():
        yield f"### {way.capitalize()}\n"
        yield f"![The steps of a {way} as boxes, one below the other.](assets/map-{way}.svg)\n"
        for number, (place, what) in enumerate(steps, 1):
            check(place)
            file, _, name = place.partition(":")
            yield f"{number}. `{name}` in `{file}` {what}."
        yield ""


def page(old: str) -> str:
    """Text of the page with the generated parts as they are now."""
    for part, lines in (("rooms", tables()), ("ways", ways())):
        begin, end = f"<!-- {part}, made by docs/map.py -->\n", f"<!-- end of {part} -->\n"
        before, found, rest = old.partition(begin)
        _, _, after = rest.partition(end)
        assert found, begin
        old = f"{before}{begin}\n{chr(10).join(lines)}\n{end}{after}"
    return old


if __name__ == "__main__":
    sys.stdout.write("docs/architecture.md\n")
    PAGE.write_text(page(PAGE.read_text()))
