"use strict";
// Tables sort by a click on a heading; empty cells stay last. Without JavaScript they are in the run table's order.
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.dataset.title = heading.textContent; // for print, whose repeated headings have no buttons
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = [...table.tBodies[0].rows].map((row) => [key(row.cells[column]), row]);
      keyed.sort(([a], [b]) => compare(a, b, up ? 1 : -1));
      table.tBodies[0].append(...keyed.map(([, row]) => row));
    });
  });
}
// Where there are many runs, their rows can be chosen by workload, strategy and status, in all tables at once.
const facts = document.getElementById("facts");
if (facts) {
  const runs = JSON.parse(facts.textContent), form = document.createElement("form"), said = document.createElement("output");
  form.className = "filter";
  form.setAttribute("aria-label", "Runs in the tables");
  for (const name of ["workload", "strategy", "status"]) {
    const label = form.appendChild(document.createElement("label"));
    label.textContent = `${name} `;
    const choice = label.appendChild(document.createElement("select"));
    choice.name = name;
    choice.add(new Option("all", ""));
    for (const value of new Set(Object.values(runs).map((run) => run[name]))) choice.add(new Option(value, value));
  }
  form.append(said);
  document.querySelector("main").prepend(form);
  form.addEventListener("change", () => {
    const wanted = [...new FormData(form)].filter(([, value]) => value);
    const shown = (run) => !(run in runs) || wanted.every(([name, value]) => runs[run][name] === value);
    document.querySelectorAll("tr[data-run]").forEach((row) => { row.hidden = !shown(row.dataset.run); });
    said.textContent = wanted.length ? `${Object.keys(runs).filter(shown).length} of ${Object.keys(runs).length} runs in the tables` : "";
  });
}
function key(cell) {
  if (!cell.hasAttribute("data-value")) return cell.textContent.trim();
  const value = Number(cell.dataset.value);
  return Number.isNaN(value) ? cell.dataset.value : value;
}
function compare(a, b, direction) {
  if (a === "" || b === "") return (a === "") - (b === "");
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * String(a).localeCompare(String(b), undefined, { numeric: true });
}
// A link to a part that is folded opens it; paper shows all.
function unfold() { document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", ""); }
addEventListener("hashchange", unfold);
unfold();
