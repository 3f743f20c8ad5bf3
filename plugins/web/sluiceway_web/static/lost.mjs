// Page of lost records: counts by step, and dead letters with their records and errors.

import { html, useEffect, useState } from "./vendor/htm-preact.mjs";
import { count, time } from "./format.mjs";
import { send } from "./live.mjs";
import { Findings, Table } from "./parts.mjs";

export function Lost({ page, job }) {
  const names = new Map(page.vertices.map((v) => [v.number, v.name]));
  const letters = page.losses.filter((l) => l.reason === "dead letter").reduce((sum, l) => sum + l.records, 0);
  return html`<${Findings} findings=${page.lost} />
    <${Table} empty="Numbers count from the last start of each subtask." head=${["Step", "Task", "#Subtask", "Reason", "#Records"]}
      rows=${page.losses.map((l) => [l.step, names.get(l.vertex) ?? "", l.subtask, l.reason, count(l.records)])} />
    <${Letters} key=${job} job=${job} seen=${letters} />`;
}

function Letters({ job, seen }) {
  const [step, choose] = useState("");
  const [found, set] = useState(null);
  const [problem, tell] = useState("");
  const [asked, again] = useState(0);
  useEffect(() => {
    let closed = false;
    const query = step ? "?step=" + encodeURIComponent(step) : "";
    send("GET", `jobs/${encodeURIComponent(job)}/dead-letters${query}`).then(
      (told) => { if (!closed) { set(told); tell(""); } },
      (error) => { if (!closed) { set(null); tell(error.message); } });
    return () => { closed = true; };
  }, [job, step, asked]);
  if (!found) return html`<h2>Dead letters</h2><p class="muted" role="status">${problem || "Reading…"}</p>`;
  const steps = Object.entries(found.steps);
  return html`<h2>Dead letters</h2>
    <p class="choices"><span>${count(found.total)} in <code>${found.directory}</code></span>
      ${steps.length > 1 && html`<label>Step <select value=${step} onChange=${(e) => choose(e.target.value)}>
        <option value="">all</option>${steps.map(([name, n]) => html`<option value=${name}>${name} (${count(n)})</option>`)}</select></label>`}
      <button onClick=${() => again(asked + 1)}>Read again</button></p>
    ${seen > found.total ? html`<p class="muted">${count(seen - found.total)} more were put aside since they were read.</p>` : ""}
    ${!step && found.letters.length < found.total ? html`<p class="muted">The newest ${found.letters.length} are shown.</p>` : ""}
    ${found.letters.map((l) => html`<details><summary>${time(l.time_ms)} · ${l.step} [${l.subtask}] · ${l.error.split("\n")[0].slice(0, 200)}</summary>
      <dl><dt>record</dt><dd><code>${l.record}</code></dd>${l.key != null && html`<dt>key</dt><dd><code>${l.key}</code></dd>`}
        <dt>replay</dt><dd>${l.replayable ? "possible" : "not possible: the record could not be kept"}</dd></dl>
      <pre tabindex="0">${l.traceback}</pre></details>`)}
    ${found.total > 0 && html`<p class="muted">A replay runs the program, so it is for the command line: <code>sluiceway dlq replay ${found.directory} TARGET</code></p>`}`;
}
