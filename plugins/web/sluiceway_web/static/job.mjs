// Pages of one job: graph with diagnosis, event time, tasks, checkpoints, failures, configuration.

import { html, useState } from "./vendor/htm-preact.mjs";
import { bytes, count, duration, nth, percent, time } from "./format.mjs";
import { Batches, EnginePages } from "./batches.mjs";
import { Flame } from "./flame.mjs";
import { Graph, Legend } from "./graph.mjs";
import { Late } from "./late.mjs";
import { Lost } from "./lost.mjs";
import { State as KeyedState } from "./state.mjs";
import { Task } from "./task.mjs";
import { send } from "./live.mjs";
import { Rescales, rescaled } from "./rescale.mjs";
import { Findings, Shares, State, Table } from "./parts.mjs";

const TABS = [["", "Graph"], ["late", "Event time"], ["lost", "Lost records"], ["tasks", "Tasks"], ["flame", "Flame graph"], ["batches", "Micro-batches"], ["checkpoints", "Checkpoints"], ["state", "State"],
  ["failures", "Failures"], ["configuration", "Configuration"]];
const ENDED = ["FINISHED", "CANCELED", "FAILED"];

export function Job({ page, job, tab, argument, readOnly, replay }) {
  const View = { "": Overview, late: Late, lost: Lost, tasks: Tasks, task: Task, flame: Flame, batches: Batches, checkpoints: Checkpoints, state: KeyedState, failures: Failures, configuration: Configuration }[tab] ?? Overview;
  const { state, duration: age, restarts } = page.job;
  return html`<h1>${page.job.job} <${State} state=${state} /></h1>
    <p class="muted">${age >= 0 ? duration(age) : ""} · ${count(page.job["records-in"])} records in, ${count(page.job["records-out"])} out · ${restarts} restart${restarts === 1 ? "" : "s"}
      ${page.engine_url && html` · <${EnginePages} url=${page.engine_url} />`}
      ${!readOnly && !ENDED.includes(state) && html`<${Operations} job=${job} name=${page.job.job} parallelism=${Math.max(1, ...page.vertices.map((v) => v.parallelism))} />`}</p>
    <nav class="tabs" aria-label="Pages of the job">${TABS.filter(([name]) => name !== "batches" || page.micro_batches.length || (page.engine_url && page.is_load_known === false)).map(([name, title]) => html`<a href=${"#/job/" + job + (name ? "/" + name : "")}
      aria-current=${name === tab || (name === "tasks" && tab === "task") ? "page" : null}>${title}</a>`)}</nav>
    <${View} page=${page} job=${job} argument=${argument} changes=${!readOnly && !ENDED.includes(state)} replay=${replay} />`;
}

function Operations({ job, name, parallelism }) {
  const [told, tell] = useState("");
  const ask = async (what, told, result, body = {}) => {
    try {
      const path = `jobs/${encodeURIComponent(job)}/`;
      tell(told);
      const { "request-id": request } = await send("POST", path + what, body);
      for (;;) {
        const { status, operation } = await send("GET", `${path}savepoints/${request}`);
        if (status.id === "COMPLETED") {
          tell(operation["failure-cause"]?.["stack-trace"] ?? result(operation));
          return;
        }
        await new Promise((done) => setTimeout(done, 500));
      }
    } catch (error) { tell(error.message); }
  };
  const savepoint = (what) => ask(what, "A savepoint is being taken.", (o) => "Savepoint: " + o.location);
  const cancel = async () => {
    if (!window.confirm(`Cancel ${name}? It ends without a savepoint.`)) return;
    try { await send("PATCH", `jobs/${encodeURIComponent(job)}?mode=cancel`); } catch (error) { tell(error.message); }
  };
  const rescale = (event) => {
    event.preventDefault();
    const parallelism = Number(event.target.elements.parallelism.value);
    ask("rescale", "The job is being rescaled.", (o) => rescaled(o.rescale), { parallelism });
  };
  return html`<span> · <form class="inline" onSubmit=${rescale}><label>Parallelism <input name="parallelism" type="number" min="1" max="32768" required defaultValue=${parallelism} /></label>
    <button>Rescale</button></form> <button onClick=${() => ask("checkpoints", "A checkpoint is being taken.", (o) => "Checkpoint " + o.checkpointId + " is complete.")}>Take checkpoint</button> <button onClick=${() => savepoint("savepoints")}>Take savepoint</button> <button onClick=${() => savepoint("stop")}>Stop with savepoint</button> <button class="danger" onClick=${cancel}>Cancel</button>
    <span role="status"> ${told}</span></span>`;
}

function Overview({ page, job }) {
  const lost = page.losses.length ? page.lost : [];
  return html`<${Findings} findings=${[...page.findings, ...lost]} vertices=${page.vertices} job=${job} />
    ${page.job.failure && html`<pre tabindex="0">${page.job.failure}</pre>`}
    <${Graph} page=${page} job=${job} />
    <h2>Tasks</h2><${TaskTable} page=${page} job=${job} />
    ${page.rescales.length ? html`<h2>Rescales</h2><${Rescales} rescales=${page.rescales} />` : null}`;
}

function Tasks({ page, job }) {
  return html`<${TaskTable} page=${page} job=${job} /><${Legend} vertices=${page.vertices} />`;
}

function TaskTable({ page, job }) {
  return html`<${Table} head=${["Task", "State", "#Subtasks", "#In/s", "#Out/s", "#Records in", "#Busy (max)", "#Blocked (max)", "#Waiting (max)", "Time (mean)"]}
    rows=${page.vertices.map((v) => [
      html`<a href=${`#/job/${job}/task/${v.number}`}>${v.name}</a>`, html`<${State} state=${v.status} />`, v.parallelism,
      count(v.in_per_s), count(v.out_per_s), count(v.records_in), percent(v.busy), percent(v.blocked), percent(v.waiting), html`<${Shares} of=${v.shares} />`,
    ])} />`;
}

const PHASES = [["start_delay", "waiting for barriers"], ["alignment", "alignment"], ["flush", "flushing"], ["sync", "copying state"], ["async", "writing"], ["storing", "storing metadata"]];

function Phases({ phases }) {
  const total = PHASES.reduce((sum, [name]) => sum + phases[name], 0);
  const told = PHASES.map(([name, title]) => `${title} ${duration(phases[name])}`).join(", ");
  return html`<div class="shares" role="img" aria-label=${told} title=${told}>
    ${total ? PHASES.map(([name]) => html`<i class=${"phase-" + name} style=${{ width: (100 * phases[name]) / total + "%" }}></i>`) : null}</div>`;
}

function Checkpoints({ page }) {
  const every = page.checkpoint_interval_ms;
  return html`<p>${every ? `A checkpoint is taken every ${duration(every)}.` : "The job takes no checkpoints: give it --checkpoint-interval."}</p>
    <p class="legend">${PHASES.map(([name, title]) => html`<span><i class=${"phase-" + name}></i>${title}</span>`)}</p>
    <${Table} empty="There is no checkpoint yet." head=${["#Checkpoint", "State", "Triggered", "#Duration", "#Size", "Phases", "Slowest subtask", ""]}
      rows=${page.checkpoints.map((c) => [c.id, html`<${State} state=${c.status} />`, time(c.triggered_ms), duration(c.duration_ms), bytes(c.size),
        html`<${Phases} phases=${c.phases} />`, c.slowest ?? "", c.savepoint ? "savepoint " + c.savepoint : c.reason])} />`;
}

function Failures({ page }) {
  if (!page.failures.length) return html`<p class="muted">Nothing has failed.</p>`;
  return html`${page.failures.map((f) => html`<details open=${page.failures.length === 1}><summary>${time(f.at_ms)}
    ${f.task && html` · <bdi>${f.task}</bdi> [${nth(f.subtask)}] on ${f.worker}`} · <bdi>${f.cause.split("\n")[0].slice(0, 200)}</bdi> · ${f.restarted ? f.restarted + " subtasks restarted" : "the job failed"}</summary>
    <pre tabindex="0">${f.traceback}</pre></details>`)}`;
}

function Configuration({ page }) {
  const set = page.options.filter((o) => !o.default), usual = page.options.filter((o) => o.default);
  const shown = (options) => html`<dl>${options.map((o) => html`<dt>${o.name}</dt><dd>${o.value === "" ? "none" : o.value}</dd>`)}</dl>`;
  return html`<h2>Set</h2>${set.length ? shown(set) : html`<p class="muted">All options have their defaults.</p>`}<h2>Defaults</h2>${shown(usual)}`;
}
