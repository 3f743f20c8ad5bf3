// Part of the jobs page, where the server takes programs: upload one, submit it, list and delete those that are there.

import { html, useEffect, useState } from "./vendor/htm-preact.mjs";
import { address, time } from "./format.mjs";
import { send } from "./live.mjs";
import { Table } from "./parts.mjs";

export function Submit() {
  const [programs, list] = useState([]);
  const [told, tell] = useState(null);
  const [busy, work] = useState("");
  const [entry, setEntry] = useState(""), [words, setWords] = useState(""), [parallelism, setParallelism] = useState("");
  const refresh = () => send("GET", "jars").then((answer) => list(answer.files), (error) => tell(error.message));
  useEffect(() => { refresh(); }, []);

  const act = async (what, action) => {
    work(what);
    tell(null);
    try {
      await action();
    } catch (error) {
      tell(error.message);
    }
    work("");
    refresh();
  };
  const run = async (id) => {
    const body = {};
    if (entry.trim()) body.entryClass = entry.trim();
    if (words.trim()) body.programArgs = words;
    if (parallelism) body.parallelism = Number(parallelism);
    const answer = await send("POST", `jars/${encodeURIComponent(id)}/run`, body);
    window.location.hash = "#/job/" + address({ job: answer.job, jid: answer.jobid });
  };
  const upload = async (input) => {
    const form = new FormData();
    form.append("jarfile", input.files[0]);
    const answer = await fetch("jars/upload", { method: "POST", body: form });
    const found = await answer.json().catch(() => ({}));
    input.value = "";
    if (!answer.ok) throw new Error(found.errors?.[0] ?? "status " + answer.status);
  };

  return html`<h2>Submit a program</h2>
    <div class="choices fields">
      <label>Program (.py or wheel) <input type="file" accept=".py,.whl" disabled=${!!busy}
        onChange=${(e) => e.target.files.length && act("Uploading…", () => upload(e.target))} /></label>
      <label>Pipeline <input type="text" placeholder="flow" value=${entry} onInput=${(e) => setEntry(e.target.value)} /></label>
      <label>Arguments <input type="text" value=${words} onInput=${(e) => setWords(e.target.value)} /></label>
      <label>Parallelism <input type="number" min="1" value=${parallelism} onInput=${(e) => setParallelism(e.target.value)} /></label>
    </div>
    <p role="status">${busy}</p>
    ${told && html`<pre role="alert">${told}</pre>`}
    <${Table} empty="No program is uploaded." head=${["Uploaded program", "At", ""]}
      rows=${programs.map((p) => [p.name, time(p.uploaded), html`<span class="choices">
        <button disabled=${!!busy} onClick=${() => act("Submitting…", () => run(p.id))}>Submit ${p.name}</button>
        <button class="danger" disabled=${!!busy} onClick=${() => act("Deleting…", () => send("DELETE", "jars/" + encodeURIComponent(p.id)))}>Delete ${p.name}</button></span>`])} />`;
}
