// What pages do beyond links and forms: they keep themselves up to date, their times, too, and have keys.
import htmx from "./htmx.esm.min.js";

const main = document.getElementById("main");

// A page hears at data-live that something has changed, and loads its own URL anew. Nothing is asked for while nobody
// looks, while the page is paused, or while a person fills in a form.
let source, stale = false, loading = false;
let paused = sessionStorage.getItem("paused") === "yes";

const editing = () => main.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
  || main.querySelector("input[type=checkbox]:checked, dialog[open]") !== null;

async function refresh() {
  if (loading || document.hidden || paused || editing()) {
    stale = true;
    return;
  }
  [loading, stale] = [true, false];
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.ok) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
      htmx.swap({ target: main, swap: "innerMorph", text: fresh.innerHTML });
      tick();
    }
  } finally {
    loading = false;
  }
}

function listen() {
  const wanted = main.dataset.live && !document.hidden && !paused;
  if (!wanted) {
    source?.close();
    source = undefined;
  } else if (!source) {
    source = new EventSource(main.dataset.live);
    source.addEventListener("poke", refresh);
    source.addEventListener("open", () => stale && refresh());
  }
}

document.addEventListener("visibilitychange", () => {
  stale = true; // nobody has heard what happened meanwhile
  listen();
});
main.addEventListener("focusout", () => setTimeout(() => stale && refresh()));

if (main.dataset.live) {
  const button = document.createElement("button");
  button.className = "quiet live";
  const label = () => {
    button.textContent = paused ? "Paused" : "Live";
    button.setAttribute("aria-pressed", String(!paused));
    button.title = paused ? "Go on keeping this page up to date" : "Stop keeping this page up to date";
  };
  button.addEventListener("click", () => {
    paused = !paused;
    sessionStorage.setItem("paused", paused ? "yes" : "no");
    stale ||= !paused;
    label();
    listen();
  });
  label();
  document.querySelector(".who").prepend(button);
}
listen();

// Times are as long ago as they are.
function distance(seconds) {
  const [text, form] = [Math.abs(seconds), seconds < 0 ? (s) => `in ${s}` : (s) => `${s} ago`];
  if (text < 1) return "now";
  if (text < 60) return form(`${Math.floor(text)} s`);
  if (text < 3600) return form(`${Math.floor(text / 60)} min`);
  if (text < 172800) return form(`${Math.floor(text / 3600)} h`);
  return form(`${Math.floor(text / 86400)} days`);
}

function tick() {
  for (const time of main.querySelectorAll("time[datetime]")) {
    time.textContent = distance((Date.now() - Date.parse(time.dateTime)) / 1000);
  }
}
setInterval(() => document.hidden || tick(), 5000);
