// Live figures of one page: server-sent events; without them, one request per second.

import { useEffect, useState } from "./vendor/htm-preact.mjs";

const HISTORY = 120; // points per vertex, as the first event has

export function useLive(name, job) {
  const [state, set] = useState({ data: null, error: null, lost: false });
  useEffect(() => {
    const query = job ? "?job=" + encodeURIComponent(job) : "";
    const url = "live/" + name + query;
    let closed = false, timer = null, page = {};
    set({ data: null, error: null, lost: false });
    const take = (told) => {
      if (closed) return;
      if (told.status === 503) set((s) => ({ ...s, lost: true }));
      else if (told.error) set((s) => ({ ...s, error: told.error, lost: false }));
      else {
        page = merged(page, told);
        set({ data: page.is_load_known === false ? withoutLoad(page) : page, error: null, lost: false });
      }
    };
    const poll = async () => {
      try {
        const answer = await fetch(url + (query ? "&" : "?") + "once", { cache: "no-store" });
        const told = await answer.json();
        take(answer.ok ? told : { error: told.errors[0], status: answer.status });
      } catch {
        set((s) => ({ ...s, lost: true }));
      }
      if (!closed) timer = setTimeout(poll, 2000);
    };
    let source = null;
    if (window.EventSource) {
      source = new EventSource(url);
      source.onmessage = (event) => take(JSON.parse(event.data));
      source.onerror = () => {
        if (closed) return;
        // The browser gives up for good where the answer was no stream: polling says why.
        if (source.readyState === 2) poll();
        else set((s) => ({ ...s, lost: true }));
      };
    } else poll();
    return () => { closed = true; clearTimeout(timer); source?.close(); };
  }, [name, job]);
  return state;
}

// Events of a stream have the fields that have changed, and the points by which the history has grown.
function merged(page, { more_history: more, ...told }) {
  const next = { ...page, ...told };
  if (more?.length) next.history = [...page.history, ...more].slice(-HISTORY * Math.max(1, next.vertices.length));
  return next;
}

// On engines that drive the tasks themselves, nobody knows how these spend their time.
function withoutLoad(page) {
  const unknown = { busy: null, blocked: null, waiting: null, idle: null };
  const vertices = page.vertices.map((v) => ({ ...v, ...unknown, shares: unknown, subtasks: v.subtasks.map((s) => ({ ...s, ...unknown })) }));
  return { ...page, vertices, history: page.history.map((p) => [p[0], p[1], p[2], null, null, ...p.slice(5)]) };
}

export async function send(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.errors?.[0] ?? "status " + answer.status);
  return told;
}
