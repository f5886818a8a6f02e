// A click on a heading sorts its table: by the first number of each cell, else by its text; the next click turns the order.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    table.querySelectorAll("thead th").forEach((heading, column) => {
      heading.style.cursor = "pointer";
      heading.title = "sort";
      heading.addEventListener("click", () => {
        const falling = heading.getAttribute("aria-sort") === "ascending";
        table.querySelectorAll("th").forEach((one) => one.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const body = table.tBodies[0];
        const sign = falling ? -1 : 1;
        body.append(...[...body.rows].sort((one, other) => order(cell(one, column), cell(other, column), sign)));
      });
    });
  }
});

const cell = (row, column) => row.cells[column].textContent.trim();

function order(one, other, sign) {
  const [a, b] = [parseFloat(one), parseFloat(other)];
  if (isNaN(a) && isNaN(b)) return sign * one.localeCompare(other);
  return isNaN(a) ? 1 : isNaN(b) ? -1 : sign * (a - b); // cells without a number are last
}
