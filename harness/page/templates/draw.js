"use strict";
// Draws a figure of the page as SVG. `view` says which methods are shown and which have a color.
const drawFigure = (() => {
  const DASHES = ["", "7 4", "2 3", "8 3 2 3", "12 4", "12 3 2 3"];
  const REPORTED = "4 3"; // the dashes of a published run
  const LABEL = 12; // pixels of a line of text
  const NEAR = 40; // pixels from the pointer within which a point is named
  const FEW = 12; // points of a line that have markers

  const short = (text, most) => {
    const signs = [...String(text)];
    const half = Math.floor((most - 1) / 2);
    return signs.length <= most ? String(text) : `${signs.slice(0, half).join("")}…${signs.slice(-half).join("")}`;
  };
  const readable = (value) => {
    const size = Math.abs(value);
    return size && (size < 1e-3 || size >= 1e6) ? String(Number(value.toExponential(3))) : String(Number(value.toPrecision(4)));
  };
  const finite = (values) => values.filter((value) => Number.isFinite(value));

  function node(name, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // Colors and markers come from a method's slot: the place that it got when it was colored.

  const color = (slot) => `var(--c${slot % 8})`;
  const MARKERS = [
    (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
    (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
    (x, y, r) => `M${x} ${y - 1.3 * r}l${1.3 * r} ${1.3 * r}l${-1.3 * r} ${1.3 * r}l${-1.3 * r} ${-1.3 * r}z`,
    (x, y, r) => `M${x} ${y - 1.2 * r}l${1.2 * r} ${2.2 * r}h${-2.4 * r}z`,
    (x, y, r) => `M${x} ${y + 1.2 * r}l${1.2 * r} ${-2.2 * r}h${-2.4 * r}z`,
  ];
  const marker = (slot, x, y, r) => node("path", { d: MARKERS[(slot ?? 0) % MARKERS.length](x, y, r), class: "marker" });

  function seriesGroup(view, name) {
    const slot = view.slots.get(name);
    const group = node("g", { class: slot === undefined ? "series gray" : "series" });
    if (slot !== undefined) group.style.setProperty("--own", color(slot));
    return { group, slot };
  }

  // Axes

  function linearTicks(low, high, most) {
    const power = 10 ** Math.floor(Math.log10((high - low) / most));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => Math.floor(high / size) - Math.ceil(low / size) < most);
    const ticks = [];
    for (let i = Math.ceil(low / step); i <= Math.floor(high / step); i += 1) ticks.push(Number((i * step).toPrecision(12)));
    return ticks;
  }

  function logTicks(low, high, most) {
    const between = (factors) => {
      const ticks = [];
      for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade += 1) {
        for (const factor of factors) ticks.push(Number(`${factor}e${decade}`));
      }
      return ticks.filter((tick) => tick >= low && tick <= high);
    };
    const fine = between([1, 2, 5]);
    if (fine.length < 3) return linearTicks(low, high, most).filter((tick) => tick > 0);
    if (fine.length <= most) return fine;
    const decades = between([1]);
    const every = Math.ceil(decades.length / most);
    return decades.filter((_, i) => i % every === 0);
  }

  function numberScale(values, { log, ends, ticks, most, zero, whole }) {
    const known = log ? values.filter((value) => value > 0) : values;
    let [low, high] = ends ?? [Math.min(...known), Math.max(...known)];
    if (!known.length && !ends) [low, high] = log ? [0.1, 1] : [0, 1];
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    const shape = log ? Math.log10 : (value) => value;
    const margin = 0.03 * (shape(high) - shape(low));
    let [first, last] = [shape(low) - margin, shape(high) + margin];
    if (zero && !log && low >= 0) first = Math.max(first, -margin);
    const back = log ? (value) => 10 ** value : (value) => value;
    let marks = ticks ?? (log ? logTicks : linearTicks)(back(first), back(last), most);
    if (whole) marks = marks.filter(Number.isInteger);
    return {
      place: (value) => (log && !(value > 0) ? NaN : (shape(value) - first) / (last - first)),
      ticks: marks.map((tick) => ({ value: tick, text: readable(tick) })),
    };
  }

  const nameScale = (names) => ({
    place: (name) => (names.indexOf(name) + 0.5) / names.length,
    ticks: names.map((name) => ({ value: name, text: short(name, 28) })),
  });

  const SIGN = 7.3; // pixels of a character of the axes' font, at most on average
  const textWidth = (text) => SIGN * [...text].length;

  function frame(element, figure, x, y, { height, right = 12, rows = false }) {
    const width = Math.max(element.clientWidth, 200);
    const widest = Math.max(0, ...y.ticks.map((tick) => textWidth(tick.text)));
    const left = Math.min(widest + (figure.y ? 30 : 12), 0.45 * width);
    const [top, bottom] = [10, 44];
    const area = { left, top, width: width - left - right, height: height - top - bottom };
    const toX = (value) => left + x.place(value) * area.width;
    const toY = (value) => top + (rows ? y.place(value) : 1 - y.place(value)) * area.height;
    const svg = node("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    const axes = node("g", { class: "axes" });
    let free = -Infinity; // to the right of the last label
    for (const tick of x.ticks) {
      const at = toX(tick.value);
      axes.append(node("line", { x1: at, x2: at, y1: top, y2: top + area.height }));
      const half = textWidth(tick.text) / 2;
      if (at - half < free) continue;
      free = at + half + 4;
      axes.append(node("text", { x: at, y: height - bottom + 16, "text-anchor": "middle", class: "x-tick" }, tick.text));
    }
    for (const tick of y.ticks) {
      const at = toY(tick.value);
      axes.append(node("line", { x1: left, x2: left + area.width, y1: at, y2: at }));
      const text = rows ? short(tick.text, Math.floor((left - 8) / SIGN)) : tick.text;
      axes.append(node("text", { x: left - 6, y: at + 4, "text-anchor": "end", class: "y-tick" }, text));
    }
    axes.append(node("text", { x: left + area.width / 2, y: height - 6, "text-anchor": "middle", class: "title" }, figure.x));
    if (figure.y && !rows) {
      const middle = top + area.height / 2;
      axes.append(node("text", { x: 12, y: middle, transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle", class: "title" }, figure.y));
    }
    svg.append(axes);
    return { svg, area, toX, toY, hits: [] };
  }

  // Labels next to each other's place: moved down until none overlaps, then up as far as the last is outside.
  function spread(labels, top, bottom) {
    const sorted = [...labels].sort((a, b) => a.y - b.y);
    let last = top - LABEL;
    for (const label of sorted) last = label.y = Math.max(label.y, last + LABEL);
    let limit = bottom + LABEL;
    for (const label of sorted.toReversed()) limit = label.y = Math.min(label.y, limit - LABEL);
  }

  const rowHeight = (rows) => (rows.length > 16 ? 12 : 18);
  const coloredLast = (view, series) => [...series].sort((a, b) => view.slots.has(a.name) - view.slots.has(b.name));
  const shownSeries = (figure, view) => figure.series.filter((series) => view.isShown(series.name));

  const kinds = {
    lines(element, figure, view) {
      const series = coloredLast(view, shownSeries(figure, view));
      const colored = series.filter((each) => view.slots.has(each.name));
      const labeled = series.filter((each) => each.reported || view.slots.has(each.name));
      const { options } = figure;
      const values = finite(series.flatMap((each) => each.y));
      for (const each of colored) values.push(...finite([...each.low, ...each.high]));
      const right = labeled.length ? Math.min(130, 0.3 * element.clientWidth) : 12;
      const most = element.clientWidth < 500 ? 5 : 8;
      const x = options.names ? nameScale([...new Set(figure.series.flatMap((each) => each.x))])
        : numberScale(finite(figure.series.flatMap((each) => each.x)), { log: options.log_x, ticks: options.ticks, most, whole: figure.x === "step" });
      const ends = options.cut && values.length ? [Math.max(Math.min(...values), 0), Math.min(Math.max(...values), 1)] : undefined;
      const y = numberScale(values, { log: options.log_y && values.some((value) => value > 0), ends, most: 6, zero: true });
      const made = frame(element, figure, x, y, { height: figure.small ? 250 : 340, right });
      const labels = [];
      for (const each of series) {
        const { group, slot } = seriesGroup(view, each.name);
        const points = each.x.map((value, i) => ({ x: made.toX(value), y: made.toY(each.y[i] ?? NaN), i })).filter((point) => Number.isFinite(point.y));
        const banded = points.filter(({ i }) => each.low[i] !== null && Number.isFinite(made.toY(each.low[i])));
        if (slot !== undefined && banded.length) {
          const upper = banded.map((point) => `${point.x} ${made.toY(each.high[point.i])}`);
          const lower = banded.toReversed().map((point) => `${point.x} ${made.toY(each.low[point.i])}`);
          group.append(node("path", { d: `M${[...upper, ...lower].join("L")}z`, class: "band" }));
        }
        if (points.length) group.append(node("path", { d: `M${points.map((point) => `${point.x} ${point.y}`).join("L")}`, class: "line", "stroke-dasharray": each.reported ? REPORTED : DASHES[slot % DASHES.length] ?? "" }));
        for (const point of points) {
          if (slot !== undefined && points.length <= FEW) group.append(marker(slot, point.x, point.y, 3.5));
          made.hits.push({ x: point.x, y: point.y, name: each.reported ? undefined : each.name, group, text: `${each.name}: ${readable(each.y[point.i])} at ${figure.x} ${options.names ? each.x[point.i] : readable(each.x[point.i])}` });
        }
        if (labeled.includes(each) && points.length) labels.push({ name: each.reported ? "reported" : each.name, x: points.at(-1).x + 8, y: points.at(-1).y });
        made.svg.append(group);
      }
      spread(labels, made.area.top + 4, made.area.top + made.area.height);
      for (const label of labels) made.svg.append(node("text", { x: label.x, y: label.y + 4, class: "label" }, short(label.name, Math.max(6, Math.floor((right - 10) / SIGN)))));
      return made;
    },

    points(element, figure, view) {
      const series = coloredLast(view, shownSeries(figure, view));
      const ends = (axis) => finite(series.flatMap((each) => [...each[axis], ...(view.slots.has(each.name) ? [...each[`${axis}_limits`].low, ...each[`${axis}_limits`].high] : [])]));
      const most = element.clientWidth < 500 ? 4 : 7;
      const made = frame(element, figure, numberScale(ends("x"), { most }), numberScale(ends("y"), { most: 6 }), { height: 360 });
      const front = (figure.options.front ?? []).map((name) => series.find((each) => each.name === name)).filter(Boolean);
      if (front.length > 1) made.svg.append(node("path", { class: "front", d: `M${front.map((each) => `${made.toX(each.x[0])} ${made.toY(each.y[0])}`).join("L")}` }));
      const labels = [];
      for (const each of series) {
        const { group, slot } = seriesGroup(view, each.name);
        const [x, y] = [made.toX(each.x[0]), made.toY(each.y[0])];
        if (slot !== undefined) {
          const [left, right] = [each.x_limits.low[0], each.x_limits.high[0]];
          const [low, high] = [each.y_limits.low[0], each.y_limits.high[0]];
          if (left !== null) group.append(node("line", { x1: made.toX(left), x2: made.toX(right), y1: y, y2: y, class: "bar" }));
          if (low !== null) group.append(node("line", { x1: x, x2: x, y1: made.toY(low), y2: made.toY(high), class: "bar" }));
          labels.push({ name: each.name, x, y: y - 8 });
        }
        group.append(marker(slot, x, y, slot === undefined ? 3.5 : 5));
        made.hits.push({ x, y, name: each.name, group, text: `${each.name}: ${figure.x} ${readable(each.x[0])}, ${figure.y} ${readable(each.y[0])}` });
        made.svg.append(group);
      }
      spread(labels, made.area.top + 4, made.area.top + made.area.height - 4);
      for (const { name, x, y } of labels) {
        const atRight = x > made.area.left + 0.6 * made.area.width;
        made.svg.append(node("text", { x: x + (atRight ? -8 : 8), y, class: "label", "text-anchor": atRight ? "end" : "start" }, short(name, 20)));
      }
      return made;
    },

    rates(element, figure) {
      const scale = () => numberScale([], { ends: [0, 1], ticks: [0, 0.25, 0.5, 0.75, 1] });
      const made = frame(element, figure, scale(), scale(), { height: 250 });
      made.svg.append(node("line", { x1: made.toX(0), y1: made.toY(0), x2: made.toX(1), y2: made.toY(1), class: "equal" }));
      for (const each of figure.series) {
        const group = node("g", { class: `problems ${each.name.split(" ")[0]}` });
        each.x.forEach((value, i) => {
          const [x, y] = [made.toX(value), made.toY(each.y[i])];
          group.append(marker({ lost: 1, won: 3 }[each.name] ?? 0, x, y, each.name === "other problems" ? 3 : 4));
          made.hits.push({ x, y, group, text: `${each.text[i]}: ${readable(value)} before, ${readable(each.y[i])} after` });
        });
        made.svg.append(group);
      }
      return made;
    },

    dots(element, figure, view) {
      const series = shownSeries(figure, view);
      const x = numberScale(finite(series.flatMap((each) => each.x)), { most: element.clientWidth < 500 ? 4 : 7 });
      const made = frame(element, figure, x, nameScale(series.map((each) => each.name)), { height: 54 + rowHeight(series) * Math.max(series.length, 4), rows: true });
      for (const each of series) {
        const { group, slot } = seriesGroup(view, each.name);
        each.x.forEach((value, i) => {
          const [at, y] = [made.toX(value), made.toY(each.name)];
          group.append(marker(slot, at, y, 4.5));
          made.hits.push({ x: at, y, name: each.name, group, text: `${each.name}, ${each.text[i]}: ${readable(value)}` });
        });
        made.svg.append(group);
      }
      return made;
    },

    bars(element, figure, view) {
      const methods = figure.series[0].methods.filter((name) => view.isShown(name));
      const seconds = (phase, name) => phase.x[phase.methods.indexOf(name)];
      const totals = methods.map((name) => figure.series.reduce((sum, phase) => sum + seconds(phase, name), 0));
      const x = numberScale([0, ...totals], { most: element.clientWidth < 500 ? 4 : 7, zero: true });
      const made = frame(element, figure, x, nameScale(methods), { height: 54 + rowHeight(methods) * Math.max(methods.length, 3), rows: true });
      for (const name of methods) {
        let start = 0;
        figure.series.forEach((phase, place) => {
          const end = start + seconds(phase, name);
          const [from, to, y] = [made.toX(start), made.toX(end), made.toY(name)];
          made.svg.append(node("rect", { x: from, width: Math.max(to - from, 0), y: y - 5, height: 10, class: `phase f${place % 8}` }));
          made.hits.push({ x: (from + to) / 2, y, text: `${name}, ${phase.name}: ${readable(end - start)} s` });
          start = end;
        });
      }
      return made;
    },
  };

  // A note at the pointer names the nearest point; a click colors its method.

  function watch(element, made, view) {
    const note = document.createElement("div");
    note.className = "tip";
    note.hidden = true;
    element.append(note);
    let near = null;
    const nearest = (event) => {
      const box = element.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      let [best, distance] = [null, NEAR];
      for (const hit of made.hits) {
        const away = Math.hypot(hit.x - x, hit.y - y);
        if (away < distance) [best, distance] = [hit, away];
      }
      return best;
    };
    const show = (hit) => {
      near?.group?.classList.remove("near");
      near = hit;
      near?.group?.classList.add("near");
      note.hidden = !hit;
      if (!hit) return;
      note.textContent = hit.text;
      const left = Math.min(hit.x + 10, element.clientWidth - note.offsetWidth);
      note.style.transform = `translate(${Math.max(left, 0)}px, ${Math.max(hit.y - note.offsetHeight - 8, 0)}px)`;
    };
    made.svg.addEventListener("pointermove", (event) => show(nearest(event)));
    made.svg.addEventListener("pointerleave", () => show(null));
    made.svg.addEventListener("click", (event) => {
      const hit = nearest(event);
      if (hit?.name !== undefined) view.choose(hit.name);
    });
  }

  return (element, figure, view) => {
    const made = kinds[figure.kind](element, figure, view);
    element.replaceChildren(made.svg);
    watch(element, made, view);
  };
})();
