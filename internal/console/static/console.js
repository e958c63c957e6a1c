// What pages do beyond links and forms: live updates, a choice of time formats, and keyboard shortcuts.
import htmx from "./htmx.esm.min.js";

const main = document.getElementById("main");

// The settings of the person, stored in the browser if possible.
const settings = {
  get(name, otherwise) {
    try { return localStorage.getItem(`pawl.${name}`) ?? otherwise; } catch { return otherwise; }
  },
  set(name, value) {
    try { localStorage.setItem(`pawl.${name}`, value); } catch { /* it lasts for this page */ }
  },
};

// make creates an element with attributes and content.
function make(kind, attributes = {}, ...content) {
  const element = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

// The stream at data-live reports changes, and the page then loads its URL again. It does not while it is hidden or
// paused, or while a person fills in a form or has selected rows.
let source, stale = false, loading = false, lost = false, signedOut = false, lostSince;
let paused = sessionStorage.getItem("paused") === "yes";

function changed(field) {
  if (field.matches("[type=checkbox], [type=radio]")) return field.checked !== field.defaultChecked;
  if (field.matches("select")) return field.selectedIndex !== Math.max(0, [...field.options].findIndex((option) => option.defaultSelected));
  return field.value !== field.defaultValue;
}

const editing = () => main.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), select, textarea")
  || [...main.querySelectorAll("input, textarea, select")].some(changed)
  || document.querySelector("dialog[open]") !== null;

// A page that is hidden sleeps, except the lab of a demonstration, which ends.
const asleep = () => document.hidden && !main.dataset.live?.startsWith("/console/lab");

async function refresh() {
  stale = true;
  if (loading || asleep() || paused || editing() || !main.dataset.live) return label();
  [loading, stale] = [true, false];
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    lost = !answer.ok;
    signedOut = answer.status === 401;
    const text = await answer.text();
    if (editing()) { // since the request
      stale = true;
    } else if (answer.ok && !asleep()) {
      const page = new DOMParser().parseFromString(text, "text/html"), fresh = page.getElementById("main");
      document.title = page.title;
      keep(fresh);
      main.dataset.live = fresh.dataset.live ?? ""; // a new stream begins with this version; without one, nothing more happens
      const at = rows().indexOf(row()), focused = main.contains(document.activeElement);
      htmx.swap({ target: main, swap: "innerMorph", text: fresh.innerHTML });
      arrange();
      if (!main.dataset.live) listen();
      if (focused && !main.contains(document.activeElement)) { // its row is gone
        (rows()[Math.min(at, rows().length - 1)]?.querySelector("a") ?? main).focus();
      }
    }
  } catch {
    lost = true; // the stream reconnects by itself, and then the page is loaded
    stale = true;
  } finally {
    loading = false;
    stale && !lost ? refresh() : label(); // there may be changes since
  }
}

// keep opens the details of the new page that are open on the old one.
function keep(fresh) {
  const name = (details) => details.querySelector("summary")?.textContent;
  const before = [...main.querySelectorAll("details")];
  for (const details of fresh.querySelectorAll("details")) {
    const same = before.find((other) => name(other) === name(details));
    if (same) details.open = same.open;
  }
}

function listen() {
  if (!main.dataset.live || asleep() || paused) {
    source?.close();
    source = undefined;
  } else if (!source) {
    source = new EventSource(main.dataset.live);
    source.addEventListener("poke", refresh);
    source.addEventListener("again", () => editing() || refresh());
    source.addEventListener("open", () => { lost = signedOut = false; stale ? refresh() : label(); });
    source.addEventListener("error", () => {
      [lost, stale] = [true, true];
      if (source?.readyState === EventSource.CLOSED) { // it was refused; a lost connection reconnects by itself
        source = undefined;
        setTimeout(listen, 10_000);
        fetch(location.href, { method: "HEAD" }).then((answer) => { signedOut = answer.status === 401; label(); }, () => {});
      }
      label();
    });
  }
  label();
}

// The page of a service that is away. The browser would not load it again while nobody listens.
if (document.querySelector("[data-away]")) {
  setInterval(() => fetch(location.href, { method: "HEAD" }).then((answer) => { if (answer.status < 500) location.reload(); }, () => {}), 3000);
}

document.addEventListener("visibilitychange", () => {
  stale = true; // no stream reported changes meanwhile
  listen();
});
main.addEventListener("focusout", () => setTimeout(() => stale && refresh()));
main.addEventListener("change", () => stale && refresh());

const liveButton = make("button", { class: "quiet live", type: "button" });
const signedOutLink = make("a", { class: "live", "data-state": "lost", href: location.href, hidden: "" }, "You are signed out");
liveButton.addEventListener("click", pause);

function pause() {
  paused = !paused;
  sessionStorage.setItem("paused", paused ? "yes" : "no");
  stale ||= !paused;
  listen();
}

const minute = () => lostSince.toTimeString().slice(0, 5);

// label shows whether the page is up to date. What reads the page aloud says it only when it changes for long.
function label() {
  if (lost !== Boolean(lostSince)) {
    lostSince = lost && new Date();
    document.getElementById("news").textContent = lost ? `Not live since ${minute()}` : "Live again";
  }
  main.classList.toggle("lost", lost);
  document.querySelector(".as-of")?.remove();
  if (lost) main.querySelector(".verdict, .strip")?.before(make("p", { class: "warning as-of" }, make("strong", {}, `${signedOut ? "Signed out" : "No answer"} since ${minute()}. What is shown is of then.`)));
  if (signedOut && signedOutLink.hidden) document.getElementById("news").textContent = "You are signed out";
  [liveButton.hidden, signedOutLink.hidden] = [signedOut || !main.dataset.live, !signedOut];
  const [state, text, title] = paused ? ["paused", "Paused", "Resume live updates"]
    : lost ? ["lost", `Not live since ${minute()}`, "The service does not answer. The page retries by itself; reload it to see the error"]
    : stale ? ["stale", "Changed", "Something has changed. It will be shown when you leave the form and clear the selection"]
    : ["live", "Live", "Pause live updates"];
  liveButton.dataset.state = state;
  liveButton.textContent = text;
  liveButton.title = title;
  liveButton.setAttribute("aria-pressed", String(!paused));
}

// Times are shown as a distance or by the clock.
function distance(seconds) {
  const [size, form] = [Math.abs(seconds), seconds < 0 ? (s) => `in ${s}` : (s) => `${s} ago`];
  if (size < 1) return "now";
  const [s, min, h, days] = [1, 60, 3600, 86400].map((unit) => Math.round(size / unit));
  if (s < 100) return form(`${s} s`);
  if (min < 60) return form(`${min} min`);
  return form(h < 48 ? `${h} h` : `${days} days`);
}

const clocks = {
  ago: (at) => distance(((lostSince || Date.now()) - at) / 1000),
  UTC: (at) => at.toISOString().replace("T", " ").replace(/\.\d+Z/, " UTC"),
  local: (at) => at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }),
};

function tick() {
  const clock = clocks[settings.get("times", "ago")] ?? clocks.ago;
  for (const time of main.querySelectorAll("time[datetime]:not(.clock)")) {
    const at = new Date(time.dateTime), due = clock === clocks.ago && time.hasAttribute("data-due");
    let text = isNaN(at) ? time.textContent : clock(due && at < Date.now() ? new Date(lostSince || Date.now()) : at);
    if (time.hasAttribute("data-lasts")) text = clock === clocks.ago ? `for ${text.replace(/ ago$/, "").replace("now", "0 s")}` : `since ${text}`;
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(() => document.hidden || tick(), 5000);

// arrange completes a page that was loaded: times, saved views, and tables that can be scrolled with the keyboard.
function arrange() {
  tick();
  showViews();
  for (const cell of main.querySelectorAll("th[data-all]:not(:has(input))")) {
    cell.append(make("input", { type: "checkbox", "aria-label": "Choose all that are shown" }));
  }
  for (const name of main.querySelectorAll("h1 bdi, dd > bdi:first-child, dd > a:first-child > bdi, pre > bdi, p > .reference > bdi")) {
    const place = name.closest("a") ?? name;
    if (place.nextElementSibling?.matches(".copy")) continue;
    const button = make("button", { type: "button", class: "quiet copy", "aria-label": `Copy ${name.textContent}` }, "Copy");
    button.addEventListener("click", async () => {
      if (!await copy(name)) return;
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    place.after(button);
  }
  countTicked();
  total();
  for (const details of main.querySelectorAll("details.kept")) {
    details.open = settings.get(details.id, details.open ? "open" : "closed") === "open";
  }
  reachable();
}

// What a person has folded away stays so.
main.addEventListener("toggle", ({ target }) => target.matches("details.kept") && settings.set(target.id, target.open ? "open" : "closed"), true);

function reachable() {
  for (const box of main.querySelectorAll("table, pre")) {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (scrolls && !box.hasAttribute("tabindex")) box.setAttribute("tabindex", "0");
  }
}

// Saved views: named searches, listed after the common ones. They are stored only in the browser.
function showViews() {
  const list = main.querySelector("nav.views ul");
  if (!list) return;
  const search = main.querySelector("nav.views").dataset.search;
  const views = Object.entries(JSON.parse(settings.get("views", "{}")));
  const store = (changed) => { settings.set("views", JSON.stringify(Object.fromEntries(changed))); showViews(); };
  for (const item of list.querySelectorAll(".own")) item.remove();
  for (const [name, saved] of views) {
    const link = make("a", { href: `/console/orders?q=${encodeURIComponent(saved)}` }, name);
    if (saved === search) link.setAttribute("aria-current", "true");
    const forget = make("button", { type: "button", class: "quiet", "aria-label": `Forget the view ${name}`, title: "Forget this view" }, "×");
    forget.addEventListener("click", () => store(views.filter(([other]) => other !== name)));
    list.append(make("li", { class: "own" }, link, forget));
  }
  if (!search || [...list.querySelectorAll("a")].some((link) => link.matches("[aria-current]"))) return;
  const save = make("button", { type: "button", class: "quiet" }, "Keep this search");
  save.addEventListener("click", () => {
    const name = prompt("Keep this search under the name", search)?.trim();
    if (name) store([...views.filter(([other]) => other !== name), [name, search]]);
  });
  list.append(make("li", { class: "own" }, save));
}

// The checkbox in the header selects all rows of the page.
main.addEventListener("change", ({ target }) => {
  if (target.matches("thead input[type=checkbox]")) {
    for (const box of target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = target.checked;
  }
  countTicked();
});

// countTicked says how many rows are chosen, in the button that acts on them, and their amounts.
function countTicked() {
  for (const place of main.querySelectorAll("[data-ticked]")) {
    const chosen = [...place.closest("form").querySelectorAll("tbody input:checked, input[type=hidden][data-money]")], before = place.dataset.ticked;
    const orders = `${chosen.length.toLocaleString("en")} ${chosen.length === 1 ? "order" : "orders"}`;
    place.textContent = before && !chosen.length ? "" : before + orders;
    if (!before) place.closest("button").disabled = !chosen.length;
    for (const title of main.querySelectorAll("h1[data-chosen]")) title.textContent = title.textContent.replace(/[\d,]+ orders?/, orders);
    for (const sum of main.querySelectorAll("[data-sum]")) {
      const of = chosen.filter((box) => box.dataset.money === sum.dataset.sum);
      sum.hidden = !of.length;
      sum.firstChild.textContent = sumOf(of);
    }
  }
}

// sumOf adds up amounts by currency, as whole numbers of the smallest unit.
function sumOf(boxes) {
  const sums = new Map();
  for (const box of boxes) {
    const [amount, currency] = box.dataset.amount.split(" "), [whole, fraction = ""] = amount.split("."), sum = sums.get(currency) ?? { digits: fraction.length, units: 0n };
    sums.set(currency, { ...sum, units: sum.units + BigInt(whole + fraction.padEnd(sum.digits, "0")) });
  }
  return [...sums].map(([currency, { digits, units }]) => money(units, digits, currency)).join(", ");
}

function money(units, digits, currency) {
  const text = String(units).replace("-", "").padStart(digits + 1, "0"), whole = text.slice(0, text.length - digits);
  return `${units < 0n ? "−" : ""}${BigInt(whole).toLocaleString("en")}${digits ? "." + text.slice(-digits) : ""} ${currency}`;
}

// total says what the chosen parts of an order cost, as the service adds them up, and refuses more than is left.
function total() {
  const amount = main.querySelector("form.stacked [name=amount][data-amount]");
  if (!amount) return;
  const { form, form: { elements: { all } } } = amount, [most, currency] = amount.dataset.amount.split(" "), whole = Boolean(all?.checked);
  const digits = most.split(".")[1]?.length ?? 0, text = (units) => money(units, digits, currency);
  const cents = (text) => {
    const [, whole, fraction = ""] = /^(-?\d+)(?:[.,](\d+))?$/.exec(text.trim()) ?? [, "0"];
    return BigInt(whole + fraction.padEnd(digits, "0").slice(0, digits));
  };
  const share = (of, some, every) => every ? (of < 0n ? -1n : 1n) * (((of < 0n ? -of : of) * some * 2n + every) / (2n * every)) : 0n; // half up
  for (const field of form.querySelectorAll("[name^=line], [name=amount], .steps > button")) field.disabled = whole;
  let sum = 0n, items = 0n, known = whole || Boolean(amount.value);
  for (const field of form.querySelectorAll("[name^=line][max]")) {
    const [price, ordered, done, taken] = field.dataset.amount.split(" "), units = Math.min(Math.max(0, Math.trunc(field.value)), field.max) || 0;
    items += cents(price) - cents(taken);
    if (units) [sum, known] = [sum + share(cents(price), BigInt(done) + BigInt(units), BigInt(ordered)) - cents(taken), known || Boolean(price)];
  }
  const some = sum;
  for (const field of form.querySelectorAll("[name^=line]:not([max])")) {
    const [left, shared] = field.dataset.amount.split(" "), part = shared ? share(cents(left), some, items) : 0n, typed = cents(field.value.replace(/^[-−]/, ""));
    field.placeholder = part ? text(part) : "";
    field.setCustomValidity(typed > cents(left.replace("-", "")) ? `Only ${text(cents(left))} is left.` : "");
    sum += !field.value.trim() ? part : left.startsWith("-") ? -typed : typed;
    known ||= Boolean(field.value.trim());
  }
  if (amount.value.trim()) sum = cents(amount.value);
  if (whole) sum = cents(most);
  const wrong = known && sum > cents(most) ? `Only ${text(cents(most))} is left.` : "";
  amount.setCustomValidity(whole ? "" : wrong);
  if (!form.querySelector("output")) form.querySelector(".buttons").prepend(make("output", {}));
  form.querySelector("output").textContent = known ? `Total: ${text(sum)}${wrong && `. ${wrong}`}` : "";
  form.querySelector("output").className = wrong ? "bad" : "";
}
main.addEventListener("input", total);

// A thumb counts units with buttons.
for (const number of main.querySelectorAll("input[type=number][max]")) {
  const name = number.labels[0].textContent, by = (sign, text) => {
    const button = make("button", { type: "button", "aria-label": `${name}: ${text}` }, sign);
    button.addEventListener("click", () => { sign === "+" ? number.stepUp() : number.stepDown(); total(); });
    return button;
  };
  const box = make("span", { class: "steps" });
  number.replaceWith(box);
  box.append(by("−", "one less"), number, by("+", "one more"));
}

// What was typed into a form comes back with the Back button. The pages are not stored, so the browser forgets it.
const typed = `typed ${location.pathname}${location.search}`;
const fields = () => main.querySelectorAll("form.stacked :is(input:not([type=hidden], [autocomplete=off]), textarea, select)");
addEventListener("pagehide", () => {
  const values = [...fields()].filter(changed).map((field) => [field.name, field.value]);
  if (values.length) sessionStorage.setItem(typed, JSON.stringify(values));
  else sessionStorage.removeItem(typed);
});
if (performance.getEntriesByType("navigation")[0]?.type === "back_forward") {
  for (const [name, value] of JSON.parse(sessionStorage.getItem(typed) ?? "[]")) {
    for (const field of fields()) if (field.name === name && !field.matches("[type=checkbox], [type=radio]")) field.value = value;
  }
}

// Keyboard shortcuts. They can be turned off, for speech input and accidental keys.
const keys = {
  "/": ["search", search],
  j: ["the next row", () => step(1)],
  k: ["the previous row", () => step(-1)],
  c: ["copy the id of the row, or of the page", () => copy(row()?.querySelector("bdi") ?? main.querySelector("h1 bdi"))],
  Enter: ["open the row"], // its link has the focus
  x: ["choose the row, or not", () => row()?.querySelector("input[type=checkbox]")?.click()],
  p: ["pause or resume live updates", () => main.dataset.live && pause()],
  "?": ["this help", help],
};

const row = () => document.activeElement.closest("tbody tr, article");

const rows = () => [...main.querySelectorAll("tbody tr, article")].filter((other) => other.querySelector("a") && other.checkVisibility());

// step focuses the next or previous row with a link.
function step(by) {
  const all = rows(), at = all.indexOf(row());
  all[at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by]?.querySelector("a").focus();
}

// copy copies the text of an element. Browsers allow it only over TLS, or from this machine.
async function copy(element) {
  if (!element) return;
  try {
    await navigator.clipboard.writeText(element.textContent);
    document.getElementById("news").textContent = `Copied ${element.textContent}`;
    return true;
  } catch {
    getSelection().selectAllChildren(element);
  }
}

// search focuses the search field of the page.
function search() {
  const field = document.querySelector("input[type=search]");
  field?.focus();
  field?.select();
}

function help() {
  document.querySelector("dialog.help")?.remove();
  const shown = Object.entries(keys).flatMap(([key, [what]]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, what)]);
  const on = make("input", { type: "checkbox" });
  on.checked = settings.get("keys", "on") === "on";
  on.addEventListener("change", () => settings.set("keys", on.checked ? "on" : "off"));
  const times = make("select", {}, ...[["ago", "how long ago"], ["UTC", "in UTC"], ["local", "of this computer"]].map(([value, text]) => make("option", { value }, text)));
  times.value = settings.get("times", "ago");
  times.addEventListener("change", () => { settings.set("times", times.value); tick(); });
  const dialog = make("dialog", { class: "help", "aria-labelledby": "help-heading" },
    make("h2", { id: "help-heading" }, "Keys"), make("dl", {}, ...shown),
    make("p", {}, make("label", {}, on, "Keys are on")),
    make("p", {}, make("label", {}, "Times ", times)),
    make("form", { method: "dialog" }, make("button", {}, "Close")));
  dialog.addEventListener("close", () => { dialog.remove(); if (stale) refresh(); });
  document.body.append(dialog);
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  const at = event.target;
  if (event.key === "Escape" && at.matches("input, textarea, select") && !at.closest("dialog")) return at.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
  if (at.matches("input:not([type=checkbox], [type=radio]), textarea, select") || settings.get("keys", "on") !== "on") return;
  const [, act] = Object.hasOwn(keys, event.key) ? keys[event.key] : [];
  if (!act) return;
  event.preventDefault();
  act();
});

const helpButton = make("button", { class: "quiet", type: "button", "aria-haspopup": "dialog", title: "Keys and times" }, "Keys");
helpButton.addEventListener("click", help);
const who = document.querySelector(".who");
who.prepend(helpButton);
if (main.dataset.live) document.querySelector("button.menu").before(liveButton, signedOutLink);
addEventListener("resize", reachable);
listen();
arrange();
