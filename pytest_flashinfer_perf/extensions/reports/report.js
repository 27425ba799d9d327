"use strict";
(() => {
  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const data = JSON.parse(find("#data").textContent);

  function element(tag, text = "", attributes = {}) {
    const made = document.createElement(tag);
    made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  // Plots take the page's colours, so that there is one list of them.
  function colour(name) {
    const probe = document.body.appendChild(element("span", "", { style: `color: var(--${name})` }));
    const seen = getComputedStyle(probe).color;
    probe.remove();
    return seen;
  }

  function config() {
    const [ink, quiet, line, accent, bad] = ["ink", "quiet", "line", "accent", "bad"].map(colour);
    const words = { labelColor: quiet, titleColor: quiet, labelFontSize: 11, titleFontSize: 12, titleFontWeight: 500 };
    return {
      background: "transparent",
      font: getComputedStyle(document.body).fontFamily,
      view: { stroke: line },
      axis: { ...words, gridColor: line, domainColor: line, tickColor: line },
      legend: { ...words, orient: "top", columns: Math.max(2, Math.floor(innerWidth / 150)), symbolSize: 70 },
      point: { color: accent },
      range: { category: data.palette },
      style: {
        roof: { color: quiet, strokeWidth: 1.5 },
        label: { color: ink, fontSize: 11 },
        sample: { color: accent, opacity: 0.8 },
        median: { color: bad, strokeWidth: 2 },
      },
    };
  }

  // A plot in its place; `ast` so that the page's policy need not allow code from strings.
  async function plot(place, spec, datasets) {
    const whole = { width: "container", autosize: { type: "fit-x", contains: "padding" }, config: config(), datasets, ...spec };
    const { view } = await vegaEmbed(place, whole, { actions: false, ast: true, renderer: "svg" });
    place.dataset.drawn = "yes";
    return view;
  }

  const rooflines = [];

  async function drawPage() {
    rooflines.length = 0;
    for (const place of all('[data-chart="roofline"]')) {
      const { spec, roofs, points } = data.figures[place.dataset.place];
      const view = await plot(place, spec, { roofs, points: points.map(shownAs) });
      view.addEventListener("click", (_, item) => item?.datum?.id !== undefined && openCase(item.datum.id));
      rooflines.push(view);
    }
    showRoutine();
  }

  // The page has each fact once: by name a value for each case, or a single one for all.
  function at(id, columns) {
    const known = Object.entries(columns).map(([name, values]) => [name, values[values.length > 1 ? id : 0]]);
    return Object.fromEntries(known.filter(([, value]) => value !== null));
  }

  function shownAs(point) {
    const { case: name, median, status, repro } = at(point.id, data.cases);
    return { ...point, case: name, median, status, again: repro ?? `pytest '${name}'` };
  }

  function showRoutine() {
    const routine = find("#roofline-routine")?.value ?? "";
    for (const view of rooflines) view.signal("routine", routine).runAsync();
  }

  // Theme: the system's until it is chosen.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = find("#theme");

  function isDark() {
    return (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  }

  function themed() {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
    return drawPage();
  }

  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    themed();
  });
  dark.addEventListener("change", themed);

  // Tables: a heading sorts, what has no value comes last either way.
  function sortBy(heading) {
    const table = heading.closest("table");
    const column = [...heading.parentElement.children].indexOf(heading);
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of all("th[aria-sort]", table)) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = all("tbody tr", table).map((row) => [valueOf(row.children[column]), row]);
    rows.sort(([a], [b]) => compared(a, b, down ? -1 : 1));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function valueOf(cell) {
    if (cell.dataset.value === undefined) return cell.textContent.trim().toLowerCase() || null;
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  }

  function compared(a, b, direction) {
    if (a === null || b === null) return (a === null) - (b === null);
    return direction * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  }

  for (const button of all(".sortable th[aria-sort] button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }

  const form = find("#filter");
  const table = find("#table");

  function filter() {
    const { words, routine, backend, status } = Object.fromEntries(new FormData(form));
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const facts = row.dataset;
      const text = row.textContent.toLowerCase();
      row.hidden =
        !wanted.every((word) => text.includes(word)) ||
        (routine !== "" && facts.routine !== routine) ||
        (backend !== "" && facts.backend !== backend) ||
        (status !== "" && !status.split(" ").includes(facts.status));
      shown += !row.hidden;
    }
    find("#shown").textContent = `${shown} of ${table.tBodies[0].rows.length} cases`;
  }

  form.addEventListener("input", filter);
  form.addEventListener("change", filter);
  form.addEventListener("submit", (event) => event.preventDefault());

  // Backends side by side: how many times as fast as the one they are held against.
  function compare(section) {
    const against = find(".against", section).value;
    for (const row of all(".compare tbody tr", section)) {
      const cells = all("[data-seconds]", row);
      const base = against ? cells.find((cell) => cell.dataset.backend === against) : nearest(all(".best", row));
      for (const cell of cells) {
        const speedup = base ? base.dataset.seconds / cell.dataset.seconds : null;
        find(".factor", cell).textContent = speedup === null ? "" : `${speedup.toFixed(2)}×`;
        heat(cell, speedup);
      }
    }
  }

  function nearest(cells) {
    return cells.reduce((least, cell) => (least && +least.dataset.seconds <= +cell.dataset.seconds ? least : cell), null);
  }

  // Full colour at four times as fast or as slow.
  function toned(speedup) {
    return speedup === null ? 0 : Math.max(-1, Math.min(1, Math.log2(speedup) / 2));
  }

  function heat(cell, speedup) {
    const share = toned(speedup);
    cell.style.setProperty("--toward", share < 0 ? "var(--bad)" : "var(--good)");
    cell.style.setProperty("--heat", `${(45 * Math.abs(share)).toFixed(0)}%`);
  }

  for (const section of all(".comparison")) {
    find(".against", section).addEventListener("change", () => compare(section));
    compare(section);
  }

  // One case: what it is, how to run it again, its samples and clocks.
  const dialog = find("#details");

  async function openCase(id) {
    const one = at(id, data.cases);
    find("#details-title").textContent = one.case;
    find("#details-answer").textContent = one.reason ?? `${one.backend}: median ${one.median}, ${one.status}`;
    find("#details-repro").replaceChildren(...[one.repro, one.upstream].filter(Boolean).map(command));
    find("#details-facts").replaceChildren(...Object.entries(at(id, data.facts)).map(fact));
    find("#details-kernels").replaceChildren(...kernels(one));
    const charts = find("#details-charts");
    charts.replaceChildren();
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    await drawCase(one, charts);
  }

  async function drawCase(one, charts) {
    const [times, counted] = [one.samples ?? [], one.cycles ?? []];
    const ghz = one.ghz ?? [];
    const samples = times.map((us, call) => ({ us, call }));
    const clocks = counted.map((cycles, call) => ({ cycles, ghz: ghz[call], call }));
    const wanted = [
      ["histogram", "Times of the calls", { samples }, samples],
      ["order", "In the order in which they were made", { samples }, samples],
      ["cycles", "SM cycles of back-to-back calls", { clocks }, clocks],
      ["clock", "SM clock during those", { clocks }, clocks],
    ];
    const seen = wanted.filter(([, , , needed]) => needed.length > 0);
    // All places first: how wide each is depends on how many there are.
    const places = seen.map(([, title]) => element("div", "", { class: "chart", role: "img", "aria-label": `${title} of ${one.case}` }));
    for (const [index, [, title]] of seen.entries()) {
      const holder = charts.appendChild(element("div"));
      holder.append(element("h3", title), places[index]);
    }
    await Promise.all(seen.map(([name, , datasets], index) => plot(places[index], data.specs[name], datasets)));
    if (one.median && samples.length === 0) charts.append(element("p", "This file was saved without samples."));
    if (one.median && clocks.length === 0) charts.append(element("p", "No clocks were read: there is no clock pass on a CPU."));
  }

  function command(line) {
    const holder = element("div", "", { class: "command" });
    const text = element("pre", line);
    const copy = element("button", "Copy", { type: "button" });
    copy.addEventListener("click", async () => {
      getSelection().selectAllChildren(text);
      await navigator.clipboard?.writeText(line).then(() => { copy.textContent = "Copied"; }, () => {});
    });
    holder.append(text, copy);
    return holder;
  }

  function fact([name, value]) {
    const line = element("div");
    line.append(element("dt", name), element("dd", value));
    return line;
  }

  function kernels(one) {
    if (!one.kernels?.length) return [];
    return [element("h3", "Kernels of a call"), ...one.kernels.map((index) => element("pre", data.kernels[index]))];
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".open");
    if (button) openCase(button.dataset.case);
    if (event.target === dialog) dialog.close();
  });

  // Tables that go on beyond an edge say so.
  function showMore(area) {
    const right = area.scrollLeft + area.clientWidth < area.scrollWidth - 1;
    const below = area.scrollTop + area.clientHeight < area.scrollHeight - 1;
    area.dataset.more = [right && "right", below && "below"].filter(Boolean).join(" ");
    area.toggleAttribute("data-wide", area.clientWidth < area.scrollWidth);
  }

  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => showMore(target.closest(".scroll"))));
  for (const area of all(".scroll")) {
    area.addEventListener("scroll", () => showMore(area), { passive: true });
    resized.observe(area);
    resized.observe(area.firstElementChild);
  }

  find("#roofline-routine")?.addEventListener("change", showRoutine);
  filter();
  themed();
})();
