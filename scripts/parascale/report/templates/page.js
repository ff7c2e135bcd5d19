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
// A link to a part that is folded opens it.
function unfold() { document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", ""); }
addEventListener("hashchange", unfold);
unfold();
