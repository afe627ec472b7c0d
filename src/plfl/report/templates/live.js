// Fetches the page again and again, and shows what has changed in it.
const every = 2000, limit = 10000;
const lost = document.getElementById("lost");
const reached = "a, summary, [tabindex]";
let shown = "", seen = new Date();

const swap = (page) => {
  const old = document.querySelector("main"), now = page.querySelector("main");
  if (now.outerHTML === shown) return;
  shown = now.outerHTML;
  for (const part of now.querySelectorAll("section[id]")) {
    const before = document.querySelector(`#${part.id} details`), after = part.querySelector("details");
    if (before && after) after.open = before.open;
  }
  const at = [...old.querySelectorAll(reached)].indexOf(document.activeElement);
  const aside = [...old.querySelectorAll(".scroll")].map((part) => part.scrollLeft);
  old.replaceWith(now);
  now.querySelectorAll(".scroll").forEach((part, k) => { part.scrollLeft = aside[k] ?? 0; });
  if (at >= 0) now.querySelectorAll(reached)[at]?.focus({ preventScroll: true });
  document.title = page.title;
};

const refresh = async () => {
  try {
    const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(limit) });
    if (!answer.ok) throw new Error(answer.statusText);
    swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
    seen = new Date();
    lost.hidden = true;
  } catch {
    const when = seen.toLocaleTimeString();
    lost.textContent = document.querySelector("main").dataset.over
      ? `The server has ended, as all rounds are done. This is where it stood at ${when}.`
      : `The server does not answer: it was stopped, or cannot be reached. This is where it stood at ${when}; trying on.`;
    lost.hidden = false;
  }
  setTimeout(refresh, every);
};
setTimeout(refresh, every);
