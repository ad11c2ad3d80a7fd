"use strict";
// Draws the charts of reports and of the viewer with uPlot. A chart is the JSON of spa_report.charts.Chart.
// Names are inserted through textContent, so that the browser never parses them as HTML.
const Charts = (() => {
  const AXES = { step: "steps", episodes: "episodes, self-play included", tokens: "sampled tokens, self-play included" };
  const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
  const HEIGHT = 260;
  const settings = { axis: "step", smooth: 0 };
  const drawn = new Map(); // box -> [chart, plot]

  const color = (index) => getComputedStyle(document.documentElement).getPropertyValue("--c" + (index % 8)).trim();
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const dash = (index) => DASHES[(index + Math.floor(index / 8)) % 4];
  const faint = (stroke, alpha) => stroke + Math.round(255 * alpha).toString(16).padStart(2, "0");

  function number(value, percent) {
    if (value === null || value === undefined) return "–";
    if (percent) return `${Number((100 * value).toPrecision(3))} %`;
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
    return value.toLocaleString("en", { maximumSignificantDigits: 4 });
  }

  function element(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // Exponential moving average with a corrected start, as in TensorBoard.
  function smoothed(values, weight) {
    let last = 0, count = 0;
    return values.map((value) => {
      if (value === null) return null;
      last = weight * last + (1 - weight) * value;
      count += 1;
      return last / (1 - weight ** count);
    });
  }

  // uPlot needs one list of x for all lines: the union, with null where a line has no point.
  function table(chart, axis) {
    const lines = chart.series.map((line) => {
      const at = axis === "step" ? line.points.map(([x]) => x) : line[axis];
      return new Map(line.points.map(([, y], index) => [at[index], [y, ...(line.bands[index] || [])]]));
    });
    const xs = [...new Set(lines.flatMap((line) => [...line.keys()]))].sort((a, b) => a - b);
    const column = (line, part) => xs.map((x) => (line.has(x) ? line.get(x)[part] ?? null : null));
    return [xs, lines.map((line) => [0, 1, 2].map((part) => column(line, part)))];
  }

  function legend(box, chart, plot, first, rows) {
    const list = element("ul", "legend");
    const values = chart.series.map((line, index) => {
      const item = element("li");
      const button = element("button", "legend-item");
      button.type = "button";
      button.title = "Show or hide this line";
      const value = element("span", "legend-value");
      const mark = element("span", `key k${line.color % 8} d${DASHES.indexOf(dash(line.color))}`);
      button.append(mark, element("bdi", "", line.label), value);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const show = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(show));
        first[index].forEach((number) => plot().setSeries(number, { show }));
      });
      item.append(button);
      list.append(item);
      return value;
    });
    const where = element("li", "soft legend-where");
    list.append(where);
    box.append(list);
    return (index) => {
      const hover = index !== null && index !== undefined;
      chart.series.forEach((line, at) => {
        const [ys, lows, highs] = rows[at];
        const last = hover ? index : ys.findLastIndex((value) => value !== null);
        const band = hover && lows[last] !== null ? ` [${number(lows[last], chart.percent)}, ${number(highs[last], chart.percent)}]` : "";
        values[at].textContent = number(ys[last] ?? null, chart.percent) + band;
      });
      where.textContent = hover ? `at ${number(plot().data[0][index])}` : "last value" + (chart.band ? `; shaded: ${chart.band}` : "");
    };
  }

  function draw(box, chart) {
    remove(box);
    const known = (line) => settings.axis === "step" || line[settings.axis].length === line.points.length;
    const axis = chart.series.every(known) ? settings.axis : "step";
    const [xs, rows] = table(chart, axis);
    const data = [xs], series = [{}], bands = [], first = [];
    chart.series.forEach((line, index) => {
      const [ys, lows, highs] = rows[index];
      const stroke = () => color(line.color), mine = [];
      const add = (values, options) => { mine.push(data.length); data.push(values); series.push({ spanGaps: true, points: { show: false }, ...options }); };
      if (line.bands.length) {
        add(highs, { stroke: "transparent" });
        add(lows, { stroke: "transparent" });
        bands.push({ series: [mine[0], mine[1]], fill: () => faint(color(line.color), 0.15) });
      }
      if (settings.smooth) add(ys, { stroke: () => faint(color(line.color), 0.25), width: 1 });
      const count = line.points.length;
      add(settings.smooth ? smoothed(ys, settings.smooth) : ys, {
        stroke, width: 2, dash: dash(line.color), points: { show: count <= 24, size: 6, fill: stroke, stroke },
      });
      first.push(mine);
    });
    let plot = null;
    const say = legend(box, chart, () => plot, first, rows);
    // The axis ends where the run ends. Without a range, one point would get an axis to 100.
    const end = Math.max(axis === "step" ? chart.end : 0, ...xs, xs.length > 1 ? 0 : 1);
    const wide = () => Math.max(200, box.clientWidth);
    const ink = { stroke: () => css("--soft"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const whole = axis === "step" ? { incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1e3, 2e3, 2500, 5e3, 1e4, 2e4, 5e4, 1e5] } : {};
    const options = {
      width: wide(), height: HEIGHT, data, series, bands,
      legend: { show: false },
      scales: { x: { time: false, range: () => [0, end] }, y: chart.percent ? { range: [0, 1.02] } : {} },
      axes: [
        { ...ink, ...whole, label: axis === "step" ? chart.x_label : AXES[axis], labelFont: ink.font, labelSize: 18, size: 28, values: (_, ticks) => ticks.map((tick) => number(tick)) },
        { ...ink, size: 58, values: (_, ticks) => ticks.map((tick) => number(tick, chart.percent)) },
      ],
      cursor: { y: false, sync: { key: axis === "step" ? chart.x_label : axis }, points: { size: 8 } },
      hooks: { setCursor: [(self) => say(self.cursor.idx)] },
    };
    const ends = chart.series.map((line, index) => `${line.label}: ${number(rows[index][0].find((y) => y !== null) ?? null, chart.percent)} to ${number(line.points.at(-1)[1], chart.percent)}`);
    const canvas = element("div", "plot-canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${chart.title}. ${ends.join("; ")}`);
    box.prepend(canvas);
    plot = new uPlot(options, data, canvas);
    say(null);
    drawn.set(box, [chart, plot]);
    resize.observe(box);
  }

  function remove(box) {
    const old = drawn.get(box);
    if (old) old[1].destroy();
    drawn.delete(box);
    resize.unobserve(box);
    box.replaceChildren();
  }

  const resize = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const plot = drawn.get(target)?.[1];
      const width = Math.max(200, target.clientWidth);
      if (plot && plot.width !== width) plot.setSize({ width, height: HEIGHT });
    }
  });

  function redraw() {
    for (const [box, [chart]] of [...drawn]) draw(box, chart);
  }
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", () => { for (const [, plot] of drawn.values()) plot.redraw(false); });
  }

  // All charts of a page share the unit of the x axis and the smoothing of the lines.
  function controls() {
    const axis = element("select");
    for (const [value, text] of Object.entries(AXES)) {
      const item = element("option", "", text.split(",")[0]);
      item.value = value;
      item.selected = value === settings.axis;
      axis.append(item);
    }
    axis.name = "axis";
    axis.addEventListener("change", () => { settings.axis = axis.value; redraw(); });
    const smooth = element("input");
    Object.assign(smooth, { type: "range", name: "smooth", min: 0, max: 0.95, step: 0.05, value: settings.smooth });
    smooth.addEventListener("input", () => { settings.smooth = Number(smooth.value); redraw(); });
    const form = element("form", "controls");
    const axisLabel = element("label", "", "x axis ");
    axisLabel.append(axis);
    const smoothLabel = element("label", "", "Smoothing ");
    smoothLabel.append(smooth);
    form.append(axisLabel, smoothLabel);
    return form;
  }

  // In a report, the attribute `data-chart` of each chart's element has the chart's data.
  for (const box of document.querySelectorAll("[data-chart]")) draw(box, JSON.parse(box.dataset.chart));
  for (const place of document.querySelectorAll("[data-controls]")) place.replaceWith(controls());

  return { draw, remove, controls, number };
})();
