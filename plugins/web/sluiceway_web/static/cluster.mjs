// Pages of the cluster: processes with their figures, logs, threads, configuration.

import { html, useEffect, useState } from "./vendor/htm-preact.mjs";
import { UNKNOWN, bytes, count, duration, percent, time } from "./format.mjs";
import { send } from "./live.mjs";
import { Logs } from "./logs.mjs";
import { Trend, Table } from "./parts.mjs";

const TABS = [["", "Processes"], ["logs", "Logs"], ["threads", "Threads"], ["configuration", "Configuration"]];

export function Cluster({ page, tab, argument, readOnly }) {
  const View = { "": Processes, logs: Logs, threads: Threads, configuration: Configuration }[tab] ?? Processes;
  const { processes, max_workers: most } = page;
  if (!processes.length) return html`<h1>Cluster</h1><p class="muted">No process runs: these are records of jobs that have ended.</p>`;
  const workers = processes.length - 1;
  return html`<h1>${most ? "Cluster" : "Processes of the job"}</h1>
    <p class="muted">Since ${time(page.started)}${most ? ` · ${workers} of up to ${most} worker${most === 1 ? "" : "s"} · ${page.free_slots} of ${page.slots} slots free` : ""}
      ${page.standbys.length ? ` · standing by: ${page.standbys.join(", ")}` : ""} ${!readOnly && most > 0 && html`<${End} />`}</p>
    ${page.problems.map((p) => html`<p class="finding notice">${p}</p>`)}
    <nav class="tabs" aria-label="Pages of the cluster">${TABS.map(([name, title]) => html`<a href=${"#/cluster" + (name ? "/" + name : "")}
      aria-current=${name === tab ? "page" : null}>${title}</a>`)}</nav>
    <${View} page=${page} argument=${argument} />`;
}

function End() {
  const [told, tell] = useState("");
  const end = async () => {
    if (!window.confirm("End the cluster? Its jobs are cancelled, without savepoints.")) return;
    try { tell("The cluster is ending."); await send("DELETE", "cluster"); } catch (error) { tell(error.message); }
  };
  return html`<span>· <button class="danger" onClick=${end}>End cluster</button> <span role="status">${told}</span></span>`;
}

function pauses(f) {
  if (f.pauses == null) return UNKNOWN;
  if (!f.pauses) return "none";
  return html`<span title=${`the longest took ${f.longest_pause_ms.toFixed(1)} ms`}>${count(f.pauses)} in ${f.pause_ms.toFixed(1)} ms</span>`;
}

function Processes({ page }) {
  const silent = page.processes.filter((p) => p.figures?.problem);
  return html`${silent.map((p) => html`<p class="finding notice">${p.figures.problem}. Its figures are those of the operating system.</p>`)}
    <${Table} head=${["Process", "#Id", "#Tasks", "#CPU", "Last minute", "#Memory", "Last minute", "#Peak", "#Threads", "#Open files", "#GC passes", "#GC pauses", "#Heartbeat"]}
    rows=${page.processes.map((p) => {
      const f = p.figures ?? {};
      const name = encodeURIComponent(p.name);
      return [
        page.max_workers ? html`<a href=${`#/cluster/logs/${name}.jsonl`} aria-label=${"Log of " + p.name}>${p.name}</a>` : p.name, p.pid, p.slots ? `${p.tasks} on ${p.slots} slots` : p.tasks || "–", percent(f.cpu_share),
        html`<${Trend} values=${p.cpu} least=${1} label=${"CPU of " + p.name} />`, bytes(f.rss),
        html`<${Trend} values=${p.rss} label=${"memory of " + p.name} />`, bytes(f.peak_rss),
        html`<a href=${"#/cluster/threads/" + name} aria-label=${"Threads of " + p.name}>${f.threads ?? UNKNOWN}</a>`,
        f.open_files == null ? UNKNOWN : f.most_open_files ? `${f.open_files} of ${count(f.most_open_files)}` : f.open_files,
        f.collections?.join(" / ") ?? UNKNOWN, pauses(f), p.silent_s == null ? "–" : duration(p.silent_s * 1000) + " ago",
      ];
    })} />
    <p class="muted">CPU is the share of one CPU. Passes of the garbage collector are by generation, the youngest first; pauses are those since somebody looked first.</p>`;
}

function Threads({ page, argument }) {
  const names = page.processes.map((p) => p.name);
  const process = names.includes(argument) ? argument : names[1] ?? names[0];
  const [{ dump, error }, set] = useState({});
  const [busy, work] = useState(false);
  const path = (process === names[0] ? "jobmanager" : "taskmanagers/" + encodeURIComponent(process)) + "/thread-dump";
  const take = async () => {
    work(true);
    try { set({ dump: await send("GET", path) }); } catch (problem) { set({ error: problem.message }); }
    work(false);
  };
  useEffect(() => { set({}); take(); }, [process]);
  return html`<p class="choices">
      <label>Process <select value=${process} onChange=${(e) => { window.location.hash = "#/cluster/threads/" + encodeURIComponent(e.target.value); }}>
        ${names.map((n) => html`<option value=${n}>${n}</option>`)}</select></label>
      <button disabled=${busy} onClick=${take}>Take again</button>
      <span class="muted" role="status">${busy ? "Asking the process…" : dump ? `${dump.threadInfos.length} threads at ${new Date(dump.at).toLocaleTimeString()}` : ""}</span></p>
    ${error && html`<p class="lost" role="alert">${error}</p>`}
    ${(dump?.threadInfos ?? []).map((t, i) => html`<details key=${t.threadName + i} open=${i === 0 || !!t.task}>
      <summary>${t.threadName}${t.task ? html` <strong>runs ${t.task}</strong>` : ""}</summary>
      <pre tabindex="0">${t.frames.join("\n")}</pre></details>`)}`;
}

function Configuration() {
  const [{ options, environment, error }, set] = useState({});
  useEffect(() => {
    Promise.all([send("GET", "jobmanager/config"), send("GET", "jobmanager/environment")])
      .then(([options, environment]) => set({ options, environment }), (problem) => set({ error: problem.message }));
  }, []);
  if (error) return html`<p class="lost" role="alert">${error}</p>`;
  if (!options) return html`<p class="muted">Reading…</p>`;
  const facts = options.filter((o) => !o.origin), set_ = options.filter((o) => o.origin && !o.origin.startsWith("default")), usual = options.filter((o) => o.origin.startsWith("default"));
  const shown = (some, empty) => html`<${Table} empty=${empty} head=${["Option", "Value", "From"]} rows=${some.map((o) => [o.key, o.value === "" ? "none" : o.value, o.origin || "the process"])} />`;
  const { jvm, variables } = environment;
  return html`<h2>Set</h2>${shown(set_, "All options have their defaults.")}<h2>Defaults</h2>${shown(usual)}<h2>Job manager</h2>${shown(facts)}
    <h2>Environment</h2><${Table} head=${["Name", "Value"]} rows=${[["Python", jvm.version], ["Machine", jvm.arch], ["Interpreter", jvm.options.join(" ")], ...Object.entries(variables ?? {})]} />`;
}
