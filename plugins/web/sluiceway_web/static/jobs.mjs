// Page: all jobs, each with one line that says what is wrong with it, and the processes.

import { html } from "./vendor/htm-preact.mjs";
import { address, count, duration, time } from "./format.mjs";
import { Sparkline, State, Table } from "./parts.mjs";
import { Submit } from "./submit.mjs";

export function Jobs({ page, canSubmit }) {
  const { jobs, cluster, now } = page;
  return html`<h1>Jobs</h1>
    <${Table} empty=${cluster.pid ? "No job has been submitted: sluiceway submit FILE." : "No job has left a record there: sluiceway run --history DIR FILE."}
      head=${["Job", "State", "Diagnosis", "#Age", "#Records/s", "Last minute", "#Behind the clock", "Last checkpoint", "#Restarts"]}
      rows=${jobs.map((j) => [
        html`<a href=${"#/job/" + address(j)}>${j.job}</a>`,
        html`<${State} state=${j.state} />`,
        // Before the figures: a narrow screen shows the first columns.
        html`<div class=${"summary" + (j.healthy === false ? "" : " muted")}>${j.summary ?? ""}</div>`,
        duration(j.duration),
        j.state === "RUNNING" ? count(j.in_per_s) : "–",
        html`<${Sparkline} values=${j.sparkline} />`,
        j.lag_ms == null ? "–" : duration(j.lag_ms),
        j.last_checkpoint_ms ? duration(now - j.last_checkpoint_ms) + " ago" : "–",
        j.restarts,
      ])} />
    ${canSubmit && html`<${Submit} />`}
    ${cluster.problems.map((p) => html`<p class="finding notice">${p}</p>`)}
    ${cluster.pid ? html`<${Processes} cluster=${cluster} />` : html`<p class="muted">These are the records of jobs that have ended, in ${cluster.job_store}.</p>`}`;
}

function Processes({ cluster }) {
  return html`<h2>Processes</h2>
    <p>Job manager: process ${cluster.pid}, since ${time(cluster.started)}.
      ${cluster.max_workers ? ` ${cluster.free_slots} of ${cluster.slots} slots are free.` : ""}</p>
    ${cluster.workers.length ? html`<${Table} head=${["Worker", "#Process", "#Slots", "#Last heartbeat"]}
      rows=${cluster.workers.map((w) => [w.name, w.pid, w.slots, w.silent_s + " s ago"])} />` : null}`;
}
