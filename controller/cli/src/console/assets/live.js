// @ts-check
// Keeps a page up to date with the console, and sends the input of the user. All HTML comes from the console.

/** @typedef {{id: string, into: string, html: string}} Part */
/** @typedef {{title?: string, announce?: string, parts?: Part[], order?: Record<string, string[]>}} Update */

const KEY = "drydock-session";
/** Whether users are identified by bearer tokens, and not by the link that they have opened. */
const TOKENS = document.body.dataset.mode === "in-cluster";
/** Milliseconds without a line after which the connection is considered broken. The console sends a line every 5 s. */
const IDLE_TIMEOUT = 20_000;
/** Milliseconds after which a hidden tab closes its connection. */
const HIDDEN = 30_000;

/** @param {string} id @returns {HTMLElement} */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const dialog = /** @type {HTMLDialogElement} */ (element("window"));
/** @param {unknown} error */
const reason = (error) => error instanceof Error ? error.message : String(error);

/** @param {string} path @param {RequestInit} [options] @returns {Promise<Response>} */
function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = new Headers({"X-Drydock-Session": TOKENS ? "token" : key ?? "", "Content-Type": "application/json"});
  if (TOKENS && key) headers.set("Authorization", `Bearer ${key}`);
  return fetch(path, {...options, headers, cache: "no-store"});
}

/** @param {string} path @param {unknown} body @returns {Promise<any>} */
async function post(path, body) {
  const response = await request(path, {method: "POST", body: JSON.stringify(body)});
  const result = await response.json();
  if (!response.ok) throw new Error(result.error ?? response.statusText);
  return result;
}

/** A view that is kept up to date. Its parts are children of elements with known identities. */
class View {
  stopped = false;
  connection = new AbortController();
  parts = /** @type {Map<string, Part>} */ (new Map());

  /** @param {string} path @param {boolean} main */
  constructor(path, main) {
    this.path = path;
    this.main = main;
    void this.follow();
  }

  stop() {
    this.stopped = true;
    this.connection.abort();
  }

  async follow() {
    for (let pause = 500; !this.stopped; pause = Math.min(pause * 2, 8000)) {
      const connection = this.connection = new AbortController();
      let timer = setTimeout(() => connection.abort(), IDLE_TIMEOUT);
      try {
        const response = await request(`/api/live?path=${encodeURIComponent(this.path)}`, {signal: connection.signal});
        if (response.status === 401 || response.status === 403) return signIn((await response.json()).reason);
        if (!response.ok || !response.body) throw new Error((await response.json()).error);
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let text = "";;) {
          const {value, done} = await reader.read();
          if (done) throw new Error("the console has ended the connection");
          clearTimeout(timer);
          timer = setTimeout(() => connection.abort(), IDLE_TIMEOUT);
          const lines = (text + value).split("\n");
          text = lines.pop() ?? "";
          for (const line of lines) { this.apply(JSON.parse(line)); pause = 500; }
        }
      } catch (error) {
        if (!this.stopped && this.main) {
          element("connection").hidden = false;
          element("connection").textContent = `No connection to the console since ${new Date().toLocaleTimeString()} `
            + `(${reason(error)}). This page shows the last known state; maintenance continues in the cluster.`;
        }
      }
      clearTimeout(timer);
      await new Promise((done) => setTimeout(done, pause));
    }
  }

  /** @param {Update} update */
  apply(update) {
    element("connection").hidden = true;
    if (update.title && this.main) document.title = `${update.title} · Drydock`;
    if (update.announce && this.main) element("announcement").textContent = update.announce;
    for (const part of update.parts ?? []) this.set(part);
    for (const [into, ids] of Object.entries(update.order ?? {})) arrange(into, ids);
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
    if (fresh instanceof HTMLCanvasElement) void draw(fresh);
  }
}

/** @param {HTMLElement} shown @param {HTMLElement} fresh */
function exchange(shown, fresh) { // Replaces an element, and keeps its focus, input and open folds.
  const focused = shown.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null;
  const place = focused ? [...shown.querySelectorAll(focused.tagName)].indexOf(focused) : -1;
  for (const old of shown.querySelectorAll("[id]")) {
    const other = fresh.querySelector(`[id="${CSS.escape(old.id)}"]`);
    if (old instanceof HTMLDetailsElement && other instanceof HTMLDetailsElement) other.open = old.open;
    if (old instanceof HTMLInputElement && other instanceof HTMLInputElement) [other.value, other.checked] = [old.value, old.checked];
    // The rows of a table are parts with identities of their own.
    if (old.tagName === "TBODY") other?.replaceChildren(...old.children);
  }
  shown.replaceWith(fresh);
  if (focused) /** @type {HTMLElement | undefined} */ ([...fresh.querySelectorAll(focused.tagName)][place])?.focus();
}

/** @param {string} into @param {string[]} ids */
function arrange(into, ids) { // Sorts the parts in an element, if it still exists, and removes other parts.
  const parent = document.getElementById(into);
  ids.forEach((id, index) => {
    const child = document.getElementById(id);
    if (child && parent?.children[index] !== child) parent?.insertBefore(child, parent.children[index] ?? null);
  });
  while (parent && parent.children.length > ids.length) parent.lastElementChild?.remove();
}

/** @param {string} id @returns {HTMLElement} */
const copyOf = (id) => /** @type {any} */ (element(id)).content.firstElementChild.cloneNode(true);

function signIn(why = "") {
  view = view?.stop();
  dialog.close();
  sessionStorage.removeItem(KEY);
  for (const id of ["cluster", "banners"]) element(id).replaceChildren();
  element("other").hidden = element("connection").hidden = true;
  element("page").replaceChildren(copyOf("sign-in"));
  if (why) element("refused").textContent = why;
}

/** @param {string} text @param {boolean} [bad] */
function notice(text, bad = false) {
  const line = copyOf(bad ? "bad" : "good");
  line.prepend(`${text} `);
  element("notices").append(line);
}

/** @param {string} text @param {string} note */
function clip(text, note) {
  navigator.clipboard.writeText(text).then(() => notice(`${note}: ${text}`), () => notice(`Not copied: ${text}`, true));
}

let [view, inDialog] = /** @type {(View | void)[]} */ ([]);

/** @param {Map<string, Part>} [parts] Parts that are already on the page. */
function show(parts) {
  view?.stop();
  view = new View(location.pathname + location.search, true);
  if (parts) view.parts = parts;
}

dialog.addEventListener("close", () => inDialog?.stop());
document.addEventListener("click", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(target) || target.closest("[data-dialog]")) menu.removeAttribute("open");
  }
  const path = target.closest("[data-dialog]")?.getAttribute("data-dialog");
  if (path) {
    const ticked = path === "/start" ? [...document.querySelectorAll(".tick:checked")].map((box) => `/${box.getAttribute("value")}`) : [];
    inDialog?.stop();
    element("dialog").replaceChildren();
    inDialog = new View(path + ticked.join(""), false);
    dialog.showModal();
  }
  const text = target.closest("[data-copy]")?.getAttribute("data-copy");
  if (text) clip(text, "Copied");
  if (target.closest("[data-close]")) dialog.close();
  target.closest("[data-dismiss]")?.parentElement?.remove();
});

document.addEventListener("submit", (event) => {
  const form = /** @type {HTMLFormElement} */ (event.target);
  event.preventDefault();
  if ("token" in form.dataset) {
    sessionStorage.setItem(KEY, String(new FormData(form).get("token") ?? "").trim());
    return location.reload();
  }
  const path = form.getAttribute("data-post");
  if (!path) return;
  const error = /** @type {HTMLElement} */ (form.querySelector(".error"));
  const button = /** @type {HTMLButtonElement} */ (form.querySelector("[type=submit]"));
  // Outside of a dialog, the button may be pressed again and keeps the focus.
  button.disabled = dialog.open;
  error.hidden = true;
  post(path, Object.fromEntries(new FormData(form))).then((result) => {
    dialog.close();
    form.reset();
    if (result.done) notice(result.done);
    if (result.link) clip(result.link, "Link copied; it works once, on this machine");
  }, (failure) => {
    // The form may have been replaced in the meantime.
    const shown = document.querySelector(`[id="${form.id}"] .error`) ?? error;
    Object.assign(shown, {textContent: failure.message, hidden: false});
  }).finally(() => { button.disabled = false; });
});

let [typing, hiding] = [0, 0];
document.addEventListener("input", ({target: field}) => {
  if (!(field instanceof HTMLInputElement && field.matches("[data-filter]"))) return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    history.replaceState(null, "", field.value ? `?q=${encodeURIComponent(field.value)}` : location.pathname);
    show(view?.parts);
  }, 200);
});

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  // Stopping the view would also end the connection to a guest, and the output of the guest would be lost.
  if (document.hidden && !document.querySelector("[data-guest]")) hiding = setTimeout(() => view?.stop(), HIDDEN);
  else if (view?.stopped) show(view.parts);
});

// Draws the changes of a guest's display as long as its canvas is on the page.
/** @param {HTMLCanvasElement} canvas */
async function draw(canvas) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  while (canvas.isConnected) {
    const response = await request(canvas.dataset.frames ?? "").catch(() => null);
    if (!response?.ok) return;
    const body = await response.arrayBuffer();
    for (let at = 0; at < body.byteLength;) {
      const head = new DataView(body, at, 8);
      const [x, y, width, height] = [0, 2, 4, 6].map((offset) => head.getUint16(offset));
      const pixels = new Uint8ClampedArray(body, at + 8, 4 * width * height);
      context.putImageData(new ImageData(pixels, width), x, y);
      at += 8 + pixels.length;
    }
  }
}

let [inputs, sending] = [/** @type {object[]} */ ([]), false];
// Sends input to the guest that an element belongs to, in order. Input during a request is sent with the next request.
/** @param {object} input @param {Element | null} [from] */
async function send(input, from = document.activeElement) {
  const guest = from?.closest("[data-guest]")?.getAttribute("data-guest");
  if (guest) inputs.push(input);
  if (!guest || sending) return;
  sending = true;
  while (inputs.length) {
    await post("/api/guest/input", {guest, inputs: inputs.splice(0)}).catch((error) => notice(reason(error), true));
  }
  sending = false;
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  const {key, code, ctrlKey: ctrl, altKey: alt, shiftKey: shift} = event;
  for (const menu of key === "Escape" ? document.querySelectorAll("details.menu[open]") : []) {
    menu.removeAttribute("open");
    /** @type {HTMLElement | null} */ (menu.querySelector("summary"))?.focus();
  }
  const screen = document.activeElement?.closest("[data-guest]");
  // The browser handles copying and pasting in a terminal.
  if (!screen || event.metaKey || (ctrl && shift && key !== "Escape" && screen.id === "terminal")) return;
  event.preventDefault();
  if (ctrl && (key === "F6" || (shift && key === "Escape"))) element("below").focus();
  else void send({kind: "key", down: event.type === "keydown", key, code, ctrl, alt, shift});
}
document.onkeydown = document.onkeyup = onKey;
document.addEventListener("focusout", (event) => void send({kind: "release"}, /** @type {Element} */ (event.target)));
document.onpaste = (event) => void send({kind: "text", text: event.clipboardData?.getData("text/plain") ?? ""});

for (const kind of ["pointerdown", "pointermove", "pointerup", "wheel", "contextmenu"]) {
  document.addEventListener(kind, (event) => {
    const canvas = event.target;
    if (!(canvas instanceof HTMLCanvasElement && event instanceof MouseEvent && canvas.closest("[data-guest]"))) return;
    if (kind === "wheel" || kind === "contextmenu") event.preventDefault();
    const [x, y] = [event.offsetX, event.offsetY].map((at) => Math.max(0, Math.round(at * canvas.width / canvas.clientWidth)));
    if (event instanceof WheelEvent) void send({kind: "wheel", x, y, up: event.deltaY < 0}, canvas);
    else void send({kind: "pointer", x, y, buttons: event.buttons & 7}, canvas);
  }, {passive: false});
}

const key = new URLSearchParams(location.hash.slice(1)).get("key");
if (key) {
  history.replaceState(null, "", "/nodes");
  const {session} = await post("/api/session", {key}).catch((error) => notice(reason(error), true)) ?? {};
  if (session) sessionStorage.setItem(KEY, session);
}
element("other").hidden = !sessionStorage.getItem(KEY);
if (TOKENS || sessionStorage.getItem(KEY)) show();
else signIn();
export {};
