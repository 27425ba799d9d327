"use strict";
const arrivals = new Map();

// Each file of data calls this with its name.
function watch(name, data) {
  arrivals.get(name)(data);
}

(() => {
  const main = document.querySelector("main");
  const own = main.dataset.name;
  const loaded = new Map();
  const MOST = 100;
  const SVG = "http://www.w3.org/2000/svg";

  function load(name) {
    if (!loaded.has(name)) {
      loaded.set(name, new Promise((arrived, failed) => {
        arrivals.set(name, arrived);
        const script = document.head.appendChild(document.createElement("script"));
        script.onerror = () => failed(new Error(`${name}.js is missing`));
        script.src = `${name}.js`;
      }));
    }
    return loaded.get(name);
  }

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function table(headings, rows) {
    const head = element("tr", {}, ...headings.map((text) => element("th", { scope: "col" }, text)));
    const lines = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell ?? ""))));
    return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines)));
  }

  function section(id, title, ...children) {
    return main.appendChild(element("section", { id }, element("h2", {}, title), ...children));
  }

  function list(texts) {
    return element("ul", { class: "troubles" }, ...texts.map((text) => element("li", {}, text)));
  }

  function digits(value) {
    return Number(value.toPrecision(4)).toString();
  }

  function figure(value, unit) {
    if (unit === "cycles") return `${Math.round(value)} cycles`;
    const [scaled, name] = value < 1000 ? [value, "us"] : value < 1e6 ? [value / 1e3, "ms"] : [value / 1e6, "s"];
    return `${digits(scaled)} ${name}`;
  }

  function tiles(page) {
    const facts = { runs: page.runs, cases: page.measured, slower: page.slower, faster: page.faster, failed: Object.keys(page.failed).length };
    const made = Object.entries(facts).map(([name, value]) => element("div", { class: "tile" }, element("dt", {}, name), element("dd", {}, value)));
    return element("dl", { class: "tiles" }, ...made);
  }

  function troubles(page) {
    const failed = Object.entries(page.failed).map(([name, why]) => `${name}, ${why}`);
    const gone = page.gone.length ? [`not measured in the newest run, and in the one before: ${page.gone.join(", ")}`] : [];
    return list([...failed, ...gone, ...page.unsure]);
  }

  function start(index) {
    section("start", "Performance by night", table(["GPU", "newest run", "runs", "cases", "slower", "faster", "failed"], index.pages.map((page) => [
      element("a", { href: `${page.page}.html` }, page.gpu), page.when.slice(0, 16).replace("T", " "),
      page.runs, page.measured, page.slower, page.faster, Object.keys(page.failed).length,
    ])));
    for (const page of index.pages) section(page.page, page.gpu, troubles(page));
  }

  function opener(key, name) {
    return element("a", { href: `#case=${key}`, class: "open" }, name);
  }

  function night(page, at) {
    const [when, commit] = page.nights[at];
    return commit ? `${when}, commit ${commit}` : when;
  }

  function changesOf(page) {
    if (!page.changes.length) return "None that is surely more than noise.";
    return table(["since", "case", "change", "what else changed"], page.changes.map((change) => [
      night(page, change.night), opener(change.key, change.name),
      element("span", { class: change.state }, `${change.size} ${change.state}`), change.beside.join("; "),
    ]));
  }

  // The list of cases: those that changed are in its first file, the others are loaded when one looks for them.
  function cases(page) {
    const text = element("input", { type: "search", id: "text", placeholder: "part of a name" });
    const routine = element("select", { id: "routine" }, ...["", ...page.routines].map((name) => element("option", { value: name }, name || "all")));
    const state = element("select", { id: "state" }, ...["all", "SLOWER", "FASTER", "gone"].map((name) => element("option", { value: name === "all" ? "" : name }, name)));
    const shown = element("p", { id: "shown", role: "status" });
    const place = element("div", { id: "cases" });
    const form = element("form", { id: "filter" }, ...[["name", text], ["routine", routine], ["change", state]].map(([name, input]) => element("label", {}, `${name} `, input)));
    form.addEventListener("submit", (event) => event.preventDefault());
    section("all", "Cases", form, shown, place);

    let asked = 0;
    async function show() {
      const mine = (asked += 1);
      const wanted = text.value.toLowerCase();
      const any = wanted || routine.value;
      const files = Array.from({ length: any ? page.lists : 1 }, (_, nth) => load(`${own}/list-${nth}`));
      const rows = (await Promise.all(files)).flat().filter(([, name, of, , , now]) =>
        name.toLowerCase().includes(wanted) && (!routine.value || of === routine.value) && (!state.value || now === state.value));
      if (mine !== asked) return; // a later question was answered first
      const most = any || state.value ? rows.length : page.count;
      shown.textContent = `${Math.min(MOST, rows.length)} of ${most} cases`;
      place.replaceChildren(table(["case", "routine", "newest time", "change"], rows.slice(0, MOST).map(([key, name, of, us, size, now]) =>
        [opener(key, name), of, figure(us, "time"), size ? element("span", { class: now }, `${size} ${now}`) : ""])));
    }

    // Not at the text's change, which comes with the click on a case: that would replace what is clicked on.
    text.addEventListener("input", show);
    for (const select of [routine, state]) select.addEventListener("change", show);
    return show();
  }

  // One case: its figures night by night, with the levels and the noise around them.
  async function open(page) {
    const key = new URLSearchParams(location.hash.slice(1)).get("case");
    document.querySelector("#case")?.remove();
    if (!key) return;
    let row;
    for (let nth = 0; !row && nth < page.lists; nth += 1) row = (await load(`${own}/list-${nth}`)).find(([one]) => one === key);
    if (!row) return;
    const trend = (await load(`${own}/trends-${row[6]}`))[key];
    const made = element("section", { id: "case" }, element("h2", {}, trend.name), element("figure", {}, chart(page, trend)));
    for (const change of trend.changes) {
      const crept = change.until > change.night ? `, creeping until ${night(page, change.until)}` : "";
      const text = `${change.size} since ${night(page, change.night)}${crept}; detects from ${change.detects}`;
      made.append(element("p", { class: change.state }, text), list(change.beside));
    }
    const facts = Object.entries(trend.facts).filter(([, text]) => text);
    made.append(...facts.flatMap(([name, text]) => [element("h3", {}, name === "again" ? "Run it again" : name), element("pre", {}, text)]));
    document.querySelector("#all").before(made);
    made.querySelector("figure").scrollLeft = 1e4; // where a narrow page shows a part, the newest nights
    made.scrollIntoView();
  }

  function draw(tag, attributes, text, title) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text) made.textContent = text;
    if (title) made.appendChild(draw("title", {}, title));
    return made;
  }

  function chart(page, trend) {
    const [width, height, left, bottom, top] = [960, 320, 80, 58, 18];
    const values = trend.values.map((value) => (value === null ? null : trend.middle * (1 + value * 1e-4)));
    const known = values.filter((value) => value !== null);
    const [low, high] = [Math.min(...known, ...trend.levels.map(([, , level, band]) => level / band)), Math.max(...known, ...trend.levels.map(([, , level, band]) => level * band))];
    const last = Math.max(1, page.nights.length - 1);
    const x = (at) => left + ((width - left - 10) * at) / last;
    const y = (value) => height - bottom - ((height - bottom - top) * (value - low)) / (high - low || 1);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${trend.name}, ${trend.unit} by night` });
    for (let nth = 0; nth <= 4; nth += 1) {
      const value = low + ((high - low) * nth) / 4;
      svg.append(draw("line", { class: "grid", x1: left, x2: width - 10, y1: y(value), y2: y(value) }), draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, figure(value, trend.unit)));
    }
    const ticks = Math.min(8, page.nights.length);
    for (let nth = 0; nth < ticks; nth += 1) {
      const at = Math.round((last * nth) / Math.max(1, ticks - 1));
      const [when, commit] = page.nights[Math.min(at, page.nights.length - 1)];
      const below = { x: x(at), "text-anchor": nth && nth === ticks - 1 ? "end" : "middle" };
      svg.append(draw("text", { ...below, class: "commit", y: height - 34 }, commit.slice(0, 8)), draw("text", { ...below, y: height - 18 }, when.slice(0, 10)));
    }
    for (const [from, to, level, band] of trend.levels) {
      svg.append(draw("rect", { class: "band", x: x(from) - 2, width: x(to) - x(from) + 4, y: y(level * band), height: y(level / band) - y(level * band) }));
      svg.append(draw("line", { class: "level", x1: x(from) - 2, x2: x(to) + 2, y1: y(level), y2: y(level) }));
    }
    for (const [at, value] of values.entries()) {
      if (value !== null) svg.append(draw("circle", { class: "point", cx: x(at), cy: y(value), r: 2 }, "", `${night(page, at)}: ${figure(value, trend.unit)}`));
    }
    for (const change of trend.changes) {
      const title = `${night(page, change.night)}: ${[change.size, ...change.beside].join("; ")}`;
      svg.append(draw("line", { class: "change", x1: x(change.night), x2: x(change.night), y1: top, y2: height - bottom }, "", title));
      svg.append(draw("text", { class: "size", x: x(change.night) + 3, y: top - 5 }, change.size));
    }
    return svg;
  }

  async function gpu(page) {
    section("health", page.gpu, element("p", {}, `Newest run: ${night(page, page.nights.length - 1)}`), tiles(page), troubles(page));
    section("changes", "Changes", changesOf(page));
    await cases(page);
    addEventListener("hashchange", () => open(page));
    await open(page);
    main.dataset.drawn = "yes";
  }

  load(own).then((data) => (data.pages ? start(data) : gpu(data))).catch((error) => main.append(element("p", { class: "warning" }, error.message)));
})();
