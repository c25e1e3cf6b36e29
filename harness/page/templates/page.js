"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const drawn = new Set(); // elements that hold a figure by now
  const items = [...document.querySelectorAll("#methods li")];
  const hidden = new Set(); // methods whose box is empty
  const view = { isShown: (name) => !hidden.has(name) && matches(name), slots: new Map(), choose };
  const MANY = 8; // of more methods, only those in color have pictures and answers of their own

  // Figures: drawn when they come near the window, and again when something changes

  const draw = (element) => {
    drawFigure(element, figures[element.dataset.figure], view);
    drawn.add(element);
  };
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting && !drawn.has(target)) draw(target);
    }
  }, { rootMargin: "400px" });
  const plots = [...document.querySelectorAll(".plot")];
  const redraw = () => drawn.forEach(draw);

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar comes and goes
    width = innerWidth;
    redraw();
  });
  addEventListener("beforeprint", () => plots.forEach(draw));

  // Methods: which are shown, and which have a color

  const search = document.getElementById("search");
  const matches = (name) => name.toLowerCase().includes(search.value.trim().toLowerCase());

  function setColor(name, isColored) {
    if (!isColored) {
      view.slots.delete(name);
      return;
    }
    const taken = new Set(view.slots.values());
    let slot = 0;
    while (taken.has(slot)) slot += 1;
    view.slots.set(name, slot);
  }

  function choose(name) {
    setColor(name, !view.slots.has(name));
    showMethods();
  }

  function showMethods() {
    for (const element of document.querySelectorAll("[data-method]")) {
      const name = element.dataset.method;
      const slot = view.slots.get(name);
      const isOwn = element.matches("figure, .answers");
      const isLeftOut = isOwn && items.length > MANY && slot === undefined && !search.value.trim();
      element.hidden = element.matches("#methods li") ? !matches(name) : !view.isShown(name) || isLeftOut;
      element.classList.toggle("colored", slot !== undefined);
      if (slot === undefined) element.style.removeProperty("--own");
      else element.style.setProperty("--own", `var(--c${slot % 8})`);
    }
    for (const item of items) {
      item.querySelector(".pick").setAttribute("aria-pressed", String(view.slots.has(item.dataset.method)));
      item.querySelector("input").checked = !hidden.has(item.dataset.method);
    }
    redraw();
  }

  for (const item of items) {
    const name = item.dataset.method;
    if (item.hasAttribute("data-colored")) setColor(name, true);
    item.querySelector(".pick").addEventListener("click", () => choose(name));
    item.querySelector("input").addEventListener("change", (event) => {
      if (event.target.checked) hidden.delete(name); else hidden.add(name);
      showMethods();
    });
  }
  search.addEventListener("input", showMethods);
  for (const button of document.querySelectorAll("#methods [data-show]")) {
    button.addEventListener("click", () => {
      for (const { dataset: { method } } of items.filter((item) => !item.hidden)) {
        if (button.dataset.show === "all") hidden.delete(method); else hidden.add(method);
      }
      showMethods();
    });
  }

  // Tables: sorted, copied

  for (const table of document.querySelectorAll(".sortable")) {
    const headers = [...table.querySelectorAll("thead th")];
    headers.forEach((header, column) => header.querySelector("button").addEventListener("click", () => {
      const falling = header.getAttribute("aria-sort") ? header.getAttribute("aria-sort") === "ascending" : column > 0;
      headers.forEach((each) => each.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const body = table.tBodies[0];
      const keyed = [...body.rows].map((row) => ({ row, cell: row.cells[column] }));
      keyed.sort((a, b) => {
        const [x, y] = [a.cell.dataset.value, b.cell.dataset.value];
        const isText = column === 0 || (x === "" && y === ""); // as a verdict has no number
        if (isText) return a.cell.textContent.localeCompare(b.cell.textContent) * (falling ? -1 : 1);
        if (x === "" || y === "") return (x === "") - (y === ""); // what is missing comes last
        return (Number(x) - Number(y)) * (falling ? -1 : 1);
      });
      body.append(...keyed.map(({ row }) => row));
    }));
  }

  // A spreadsheet computes a cell that begins with one of these signs, unless it is a number.
  const safe = (text) => (/^[=+\-@\t\r]/.test(text) && !/^[+-]?[\d.]+(e[+-]?\d+)?( |$)/.test(text) ? `'${text}` : text);
  const cellText = (cell) => (cell.dataset.text ?? cell.textContent).replace(/\s+/g, " ").trim();
  const report = (button, text) => {
    const before = button.dataset.name ??= button.textContent;
    button.textContent = text;
    setTimeout(() => { button.textContent = before; }, 2000);
  };

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const table = button.closest(".tabled").querySelector("table");
      const rows = [...table.rows].filter((row) => !row.hidden);
      const text = rows.map((row) => [...row.cells].map((cell) => safe(cellText(cell))).join("\t")).join("\n");
      try {
        await navigator.clipboard.writeText(text);
        report(button, "Copied");
      } catch { // without permission for the clipboard the reader copies the selection
        getSelection().selectAllChildren(table);
        report(button, "Selected");
      }
    });
  }

  // Numbers of a figure

  const quoted = (value) => `"${(typeof value === "string" ? safe(value) : String(value ?? "")).replaceAll('"', '""')}"`;

  function numbers(figure) {
    const lines = [["series", figure.x || "x", figure.y || "y", "low", "high", "x low", "x high", "text"]];
    for (const series of figure.series) {
      series.x.forEach((x, i) => {
        const of = (values) => values?.[i] ?? "";
        const [along, across] = [series.x_limits, series.y_limits ?? series];
        const text = series.methods ?? series.text;
        lines.push([series.name, x ?? "", of(series.y), of(across.low), of(across.high), of(along?.low), of(along?.high), of(text)]);
      });
    }
    return lines.map((line) => line.map(quoted).join(",")).join("\r\n");
  }

  for (const button of document.querySelectorAll("button.download")) {
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([numbers(figures[button.dataset.figure])], { type: "text/csv" }));
      link.download = `${button.dataset.figure}.csv`;
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  // On a wide window the contents are open at the side.
  document.getElementById("side").open = matchMedia("(min-width: 70rem)").matches;
  showMethods();
  plots.forEach((element) => seen.observe(element));
})();
