"use strict";
(() => {
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const MARKERS = ["circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star"];
  const LONGEST = 28; // characters of a name on an axis or under the pointer
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;
  const hidden = new Set(); // methods
  const drawn = new Set(); // elements that hold a figure by now

  // Colours

  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const toggle = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  const kept = {
    // A page that is opened from a file may have no storage.
    read: () => { try { return localStorage.getItem("entrobench-theme"); } catch { return null; } },
    write: (value) => { try { localStorage.setItem("entrobench-theme", value); } catch { /* then it is not kept */ } },
  };

  function showTheme() {
    toggle.setAttribute("aria-pressed", String(isDark()));
    drawn.forEach(draw);
  }

  if (["dark", "light"].includes(kept.read())) root.dataset.theme = kept.read();
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    kept.write(root.dataset.theme);
    showTheme();
  });
  systemDark.addEventListener("change", showTheme);

  // Figures

  // Plotly reads a few HTML tags in text, and mathematics between dollars; names may hold anything.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
    .replace(/\$/g, "&#36;");
  const short = (text) => {
    const signs = [...String(text)];
    return plain(signs.length <= LONGEST ? text : `${signs.slice(0, 15).join("")}…${signs.slice(-12).join("")}`);
  };
  const transparent = (hex, share) => hex + Math.round(share * 255).toString(16).padStart(2, "0");
  const look = (style) => ({
    colour: colour(`c${style % 8}`),
    dash: DASHES[style % 6],
    marker: MARKERS[(style + Math.floor(style / 8)) % 8],
  });
  const bars = (middle, limits) => limits.low[0] === null ? { visible: false } : {
    type: "data", symmetric: false, array: [limits.high[0] - middle], arrayminus: [middle - limits.low[0]],
    thickness: 1.2, width: 4,
  };

  const traces = {
    lines(series) {
      const { colour: line, dash, marker } = look(series.style);
      const known = series.x.map((_, i) => i).filter((i) => series.low[i] !== null);
      const few = series.x.length <= 12;
      const band = {
        type: "scatter", mode: "lines", fill: "toself", fillcolor: transparent(line, 0.1), line: { width: 0 },
        x: [...known.map((i) => series.x[i]), ...known.toReversed().map((i) => series.x[i])],
        y: [...known.map((i) => series.high[i]), ...known.toReversed().map((i) => series.low[i])],
        hoverinfo: "skip",
      };
      const middle = {
        type: "scatter", mode: few ? "lines+markers" : "lines", name: short(series.name), x: series.x, y: series.y,
        line: { color: line, dash, width: 2 }, marker: { symbol: marker, size: 7, color: line },
        hovertemplate: "%{fullData.name}: %{y:.4g}<extra></extra>",
      };
      return known.length ? [band, middle] : [middle];
    },
    points(series) {
      const { colour: line, marker } = look(series.style);
      return [{
        type: "scatter", mode: "markers", name: short(series.name), x: series.x, y: series.y,
        marker: { symbol: marker, size: 12, color: line },
        error_x: { ...bars(series.x[0], series.x_limits), color: line },
        error_y: { ...bars(series.y[0], series.y_limits), color: line },
        hovertemplate: "%{fullData.name}<br>%{x:.3f}, %{y:.3f}<extra></extra>",
      }];
    },
    rates(series) {
      const marker = {
        "other problems": { symbol: "circle-open", size: 6, color: colour("dim"), opacity: 0.75 },
        lost: { symbol: "square", size: 8, color: colour("c1"), opacity: 0.85 },
        won: { symbol: "triangle-up", size: 9, color: colour("c0"), opacity: 0.85 },
      }[series.name];
      return [{
        type: "scatter", mode: "markers", name: plain(series.name), x: series.x, y: series.y, marker, cliponaxis: false,
        text: series.text.map(short), hovertemplate: "%{text}<br>%{x:.3f} before, %{y:.3f} after<extra></extra>",
      }];
    },
    dots(series) {
      const { colour: line, marker } = look(series.style);
      return [{
        type: "scatter", mode: "markers", name: short(series.name), x: series.x,
        y: series.x.map(() => short(series.name)), marker: { symbol: marker, size: 11, color: line, opacity: 0.85 },
        text: series.text.map(plain), hovertemplate: "%{fullData.name}, %{text}: %{x:.3f}<extra></extra>",
      }];
    },
    bars(series) {
      const shown = series.methods.map((_, i) => i).filter((i) => !hidden.has(series.methods[i].name));
      return [{
        type: "bar", orientation: "h", name: plain(series.name), x: shown.map((i) => series.x[i]),
        y: shown.map((i) => short(series.methods[i].name)),
        marker: { color: colour(`c${series.style}`), pattern: { shape: ["", "/", "x", ".", "\\", "-", "+", "|"][series.style],
          fgcolor: colour("back"), fillmode: "overlay", size: 6, solidity: 0.25 } },
        hovertemplate: "%{y}, %{fullData.name}: %{x:.3f} s<extra></extra>",
      }];
    },
  };

  function layout(figure, element) {
    const ink = colour("ink"), rule = colour("line");
    const named = ["dots", "bars"].includes(figure.kind);
    const axis = (title, log) => ({
      title: { text: plain(title), standoff: 8, font: { size: 13 } }, type: log ? "log" : undefined, color: ink,
      gridcolor: rule, zerolinecolor: rule, linecolor: rule, automargin: true, nticks: log ? 6 : undefined,
    });
    const made = {
      height: figure.small ? 256 : 352, width: element.clientWidth, margin: { l: 52, r: 12, t: 12, b: 44 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: ink },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: rule, font: { color: ink } },
      xaxis: axis(figure.x, figure.options.log_x), yaxis: axis(figure.y, figure.options.log_y),
      showlegend: figure.kind === "bars", legend: { orientation: "h", y: -0.22, yanchor: "top", traceorder: "normal" },
      hovermode: figure.kind === "lines" ? "x" : "closest", barmode: "stack",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    };
    if (figure.options.ticks) Object.assign(made.xaxis, { tickmode: "array", tickvals: figure.options.ticks, ticktext: figure.options.ticks.map(String) });
    if (figure.options.names) made.xaxis.type = "category";
    if (named) made.yaxis = { ...made.yaxis, type: "category", autorange: "reversed" };
    if (figure.kind === "lines" && figure.series.every((series) => series.y.every((y) => y >= 0))) {
      made.yaxis.rangemode = "nonnegative"; // zeros alone would be drawn between -1 and 1
    }
    if (figure.options.cut) {
      const known = figure.series.flatMap((series) => [...series.low, ...series.high, ...series.y]).filter((y) => y !== null);
      const [least, most] = [Math.max(Math.min(...known), 0), Math.min(Math.max(...known), 1)];
      made.yaxis.range = [least - 0.03 * (most - least), most + 0.03 * (most - least)];
    }
    if (figure.kind === "rates") {
      for (const each of [made.xaxis, made.yaxis]) Object.assign(each, { range: [-0.03, 1.03], dtick: 0.25 });
      made.shapes = [{ type: "line", x0: 0, y0: 0, x1: 1, y1: 1, line: { color: rule, width: 1 }, layer: "below" }];
    }
    return made;
  }

  function draw(element) {
    const figure = figures[element.dataset.figure];
    const ofMethods = !["rates", "bars"].includes(figure.kind);
    const shown = figure.series.filter((series) => !ofMethods || !hidden.has(series.name));
    const settings = { displaylogo: false, displayModeBar: false };
    Plotly.react(element, shown.flatMap(traces[figure.kind]), layout(figure, element), settings);
    drawn.add(element);
  }

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting && !drawn.has(target)) draw(target);
    }
  }, { rootMargin: "400px" });
  const plots = [...document.querySelectorAll(".plot")];
  plots.forEach((element) => seen.observe(element));

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar comes and goes
    width = innerWidth;
    drawn.forEach(draw);
  });

  addEventListener("beforeprint", () => {
    const before = root.dataset.theme;
    root.dataset.theme = "light";
    plots.forEach(draw);
    addEventListener("afterprint", () => {
      if (before) root.dataset.theme = before; else delete root.dataset.theme;
      showTheme();
    }, { once: true });
  });

  // Methods

  document.getElementById("methods").addEventListener("change", (event) => {
    const method = event.target.value;
    if (event.target.checked) hidden.delete(method); else hidden.add(method);
    for (const element of document.querySelectorAll("[data-method]")) {
      if (element.dataset.method === method) element.hidden = hidden.has(method);
    }
    drawn.forEach(draw);
  });

  // Tables

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
        if (column === 0) return a.cell.textContent.localeCompare(b.cell.textContent) * (falling ? -1 : 1);
        if (x === "" || y === "") return (x === "") - (y === ""); // what is missing comes last
        return (Number(x) - Number(y)) * (falling ? -1 : 1);
      });
      body.append(...keyed.map(({ row }) => row));
    }));
  }

  showTheme();
})();
