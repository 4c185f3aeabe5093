// @ts-check
// Shows a page that the console keeps up to date, and sends what its user does. All HTML comes from the console.

/** @typedef {{id: string, into: string, html: string}} Part */
/** @typedef {{kind: string, title?: string, parts?: Part[], gone?: string[], order?: Record<string, string[]>}} Update */

const KEY = "drydock-session";
/** Milliseconds without a line after which the connection counts as broken: the console sends one every five seconds. */
const SILENT = 20_000;
/** Milliseconds after which a tab that nobody sees closes its connection. */
const HIDDEN = 30_000;
/** Milliseconds between two announcements to screen readers. */
const ANNOUNCE = 10_000;

/** @param {string} id @returns {HTMLElement} */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const dialog = /** @type {HTMLDialogElement} */ (element("window"));

/** @param {string} path @param {RequestInit} [options] @returns {Promise<Response>} */
function request(path, options = {}) {
  const headers = {"X-Drydock-Session": sessionStorage.getItem(KEY) ?? "", "Content-Type": "application/json"};
  return fetch(path, {...options, headers, cache: "no-store"});
}

/** @param {string} path @param {unknown} body @returns {Promise<any>} */
async function post(path, body) {
  const response = await request(path, {method: "POST", body: JSON.stringify(body)});
  const result = await response.json();
  if (!response.ok) throw new Error(result.error ?? response.statusText);
  return result;
}

/** A view that is kept up to date: its parts are children of elements with known identities. */
class View {
  /** @param {string} path @param {boolean} main */
  constructor(path, main) {
    this.path = path;
    this.main = main;
    /** @type {Map<string, Part>} */
    this.parts = new Map();
    this.stopped = new AbortController();
    void this.follow();
  }

  stop() { this.stopped.abort(); }

  async follow() {
    let pause = 500;
    while (!this.stopped.signal.aborted) {
      try {
        await this.read(() => { pause = 500; });
      } catch (error) {
        if (this.stopped.signal.aborted) return;
        this.broken(String(error instanceof Error ? error.message : error));
      }
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, 8000);
    }
  }

  /** @param {() => void} heard */
  async read(heard) {
    const connection = new AbortController();
    const stop = () => connection.abort();
    this.stopped.signal.addEventListener("abort", stop);
    let timer = setTimeout(stop, SILENT);
    try {
      const response = await request(`/api/live?path=${encodeURIComponent(this.path)}`, {signal: connection.signal});
      if (response.status === 403) return signIn();
      if (!response.ok || !response.body) throw new Error((await response.json()).error);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const {value, done} = await reader.read();
        if (done) throw new Error("the console has ended the connection");
        clearTimeout(timer);
        timer = setTimeout(stop, SILENT);
        const lines = (text + value).split("\n");
        text = lines.pop() ?? "";
        for (const line of lines) {
          heard();
          element("connection").hidden = true;
          this.apply(JSON.parse(line));
        }
      }
    } finally {
      clearTimeout(timer);
      this.stopped.signal.removeEventListener("abort", stop);
    }
  }

  /** @param {string} why */
  broken(why) {
    if (this.main) {
      element("connection").hidden = false;
      element("connection").textContent = `No connection to the console since ${new Date().toLocaleTimeString()} (${why}). `
        + "This page is from before; maintenance goes on in the cluster.";
    }
  }

  /** @param {Update} update */
  apply(update) {
    if (update.title && this.main) document.title = `${update.title} · Drydock`;
    const gone = update.kind === "snapshot"
      ? [...this.parts.keys()].filter((id) => !update.parts?.some((part) => part.id === id))
      : update.gone ?? [];
    for (const id of gone) {
      document.getElementById(id)?.remove();
      this.parts.delete(id);
    }
    for (const part of update.parts ?? []) this.set(part);
    const order = update.order ?? {};
    if (update.kind === "snapshot") {
      for (const part of update.parts ?? []) (order[part.into] ??= []).push(part.id);
    }
    for (const [into, ids] of Object.entries(order)) arrange(into, ids);
    if (update.kind !== "alive" && this.main) announce();
  }

  /** @param {Part} part */
  set(part) {
    const shown = document.getElementById(part.id);
    if (shown && this.parts.get(part.id)?.html === part.html) return;
    this.parts.set(part.id, part);
    const template = document.createElement("template");
    template.innerHTML = part.html;
    const fresh = /** @type {HTMLElement} */ (template.content.firstElementChild);
    if (shown) exchange(shown, fresh);
    else element(part.into).append(fresh);
  }
}

// Replaces an element, and keeps what its user has done to it.
/** @param {HTMLElement} shown @param {HTMLElement} fresh */
function exchange(shown, fresh) {
  const focused = shown.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
  const place = focused ? [...shown.querySelectorAll(focused.tagName)].indexOf(focused) : -1;
  for (const old of shown.querySelectorAll("[id]")) {
    const other = fresh.querySelector(`[id="${CSS.escape(old.id)}"]`);
    if (old instanceof HTMLDetailsElement && other instanceof HTMLDetailsElement) other.open = old.open;
    if (old instanceof HTMLInputElement && other instanceof HTMLInputElement) other.value = old.value;
    // Rows of a table are parts of their own.
    if (old.tagName === "TBODY") other?.replaceChildren(...old.children);
  }
  shown.replaceWith(fresh);
  if (focused) /** @type {HTMLElement | undefined} */ ([...fresh.querySelectorAll(focused.tagName)][place])?.focus();
}

/** @param {string} into @param {string[]} ids */
function arrange(into, ids) {
  const parent = element(into);
  ids.forEach((id, index) => {
    const child = document.getElementById(id);
    if (child && parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
}

let announced = 0;
function announce() {
  const text = document.querySelector("[data-announce]")?.getAttribute("data-announce") ?? "";
  const shown = element("announcement");
  if (shown.textContent !== text && Date.now() - announced > ANNOUNCE) {
    announced = Date.now();
    shown.textContent = text;
  }
}

function signIn() {
  view?.stop();
  element("page").innerHTML = `<section class="empty"><h1>Open the link from the terminal</h1>
    <p>This tab has no session. <code>kubectl drydock console</code> prints a link that works once; another tab of this browser
    that is open gives out a further one by “Link for another browser”.</p></section>`;
}

/** @param {string} text @param {boolean} [bad] */
function notice(text, bad = false) {
  const line = document.createElement("p");
  line.className = bad ? "banner warning" : "banner good-news";
  line.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "Dismiss";
  close.addEventListener("click", () => line.remove());
  line.append(" ", close);
  element("notices").append(line);
}

/** @type {View | undefined} */
let view;
/** @type {View | undefined} */
let inDialog;

function show() {
  view?.stop();
  view = new View(location.pathname + location.search, true);
}

/** @param {string} path */
function openDialog(path) {
  inDialog?.stop();
  element("dialog").replaceChildren();
  inDialog = new View(path, false);
  dialog.showModal();
}
dialog.addEventListener("close", () => inDialog?.stop());

document.addEventListener("click", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(target) || target.closest("[data-dialog]")) menu.removeAttribute("open");
  }
  const path = target.closest("[data-dialog]")?.getAttribute("data-dialog");
  if (path) openDialog(path);
  const text = target.closest("[data-copy]")?.getAttribute("data-copy");
  if (text) {
    navigator.clipboard.writeText(text).then(() => notice(`Copied: ${text}`), () => notice(`Not copied: ${text}`, true));
  }
  if (target.closest("[data-close]")) dialog.close();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    menu.removeAttribute("open");
    /** @type {HTMLElement | null} */ (menu.querySelector("summary"))?.focus();
  }
});

document.addEventListener("submit", (event) => {
  const form = /** @type {HTMLFormElement} */ (event.target);
  event.preventDefault();
  const path = form.getAttribute("data-post");
  if (!path) return;
  const error = /** @type {HTMLElement} */ (form.querySelector(".error"));
  const button = /** @type {HTMLButtonElement} */ (form.querySelector("[type=submit]"));
  button.disabled = error.hidden = true;
  post(path, Object.fromEntries(new FormData(form))).then((result) => {
    dialog.close();
    notice(result.done);
  }, (failure) => {
    // The form may have been shown anew meanwhile.
    const shown = /** @type {HTMLElement} */ (document.querySelector(`[id="${form.id}"] .error`) ?? error);
    shown.textContent = failure.message;
    shown.hidden = false;
    button.disabled = false;
  });
});

function reopen() {
  const parts = view?.parts;
  show();
  if (view && parts) view.parts = parts;
}

let typing = 0;
document.addEventListener("input", (event) => {
  const field = /** @type {HTMLInputElement} */ (event.target);
  if (!field.matches("[data-filter]")) return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    history.replaceState(null, "", field.value ? `?q=${encodeURIComponent(field.value)}` : location.pathname);
    reopen();
  }, 200);
});

let hiding = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => view?.stop(), HIDDEN);
  else if (view?.stopped.signal.aborted && sessionStorage.getItem(KEY)) reopen();
});

element("other").addEventListener("click", () => {
  post("/api/link", {}).then((result) => navigator.clipboard.writeText(result.link).then(() => result.link)).then(
    (link) => notice(`Copied; it works once, on this machine: ${link}`),
    (failure) => notice(failure.message, true),
  );
});

for (const link of document.querySelectorAll("nav a")) {
  if (location.pathname.startsWith(link.getAttribute("href") ?? "")) link.setAttribute("aria-current", "page");
}
const key = new URLSearchParams(location.hash.slice(1)).get("key");
if (key) {
  history.replaceState(null, "", "/nodes");
  document.querySelector("nav a")?.setAttribute("aria-current", "page");
  try {
    sessionStorage.setItem(KEY, (await post("/api/session", {key})).session);
  } catch (error) {
    notice(String(error instanceof Error ? error.message : error), true);
  }
}
if (sessionStorage.getItem(KEY)) {
  element("other").hidden = false;
  show();
} else {
  signIn();
}
export {};
