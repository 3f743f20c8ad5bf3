// Logs of the processes: the end of a file, following it, with levels and search.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.mjs";
import { bytes, nth } from "./format.mjs";
import { send } from "./live.mjs";

const STEP = 256 * 1024, MOST_LINES = 5000;
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"];
const RANK = { DEBUG: 0, INFO: 1, STDOUT: 1, STDERR: 1, WARNING: 2, ERROR: 3, CRITICAL: 4 };
const NEWLINE = 10;

// Reads whole lines; of one that is longer than what is read, nothing. `cut`: what is read may begin within a line, which
// is left out, and is of the part before.
async function read(name, offset, size, cut = offset == null) {
  const from = offset == null ? "" : "&offset=" + offset;
  const answer = await fetch(`jobmanager/logs/${encodeURIComponent(name)}?size=${size}${from}`, { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).errors?.[0] ?? "status " + answer.status);
  const start = Number(answer.headers.get("X-Log-Offset")), total = Number(answer.headers.get("X-Log-Size"));
  const data = new Uint8Array(await answer.arrayBuffer());
  const begin = cut && start ? data.indexOf(NEWLINE) + 1 : 0;
  const whole = data.lastIndexOf(NEWLINE) + 1 || (data.length < size ? 0 : data.length);
  const lines = [];
  for (const text of new TextDecoder().decode(data.subarray(begin, whole)).split("\n")) {
    try { lines.push(JSON.parse(text)); } catch { /* it is the rest of a long one, or empty */ }
  }
  // With nothing whole in it, the part before goes on from where this one begins.
  return { start: begin < whole ? start + begin : start, next: start + whole, total, lines };
}

export function Logs({ page, argument }) {
  const [files, list] = useState(null);
  const [error, fail] = useState(null);
  const [level, setLevel] = useState("DEBUG"), [search, setSearch] = useState(""), [follow, setFollow] = useState(true);
  const [{ lines, start }, show] = useState({ lines: [], start: 0 });
  const box = useRef(null), at = useRef(null), following = useRef(true);
  following.current = follow;
  useEffect(() => { send("GET", "jobmanager/logs").then((told) => list(told.logs), (problem) => fail(problem.message)); }, [page.processes.length]);
  const name = files?.some((f) => f.name === argument) ? argument : files?.[0]?.name;
  useEffect(() => {
    if (!name) return undefined;
    let closed = false, timer = null;
    at.current = null;
    show({ lines: [], start: 0 });
    const ask = async () => {
      // Lines that were asked for meanwhile stay: only another file is read from its end again.
      if (at.current == null || following.current) await more();
      if (!closed) timer = setTimeout(ask, 1000);
    };
    const more = async () => {
      try {
        let part = await read(name, at.current, STEP);
        if (at.current != null && part.total < at.current) part = await read(name, null, STEP); // a new file has its name now
        if (closed) return;
        const first = at.current == null;
        at.current = part.next;
        if (first || part.lines.length) show((s) => ({ lines: [...(first ? [] : s.lines), ...part.lines].slice(-MOST_LINES), start: first ? part.start : s.start }));
        fail(null);
      } catch (problem) { if (!closed) fail(problem.message); }
    };
    ask();
    return () => { closed = true; clearTimeout(timer); };
  }, [name]);
  useEffect(() => { if (follow && box.current) box.current.scrollTop = box.current.scrollHeight; }, [lines, follow, level, search]);

  if (files && !files.length) return html`<p class="muted">There are no log files: the processes of this job log to standard error.</p>`;
  if (!files) return error ? html`<p class="lost" role="alert">${error}</p>` : html`<p class="muted">Reading…</p>`;
  const earlier = async () => {
    setFollow(false);
    const from = Math.max(0, start - STEP);
    try {
      const part = await read(name, from, start - from, true);
      show((s) => ({ lines: [...part.lines, ...s.lines].slice(0, MOST_LINES), start: part.start }));
    } catch (problem) { fail(problem.message); }
  };
  const wanted = search.toLowerCase();
  const shown = lines.filter((l) => (RANK[l.level] ?? 1) >= RANK[level] && (!wanted || [l.message, l.logger, l.job, l.operator, l.traceback].some((t) => t?.toLowerCase().includes(wanted))));
  const chosen = files.find((f) => f.name === name);
  return html`<p class="choices">
      <label>Log <select value=${name} onChange=${(e) => { window.location.hash = "#/cluster/logs/" + encodeURIComponent(e.target.value); }}>
        ${files.map((f) => html`<option value=${f.name}>${f.name.replace(/\.jsonl$/, "").replace(/\.jsonl\.1$/, " (older)")}</option>`)}</select></label>
      <label>Level <select value=${level} onChange=${(e) => setLevel(e.target.value)}>${LEVELS.map((l) => html`<option value=${l}>${l.toLowerCase()} and above</option>`)}</select></label>
      <label>Search <input type="search" value=${search} onInput=${(e) => setSearch(e.target.value)} /></label>
      <label><input type="checkbox" checked=${follow} onChange=${() => { if (!follow) at.current = null; setFollow(!follow); }} /> Follow</label>
      <button disabled=${!start} onClick=${earlier}>Earlier</button>
      <a href=${"jobmanager/logs/" + encodeURIComponent(name)} download=${name}>Download the end</a></p>
    ${error && html`<p class="lost" role="alert">${error}</p>`}
    <p class="muted" role="status">${shown.length} of ${lines.length} lines${chosen ? `, of a file of ${bytes(chosen.size)}` : ""}.${start ? " Earlier lines are not shown." : ""}</p>
    <div class="log" ref=${box} tabindex="0" role="region" aria-label=${"Log of " + name}>${shown.map((l) => html`<div class=${"line level-" + l.level}>
      <time>${new Date(l.time).toLocaleTimeString()}</time> <b>${l.level}</b> ${l.operator ? html`<i>${l.job} ${l.operator} ${nth(l.subtask ?? 0)}/${l.parallelism}</i> ` : l.job ? html`<i>${l.job}</i> ` : ""}<span>${l.logger && !l.level.startsWith("STD") ? l.logger + ": " : ""}${l.message}</span>
      ${l.traceback && html`<pre>${l.traceback}</pre>`}</div>`)}</div>`;
}
