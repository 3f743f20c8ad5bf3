// Page of lost records: counts by step, and dead letters with their records and errors.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.mjs";
import { count, nth, time } from "./format.mjs";
import { send } from "./live.mjs";
import { Findings, Table } from "./parts.mjs";

export function Lost({ page, job, replay }) {
  const names = new Map(page.vertices.map((v) => [v.number, v.name]));
  const kept = page.options.some((o) => o.name === "dead-letters" && !o.default);
  const letters = page.losses.filter((l) => l.reason === "dead letter").reduce((sum, l) => sum + l.records, 0);
  return html`<${Findings} findings=${page.lost} vertices=${page.vertices} job=${job} />
    <${Table} empty="Numbers count from the last start of each subtask." head=${["Step", "Task", "#Subtask", "Reason", "#Records"]}
      rows=${page.losses.map((l) => [l.step, names.get(l.vertex) ?? "", nth(l.subtask), l.reason, count(l.records)])} />
    ${kept ? html`<${Letters} key=${job} job=${job} seen=${letters} replay=${replay} />`
      : html`<h2>Dead letters</h2><p class="muted">The job keeps no dead letters: give it --dead-letters DIR.</p>`}`;
}

function Letters({ job, seen, replay }) {
  const [step, choose] = useState("");
  const [found, set] = useState(null);
  const [problem, tell] = useState("");
  const [asked, again] = useState(0);
  const counted = useRef(0);
  counted.current = seen;
  useEffect(() => {
    let closed = false;
    const query = step ? "?step=" + encodeURIComponent(step) : "";
    send("GET", `jobs/${encodeURIComponent(job)}/dead-letters${query}`).then(
      (told) => { if (!closed) { set({ ...told, seen: counted.current }); tell(""); } },
      (error) => { if (!closed) { set(null); tell(error.message); } });
    return () => { closed = true; };
  }, [job, step, asked]);
  if (!found) return html`<h2>Dead letters</h2><p class="muted" role="status">${problem || "Reading…"}</p>`;
  const steps = Object.entries(found.steps);
  // Counts of the job are a second old, and know nothing of letters that a replay has deleted.
  const more = Math.min(seen - found.total, seen - found.seen);
  return html`<h2>Dead letters</h2>
    <p class="choices"><span>${count(found.total)} in <code>${found.directory}</code></span>
      ${steps.length > 1 && html`<label>Step <select value=${step} onChange=${(e) => choose(e.target.value)}>
        <option value="">all</option>${steps.map(([name, n]) => html`<option value=${name}>${name} (${count(n)})</option>`)}</select></label>`}
      <button onClick=${() => again(asked + 1)}>Read again</button></p>
    ${more > 0 ? html`<p class="muted">${count(more)} more were put aside since they were read.</p>` : ""}
    ${!step && found.letters.length < found.total ? html`<p class="muted">The newest ${found.letters.length} are shown.</p>` : ""}
    ${found.letters.map((l) => html`<details><summary>${time(l.time_ms)} · <bdi>${l.step}</bdi> [${nth(l.subtask)}] · <bdi>${l.error.split("\n")[0].slice(0, 200)}</bdi></summary>
      <dl><dt>record</dt><dd><code>${l.record}</code></dd>${l.key != null && html`<dt>key</dt><dd><code>${l.key}</code></dd>`}
        <dt>replay</dt><dd>${l.replayable ? "possible" : "not possible: the record could not be kept, or not be decoded"}</dd></dl>
      <pre tabindex="0">${l.traceback}</pre></details>`)}
    ${found.total > 0 && html`<${Replay} job=${job} step=${step} found=${found} by=${replay} done=${() => again(asked + 1)} />`}`;
}

// Replays with the program of the job, which is loaded anew, or with one that was uploaded.
function Replay({ job, step, found, by, done }) {
  const [programs, list] = useState([]);
  const [asked, change] = useState({ program: "", entry: "", words: "", keep: false });
  const [state, tell] = useState({ busy: false, text: "", output: "" });
  const live = useRef(true);
  useEffect(() => () => { live.current = false; }, []);
  useEffect(() => { if (by === "upload") send("GET", "jars").then((told) => list(told.files), () => {}); }, [by]);
  if (!by) return html`<h2>Replay</h2><p class="muted">On the command line: <code>sluiceway dlq replay ${found.directory} TARGET</code></p>`;
  const number = step ? found.steps[step] : found.total;
  const put = (name) => (event) => change({ ...asked, [name]: name === "keep" ? event.target.checked : event.target.value });
  const chosen = asked.program || programs[0]?.id || "";
  const run = async (event) => {
    event.preventDefault();
    if (!window.confirm(`Replay ${count(number)} dead letter${number === 1 ? "" : "s"}${step ? " of " + step : ""}? The program is run for that.`)) return;
    const body = { step, delete: !asked.keep };
    if (by === "upload") {
      body.program = chosen;
      if (asked.entry.trim()) body.entryClass = asked.entry.trim();
      if (asked.words.trim()) body.programArgs = asked.words;
    }
    tell({ busy: true, text: "The dead letters are being replayed.", output: "" });
    try {
      const path = `jobs/${encodeURIComponent(job)}/dead-letters/replay`;
      const { "request-id": request } = await send("POST", path, body);
      for (;;) {
        const { status, operation } = await send("GET", `${path}/${request}`);
        if (!live.current) return;
        if (status.id === "COMPLETED") {
          const cause = operation["failure-cause"]?.["stack-trace"];
          tell({ busy: false, text: cause ? "The replay failed, and the dead letters are still there." : operation.summary, output: cause ?? operation.output });
          if (!cause) done();
          return;
        }
        await new Promise((over) => setTimeout(over, 500));
      }
    } catch (error) { if (live.current) tell({ busy: false, text: error.message, output: "" }); }
  };
  return html`<h2>Replay</h2>
    <p class="muted">Each record goes into the step that skipped it, in a job of its own with ${by === "upload" ? "a program that was uploaded" : "the program as its file is now"}.</p>
    ${by === "upload" && !programs.length ? html`<p>Upload the program on the <a href="#/">page of all jobs</a> first.</p>`
      : html`<form class="choices fields" onSubmit=${run}>
      ${by === "upload" && html`<label>Program <select value=${chosen} onChange=${put("program")}>${programs.map((p) => html`<option value=${p.id}>${p.name} (${time(p.uploaded)})</option>`)}</select></label>
        <label>Pipeline <input type="text" placeholder="flow" value=${asked.entry} onInput=${put("entry")} /></label>
        <label>Arguments <input type="text" value=${asked.words} onInput=${put("words")} /></label>`}
      <label class="check"><input type="checkbox" checked=${asked.keep} onChange=${put("keep")} /> Keep them afterwards</label>
      <button disabled=${state.busy}>Replay ${count(number)}${step ? " of " + step : ""}</button></form>`}
    <p role="status">${state.text}</p>
    ${state.output && html`<pre tabindex="0" aria-label="Output of the replay">${state.output}</pre>`}`;
}
