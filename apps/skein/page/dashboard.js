// SPDX-License-Identifier: Apache-2.0
// The page of a head. It reads /api/ and draws; it asks again when /api/v1/events says that
// something is new, at most once a second and less often the more it was told: what a viewer costs
// is bounded. Every text of a cluster goes in as text, never as markup.
"use strict";
(() => {
    const $ = (id) => document.getElementById(id);
    const most_lines = 5000, poll_ms = 5000, least_ms = 1000;
    const bytes_per_ms = 12, most_credit = 200000;   // of the answers to this page: 12 KB/s over time, and what a first look takes
    let taken = 0, credit = most_credit;             // bytes of answers since the last refresh began; that may come at once
    let told = { changes: -1, samples: -1 };   // what the last event has said

    // --- elements ------------------------------------------------------------------------------
    // Signs that turn the direction of what follows would show a name as another one.
    const visible = (text) => String(text).replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f]/g, "\ufffd");
    function element(name, options, ...children) {
        const e = document.createElement(name);
        for (const [key, value] of Object.entries(options || {})) {
            if (value === undefined || value === null || value === false) continue;
            if (key === "class") e.className = value;
            else if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
            else if (key === "text") e.textContent = visible(value);
            else e.setAttribute(key, value === true ? "" : visible(value));
        }
        for (const c of children.flat()) if (c !== null && c !== undefined) e.append(c instanceof Node ? c : visible(c));
        return e;
    }
    function shape(name, options, text) {
        const e = document.createElementNS("http://www.w3.org/2000/svg", name);
        for (const [key, value] of Object.entries(options)) e.setAttribute(key, value);
        if (text !== undefined) e.textContent = text;
        return e;
    }
    const empty = (text) => element("p", { class: "empty", text });
    const heading = (text) => element("h2", { text });

    // --- words ---------------------------------------------------------------------------------
    const is_number = (x) => typeof x === "number" && Number.isFinite(x);
    // JSON has no words for what is not finite: these stand in the place of a number.
    const no_numbers = new Map([["NaN", NaN], ["Infinity", Infinity], ["-Infinity", -Infinity]]);
    const value_of = (x) => (typeof x === "number" ? x : no_numbers.has(x) ? no_numbers.get(x) : null);
    const is_broken = (x) => no_numbers.has(x) || (typeof x === "number" && !Number.isFinite(x));
    function number(x) {
        if (is_broken(x)) return Number.isNaN(value_of(x)) ? "NaN" : value_of(x) < 0 ? "-inf" : "inf";
        if (!is_number(x)) return x === undefined || x === null ? "" : String(x);
        const size = Math.abs(x);
        if (x === 0) return "0";
        const short = () => x.toExponential(2).replace(/\.?0*e\+?/, "e");
        if (size >= 1e6) return short();
        if (Number.isInteger(x)) return x.toLocaleString("en-US");
        if (size >= 1000) return Math.round(x).toLocaleString("en-US");
        if (size < 1e-3) return short();
        return String(Number(x.toPrecision(4)));
    }
    function bytes(x) {
        if (!is_number(x)) return "";
        const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let i = 0;
        for (; Math.abs(x) >= 1024 && i < units.length - 1; ++i) x /= 1024;
        return `${i === 0 ? x : x.toFixed(x < 10 ? 1 : 0)} ${units[i]}`;
    }
    function length_of(seconds) {
        if (!is_number(seconds) || seconds < 0) return "";
        const s = Math.floor(seconds);
        if (s < 60) return `${s} s`;
        if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
        if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
        return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
    }
    const short_moment = (unix_s) => {   // of today the time alone
        if (!is_number(unix_s) || unix_s <= 0) return "";
        const at = new Date(unix_s * 1000), time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
        return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString()} ${time}`;
    };
    const moment = (unix_s) => (is_number(unix_s) && unix_s > 0 ? new Date(unix_s * 1000).toLocaleString() : "");
    function state(word) {
        const w = String(word || "unknown");
        const kind = /^(running|succeeded|ready|alive|idle)$/i.test(w) ? "good" : /^(failed|dead|missing|lost)$/i.test(w) ? "bad" :
            /^(pending|starting|retrying|rescaling|suspect|draining|resting|joining)$/i.test(w) ? "warn" : "";
        return element("span", { class: `state ${kind}`, text: w });
    }
    function use(used, total, say, text) {
        if (!is_number(total) || total <= 0) return "";
        const part = Math.min(1, Math.max(0, (used || 0) / total));
        const bar = element("i");
        bar.style.width = `${part * 100}%`;
        return element("div", { class: "use" }, bar, element("span", { text: text || `${say(used || 0)} / ${say(total)}` }));
    }
    const tile = (label, value, note, css) =>
        element("div", { class: "tile" }, element("span", { text: label }), element("b", { class: css }, value === "" ? "–" : value), note ? element("span", { class: "note", text: note }) : null);

    // Columns that no row has are left out: [title, row => text or element, options]. A click on a
    // title sorts, by what `by` gives or by the text; `find` has a box that leaves rows out, and is
    // told what stands in it.
    const views = new Map();   // by the name of a table: what a person has set
    const view_of = (name) => views.get(name) || views.set(name, { title: "", down: false, find: "" }).get(name);
    function compare(a, b, down) {
        const none = (x) => x === "" || x === null || x === undefined || Number.isNaN(x);
        if (none(a) || none(b)) return none(a) - none(b);   // at the end, whichever way
        const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
        return down ? -order : order;
    }
    function table(name, columns, rows, find) {
        const view = view_of(name), cells = rows.map((row) => columns.map((c) => c[1](row)));
        const there = columns.map((c, i) => (c[2] && c[2].always) || cells.some((row) => row[i] !== "" && row[i] !== null && row[i] !== undefined));
        const kept = (list) => list.filter((_, i) => there[i]);
        const css = (c) => (c[2] && c[2].class) || "", text_of = (cell) => (cell instanceof Node ? cell.textContent : String(cell ?? ""));
        const head = element("tr"), body = element("tbody");
        const lines = rows.map((row, r) => {
            const line = element("tr", {}, kept(cells[r].map((cell, i) => element("td", { class: css(columns[i]) }, cell instanceof Node ? cell : String(cell ?? "")))));
            return { line, row, cells: cells[r], text: visible(cells[r].map(text_of).join(" ")).toLowerCase() };
        });
        function draw() {
            const by = columns.findIndex((c) => c[0] === view.title), wanted = view.find.toLowerCase();
            const key = (l) => (columns[by][2] && columns[by][2].by ? columns[by][2].by(l.row) : text_of(l.cells[by]));
            const shown = lines.filter((l) => l.text.includes(wanted));
            if (by >= 0) {
                const keys = new Map(shown.map((l) => [l, key(l)]));
                shown.sort((a, b) => compare(keys.get(a), keys.get(b), view.down));
            }
            head.replaceChildren(...kept(columns.map((c) => {
                const is_by = c[0] === view.title;
                return element("th", { class: css(c), scope: "col", "aria-sort": is_by ? (view.down ? "descending" : "ascending") : null },
                    element("button", { type: "button", class: "sort", "data-keep": `${name}/${c[0]}`, text: `${c[0]}${is_by ? (view.down ? " ▼" : " ▲") : ""}`,
                        onclick: () => { // up, down, as it came
                            if (!is_by) Object.assign(view, { title: c[0], down: false });
                            else if (!view.down) view.down = true;
                            else view.title = "";
                            draw();
                        } }));
            })));
            body.replaceChildren(...(shown.length ? shown.map((l) => l.line) : [element("tr", {}, element("td", { colspan: String(kept(columns).length), text: "Nothing is found." }))]));
        }
        draw();
        const box = element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), body));
        if (!find) return box;
        const input = element("input", { type: "search", placeholder: "find", "data-keep": `${name}/find`, value: view.find, "aria-label": `Find in ${name}`,
            oninput: (e) => { view.find = e.target.value; draw(); find(view.find); } });
        return [element("div", { class: "tools" }, input), box];
    }

    // --- charts --------------------------------------------------------------------------------
    // About `count` round numbers from low to high.
    function ticks(low, high, count) {
        const span = high - low || Math.abs(high) || 1;
        const raw = span / Math.max(1, count), power = Math.pow(10, Math.floor(Math.log10(raw)));
        const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw) || raw;
        const out = [];
        for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) out.push(Math.abs(t) < step * 1e-9 ? 0 : t);
        return out;
    }
    // Of more points than there are pixels the lowest and the highest of each pixel.
    function thin(points, pixels) {
        if (points.length <= pixels * 2) return points;
        const out = [], each = points.length / pixels;
        for (let i = 0; i < pixels; ++i) {
            const part = points.slice(Math.floor(i * each), Math.floor((i + 1) * each));
            if (!part.length) continue;
            let low = part[0], high = part[0];
            for (const p of part) {
                if (p[1] < low[1]) low = p;
                if (p[1] > high[1]) high = p;
            }
            out.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
        }
        return out;
    }
    // A training that goes back to its checkpoint begins a line of its own; so does what comes after a gap.
    function lines_of(points, gap) {
        const out = [[]];
        for (const p of points) {
            const line = out[out.length - 1], before = line[line.length - 1];
            if (before && (p[0] <= before[0] || p[0] - before[0] > gap)) out.push([p]);
            else line.push(p);
        }
        return out;
    }
    // The finite parts between what is not finite.
    function parts_of(points) {
        const out = [[]];
        for (const p of points) {
            if (is_number(p[1])) out[out.length - 1].push(p);
            else if (out[out.length - 1].length) out.push([]);
        }
        return out.filter((part) => part.length);
    }
    function byte_ticks(low, high, count) {
        const unit = Math.pow(1024, Math.max(0, Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024))));
        return ticks(low / unit, high / unit, count).map((t) => t * unit);
    }
    // Round times between two moments, in seconds since 1970.
    function time_ticks(low, high, count) {
        const raw = (high - low) / Math.max(1, count);
        const step = [1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600].find((s) => s >= raw) || 43200;
        const shift = new Date(low * 1000).getTimezoneOffset() * 60, out = [];
        for (let t = Math.ceil((low - shift) / step) * step + shift; t <= high; t += step) out.push(t);
        return out;
    }
    const clock = (t, seconds) => new Date(t * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined, hour12: false });
    // A line without axes, from 0 to `top`, over the last `seconds`; several lines in one.
    function spark(lines, top, seconds) {
        const W = 110, H = 24, all = lines.flat(), last = Math.max(...all.map((p) => p[0]));
        const high = top || Math.max(1e-9, ...all.map((p) => p[1])) * 1.1;
        const svg = shape("svg", { class: "spark", viewBox: `0 0 ${W} ${H}`, "aria-hidden": "true" });
        lines.forEach((line, i) => {
            const d = lines_of(line.filter((p) => p[0] > last - seconds), 60).map((part) =>
                part.map((p, k) => `${k ? "L" : "M"}${(W - ((last - p[0]) / seconds) * W).toFixed(1)} ${(H - 1 - Math.min(1, p[1] / high) * (H - 2)).toFixed(1)}`).join("")).join("");
            svg.append(shape("path", { class: `curve c${i}`, d }));
        });
        return svg;
    }
    function chart(title, points, options) {
        const { x_name = "step", say = number, marks = [], x_say = number, x_ticks = ticks, tick_say = x_say, y_ticks = ticks, from = null, to = null, least = -Infinity, gap = Infinity } = options || {};
        // What is no finite number has no place on the axis: a mark at its step, and the line has a gap.
        const told = points.map((p) => [p[0], value_of(p[1])]).filter((p) => is_number(p[0]) && p[1] !== null);
        const all = told.filter((p) => is_number(p[1])), broken = told.filter((p) => !is_number(p[1]));
        const last = told[told.length - 1], tell = (y) => (is_number(y) ? say(y) : number(y));
        const read = element("span", { class: last && is_broken(last[1]) ? "bad" : null, text: last ? tell(last[1]) : "" });
        const box = element("figure", { class: "chart", role: "img", "aria-label": last ? `${title}, ${all.length} points${broken.length ? ` and ${broken.length} that are not finite` : ""}, last ${tell(last[1])} at ${x_name} ${x_say(last[0])}` : `${title}, no data` },
            element("h3", {}, title, read));
        box.style.margin = "0";
        if (!all.length && last) {
            box.append(element("p", { class: "empty bad", text: `no finite number in ${number(broken.length)} rows: ${tell(last[1])} since ${x_name} ${x_say(broken[0][0])}` }));
            return box;
        }
        if (!last) {
            box.append(element("p", { class: "empty", text: "no data yet" }));
            return box;
        }
        const W = 480, H = 210, left = 62, right = 20, top = 10, bottom = 34;
        let x0 = all[0][0], x1 = x0, y0 = all[0][1], y1 = y0;
        for (const [x] of broken) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); }
        for (const [x, y] of all) {
            x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
        }
        if (x0 === x1) { x0 -= 1; x1 += 1; }
        const room = y1 === y0 ? Math.abs(y1) * 0.1 || 1 : (y1 - y0) * 0.06;
        const floor = y0 >= 0 && y0 - room < 0 ? 0 : y0 - room;
        y0 = from ?? floor; y1 = to ?? Math.max(y1 + room, least);
        const px = (x) => left + ((x - x0) / (x1 - x0)) * (W - left - right);
        const py = (y) => H - bottom - ((y - y0) / (y1 - y0)) * (H - top - bottom);
        const svg = shape("svg", { class: "plot", viewBox: `0 0 ${W} ${H}`, "aria-hidden": "true" });
        for (const t of y_ticks(y0, y1, 4)) {
            svg.append(shape("line", { class: "grid", x1: left, x2: W - right, y1: py(t), y2: py(t) }),
                shape("text", { x: left - 6, y: py(t) + 4, "text-anchor": "end" }, say(t)));
        }
        for (const t of x_ticks(x0, x1, 5)) {
            svg.append(shape("line", { class: "axis", x1: px(t), x2: px(t), y1: H - bottom, y2: H - bottom + 4 }),
                shape("text", { x: Math.min(px(t), W - 2), y: H - bottom + 16, "text-anchor": px(t) > W - 30 ? "end" : "middle" }, tick_say(t)));
        }
        svg.append(shape("line", { class: "axis", x1: left, x2: left, y1: top, y2: H - bottom }),
            shape("line", { class: "axis", x1: left, x2: W - right, y1: H - bottom, y2: H - bottom }),
            shape("text", { x: (left + W - right) / 2, y: H - 3, "text-anchor": "middle" }, x_name));
        for (const m of marks) if (m >= x0 && m <= x1) svg.append(shape("line", { class: "mark", x1: px(m), x2: px(m), y1: top, y2: H - bottom }));
        if (all.length === 1) svg.append(shape("circle", { class: "point", cx: px(all[0][0]), cy: py(all[0][1]), r: 3 }));
        else svg.append(shape("path", { class: "curve", d: parts_of(told).flatMap((part) => lines_of(part, gap)).map((line) => thin(line, W).map((p, i) => `${i ? "L" : "M"}${px(p[0]).toFixed(1)} ${py(p[1]).toFixed(1)}`).join("")).join("") }));
        // Crosses: NaN at the bottom, the infinite at their end; as many as can be told apart.
        let before = -Infinity;
        for (const [x, y] of broken) {
            const at = px(x), high = y === Infinity ? top + 5 : H - bottom - 5;
            if (at - before < 6 && at >= before) continue;
            before = at;
            svg.append(shape("path", { class: "broken", d: `M${(at - 4).toFixed(1)} ${high - 4}l8 8m0 -8l-8 8` }));
        }
        if (broken.length) svg.append(shape("text", { class: "broken-word", x: Math.min(px(broken[0][0]), W - right - 4), y: top + (broken[0][1] === Infinity ? 22 : 10), "text-anchor": px(broken[0][0]) > W / 2 ? "end" : "start" }, `${number(broken[0][1])} from ${x_name} ${x_say(broken[0][0])}`));
        const cross = shape("line", { class: "cross", y1: top, y2: H - bottom, visibility: "hidden" });
        svg.append(cross);
        svg.addEventListener("pointermove", (event) => {
            const at = svg.getBoundingClientRect(), x = x0 + (((event.clientX - at.left) / at.width) * W - left) / (W - left - right) * (x1 - x0);
            let near = told[0];
            for (const p of told) if (Math.abs(p[0] - x) < Math.abs(near[0] - x)) near = p;
            cross.setAttribute("x1", px(near[0])); cross.setAttribute("x2", px(near[0])); cross.setAttribute("visibility", "visible");
            read.textContent = `${x_name} ${x_say(near[0])}: ${tell(near[1])}`;
        });
        svg.addEventListener("pointerleave", () => {
            cross.setAttribute("visibility", "hidden");
            read.textContent = tell(last[1]);
        });
        box.append(svg);
        return box;
    }

    // --- the head's answers --------------------------------------------------------------------
    class refusal extends Error {
        constructor(status, told) {
            super(told.message || `the head answered ${status}`);
            this.status = status;
            this.hint = told.hint || told.cause || "";
        }
    }
    async function ask(path, method) {
        let answer;
        try {
            answer = await fetch(path, { cache: "no-store", method: method || "GET" });
        } catch (e) {
            throw new refusal(0, { message: "the head does not answer", hint: "it may have ended; the page tries again" });
        }
        const text = await answer.text();
        taken += text.length + 300;   // with its headers
        if (!answer.ok) {
            let told = {};
            try { told = JSON.parse(text); } catch (e) { /* no answer of ours */ }
            throw new refusal(answer.status, told);
        }
        return JSON.parse(text);
    }
    // A part that this head does not have is empty, not a fault of the page.
    async function ask_if_there(path) {
        try {
            return await ask(path);
        } catch (e) {
            if (e.status === 404 || e.status === 501) return null;
            throw e;
        }
    }
    const list = (told, name) => (Array.isArray(told) ? told : (told && (told[name] || told.items)) || []);
    const job_id = (j) => j.id || j.job_id || j.submission_id || "";
    const job_state = (j) => j.state || j.status || "";
    const path_of = (...parts) => parts.map(encodeURIComponent).join("/");

    // --- pages ---------------------------------------------------------------------------------
    const job_link = (id) => element("a", { href: `#/job/${encodeURIComponent(id)}`, text: id });
    function job_columns() {
        const now = Date.now() / 1000;
        return [
            ["Job", (j) => job_link(job_id(j)), { always: true }],
            ["State", (j) => state(job_state(j)), { always: true }],
            ["Why", (j) => j.reason || j.message || "", { class: "wide" }],
            ["Node", (j) => (j.node ? node_link(j.node) : "")],
            ["Attempt", (j) => number(j.attempt || ""), { class: "number", by: (j) => j.attempt }],
            ["For", (j) => (is_number(j.started) ? length_of((j.ended || now) - j.started) : ""), { class: "number", by: (j) => (is_number(j.started) ? (j.ended || now) - j.started : "") }],
            ["Submitted", (j) => short_moment(j.submitted), { by: (j) => j.submitted }],
            ["By", (j) => j.submitted_by || ""],
            ["Command", (j) => element("code", { title: j.entrypoint || j.command || "", text: j.entrypoint || j.command || "" }), { class: "wide" }]];
    }
    // One that cannot start anything gets nothing for a while, and says why.
    const node_state = (n) => (n.rests_s ? element("span", { title: n.rests_for }, state(n.state), element("span", { class: "note", text: ` ${length_of(n.rests_s)}: ${n.rests_for}` })) : state(n.state));
    function node_columns() {
        const of = (n, key) => (n.resources || {})[key], used = (n, key) => (n.used || {})[key], load = (n) => n.load || {};
        return [
            ["Node", (n) => (n.load ? node_link(n.name) : n.name || n.id || ""), { always: true, class: "name" }],
            ["State", node_state, { always: true }],
            ["CPUs given", (n) => (is_there(n) ? use(used(n, "cpu"), of(n, "cpu"), number) : ""), { by: (n) => used(n, "cpu") }],
            ["GPUs given", (n) => (is_there(n) ? use(used(n, "gpu"), of(n, "gpu"), number) : ""), { by: (n) => used(n, "gpu") }],
            ["CPU", (n) => (is_number(load(n).cpu) ? use(load(n).cpu, 1, null, `${Math.round(load(n).cpu * 100)} %`) : ""), { by: (n) => load(n).cpu }],
            ["Memory", (n) => use(load(n).memory_used, load(n).memory_total, bytes), { by: (n) => load(n).memory_used }],
        ];
    }
    // One that is gone has nothing to give.
    const is_there = (n) => !/^(missing|left|dead|lost)$/i.test(String(n.state || ""));
    const count_of = (all, words) => all.filter((x) => words.test(String(job_state(x)))).length;
    const sum_of = (all, what) => all.reduce((sum, n) => sum + (what(n) || 0), 0);

    const jobs_at_once = 100, most_jobs = 1000;
    let jobs_wanted = jobs_at_once;
    const ask_for_jobs = (find) => ask(`/api/v1/jobs?limit=${jobs_wanted}${find ? `&find=${encodeURIComponent(find)}` : ""}`);
    async function overview() {
        const find = view_of("jobs").find;
        const [said, told_jobs] = [await ask("/api/v1/nodes"), await ask_for_jobs(find)], nodes = list(said, "nodes");
        const jobs = list(told_jobs, "jobs"), there = nodes.filter(is_there), gone = nodes.length - there.length;
        const given = (key) => {
            const total = sum_of(there, (n) => (n.resources || {})[key]), away = sum_of(nodes, (n) => (n.resources || {})[key]) - total;
            const note = away > 0 ? `given / there; ${number(away)} more are missing` : "given / there";
            return total > 0 || away > 0 ? [`${number(sum_of(there, (n) => (n.used || {})[key]))} / ${number(total)}`, note] : ["none", ""];
        };
        const ready = count_of(there, /^(ready|alive)$/i), is_gone = gone ? `, ${number(gone)} missing` : "";
        // The head counts all jobs; the list is a part of them.
        const counted = (words) => (told_jobs.states ? Object.entries(told_jobs.states).reduce((sum, [name, n]) => sum + (words.test(name) ? n : 0), 0) : count_of(jobs, words));
        const found = told_jobs.found ?? jobs.length, has_any = (told_jobs.total ?? jobs.length) > 0;
        const more = element("button", { type: "button", "data-keep": "jobs/more", text: "show more", onclick: () => { jobs_wanted = Math.min(most_jobs, jobs_wanted + 400); soon(); } });
        return [
            element("h1", { text: "Overview" }),
            ...(said && said.trouble ? [element("p", { class: "empty", role: "alert", text: `What changes now is not kept: ${said.trouble}` })] : []),
            element("div", { class: "tiles" },
                tile("Nodes", number(there.length), nodes.length === 0 ? "" : there.length === ready ? `all ready${is_gone}` : `${ready} ready${is_gone}`),
                tile("CPUs", ...given("cpu")), tile("GPUs", ...given("gpu")),
                tile("Jobs running", number(counted(/^(running|starting|retrying|rescaling)$/i))),
                tile("Jobs waiting", number(counted(/^pending$/i))),
                tile("Jobs failed", number(counted(/^failed$/i)))),
            heading("Jobs"),
            has_any ? table("jobs", job_columns(), jobs, () => soon()) : empty("No job has been submitted. Try: skein job submit --working-dir . -- ./train --workers 2"),
            found > jobs.length ? element("p", { class: "note" }, `${number(jobs.length)} of ${number(found)} jobs are shown. `, jobs_wanted < most_jobs ? more : null) : null,
            heading("Nodes"),
            nodes.length ? table("nodes", node_columns(), nodes) : empty("No node has joined. Try: skein join HEAD:PORT")].flat();
    }

    // Known columns first, with a title for people; [names, title, text of a value].
    const known_curves = [
        [["loss", "train_loss"], "Loss"], [["eval_loss", "val_loss", "evaluation_loss"], "Evaluation loss"], [["lr", "learning_rate"], "Learning rate"],
        [["step_s", "step_seconds"], "Step time", (x) => `${number(x)} s`], [["tokens_per_s"], "Tokens per second"], [["samples_per_s"], "Samples per second"],
        [["global_batch", "batch"], "Global batch"], [["world_size", "workers"], "Workers"]];
    function curves(told) {
        const columns = told.columns || [], rows = told.rows || [];
        const x = Math.max(0, columns.indexOf("step"));
        const marks = [];
        for (let i = 1; i < rows.length; ++i) if (rows[i][x] <= rows[i - 1][x]) marks.push(rows[i][x]);
        const left = columns.map((name, i) => [name, i]).filter(([_, i]) => i !== x && rows.some((r) => value_of(r[i]) !== null));
        const drawn = [];
        const draw = (found, title, say) => {
            left.splice(left.indexOf(found), 1);
            drawn.push(chart(title, rows.map((r) => [r[x], r[found[1]]]), { x_name: columns[x] || "row", say, marks }));
        };
        for (const [names, title, say] of known_curves) {
            const found = left.find(([name]) => names.includes(name));
            if (found) draw(found, title, say);
        }
        for (const found of [...left]) draw(found, found[0]);
        return drawn;
    }
    // The rows of one job, the new ones alone: a table that was begun anew has another edition.
    const tables = { id: "", edition: 0, total: 0, columns: [], rows: [] };
    async function rows_of(id, base) {
        const had = tables.id === id && tables.total > 0 ? `&from=${tables.total}&edition=${tables.edition}` : "";
        const said = await ask_if_there(`${base}/rows?points=${had ? 4096 : 960}${had}`) || {};
        if (!had || !is_number(said.from) || said.from !== tables.total || said.edition !== tables.edition) tables.rows = [];
        tables.rows = tables.rows.concat(said.rows || []);
        Object.assign(tables, { id, edition: said.edition || 0, total: said.total || tables.rows.length, columns: said.columns || [] });
        return tables;
    }
    async function choose_job(id, page) {
        if (id) return [id, null];
        const jobs = list(await ask("/api/v1/jobs"), "jobs");
        if (!jobs.length) return ["", [element("h1", { text: page === "logs" ? "Logs" : "Job" }), empty("No job has been submitted.")]];
        return [job_id(jobs.find((j) => /^running$/i.test(job_state(j))) || jobs[0]), null];
    }
    // Whether this browser may change something; asked once.
    let session = null;
    async function may_change() {
        if (session === null) session = await ask_if_there("/api/v1/session") || {};
        return session.may === "change";
    }
    const is_over = (j) => /^(succeeded|failed|stopped)$/i.test(job_state(j));
    let stops = "";   // the job that is asked about once more
    async function stop_job(id) {
        stops = "";
        try {
            await ask(`/api/jobs/${path_of(id)}/stop`, "POST");
            tell_fault(null);
        } catch (e) {
            tell_fault(e);
        }
        last = 0;
        soon();
    }
    function stop_button(id) {
        const again = (to) => () => { stops = to; last = 0; soon(); };
        if (stops !== id) return element("button", { type: "button", "data-keep": "stop", text: "stop", onclick: again(id) });
        return element("span", { class: "ask" }, `Stop ${id}? `, element("button", { type: "button", class: "bad", "data-keep": "stop/yes", text: "stop it", onclick: () => stop_job(id) }), " ",
            element("button", { type: "button", "data-keep": "stop/no", text: "let it run", onclick: again("") }));
    }
    // "0-3, 5" of the ranks of each node.
    function by_node(ranks) {
        const all = new Map();
        for (const r of ranks) all.set(r.node, [...(all.get(r.node) || []), r.rank]);
        return [...all].map(([node, list]) => {
            const known = list.filter(is_number).sort((a, b) => a - b), spans = [];
            for (const r of known) {
                if (spans.length && spans[spans.length - 1][1] === r - 1) spans[spans.length - 1][1] = r;
                else spans.push([r, r]);
            }
            return { node, count: list.length, first: known[0], text: spans.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ") };
        });
    }
    const no_rows = (j) => (is_over(j) ? "This job has no training: it has written no metrics.csv into a folder of runs." :
        /^(pending|starting|retrying)$/i.test(job_state(j)) ? "It does not run yet." :
        is_number(j.started) && Date.now() / 1000 - j.started > 60 ? "No training in this job so far: it has written no metrics.csv." : "No rows yet: a training reports them while it runs.");
    async function job(wanted) {
        const [id, none] = await choose_job(wanted, "job");
        if (none) return none;
        const base = `/api/v1/jobs/${path_of(id)}`;
        const [j, rows, may] = [await ask(base), await rows_of(id, base), await may_change()];
        const now = Date.now() / 1000, drawn = curves(rows);
        const a_second = is_number(j.tokens_per_s) ? [`${number(j.tokens_per_s)} tokens/s`] : is_number(j.samples_per_s) ? [`${number(j.samples_per_s)} samples/s`] : [];
        const pace = is_number(j.steps_per_s) ? (j.steps_per_s >= 1 ? `${number(Number(j.steps_per_s.toPrecision(3)))} steps/s` : `${number(Number((1 / j.steps_per_s).toPrecision(3)))} s a step`) : "";
        const rows_are = rows.total > rows.rows.length ? element("p", { class: "note", text: `${number(rows.rows.length)} of ${number(rows.total)} rows are drawn.` }) : null;
        const ranks = list(j.ranks, "ranks"), attempts = list(j.attempts, "attempts"), results = list(j.results, "results"), nodes = by_node(ranks);
        const attempt_of = is_number(j.retries) && j.retries ? `of ${number(j.retries + 1 + (j.not_counted || 0))}` : "";
        return [
            element("h1", {}, `Job ${id} `, state(job_state(j))),
            element("div", { class: "tiles" },
                tile(j.ended ? "Ran for" : is_number(j.started) ? "Running for" : "Waiting for",
                    is_number(j.started) ? length_of((j.ended || now) - j.started) : is_over(j) ? "" : length_of(now - j.submitted), is_number(j.submitted) ? `submitted ${moment(j.submitted)}${j.submitted_by ? ` by ${j.submitted_by}` : ""}` : ""),
                is_number(j.step) ? tile("Step", number(j.step), is_number(j.steps) ? `of ${number(j.steps)}` : "") : null,
                is_number(j.epoch) || is_number(j.epochs) ? tile("Epochs done", number(j.epoch ?? 0), is_number(j.epochs) ? `of ${number(j.epochs)}` : "") : null,
                value_of(j.loss) !== null ? tile("Loss", number(j.loss), is_broken(j.loss) ? "no finite number: the training has diverged" : "", is_broken(j.loss) ? "bad" : "") : null,
                pace ? tile("Speed", pace, a_second[0]) : a_second.length ? tile("Speed", a_second[0]) : null,
                is_number(j.left_s) ? tile("Time left", length_of(j.left_s)) : null,
                j.training ? tile("Training", j.training, j.stopped_by || "") : null,
                j.attempt > 0 ? tile("Attempt", number(j.attempt), attempt_of) : null,
                nodes.length > 1 ? tile("Nodes", number(nodes.length), "see below") : j.node ? tile("Node", node_link(j.node)) : null,
                is_number(j.workers) || ranks.length ? tile("Ranks", number(j.workers ?? ranks.length), j.elastic ? `of ${j.elastic.split(" of ")[1]}` : "") : null,
                j.worlds > 1 ? tile("Worlds", number(j.worlds), j.last_change || "") : null,
                j.ended ? tile("Exit", j.signal ? String(j.signal) : number(j.exit_code)) : null),
            j.reason || j.message ? element("p", { text: j.reason || j.message }) : null,
            element("p", {}, element("code", { text: j.entrypoint || j.command || "" })),
            j.run_folder ? element("p", { class: "note" }, "Run folder ", element("code", { text: j.run_folder }), j.node ? ` on ${j.node}` : "") : null,
            element("div", { class: "tools" }, element("a", { href: `#/logs/${path_of(id)}`, text: "logs" }), log_link(id), may && !is_over(j) ? stop_button(id) : null),
            heading("Curves"),
            rows_are, drawn.length ? element("div", { class: "charts" }, drawn) : empty(no_rows(j)),
            ranks.length ? heading("Ranks") : null,
            ranks.length ? table("ranks", [["Node", (r) => node_link(r.node), { always: true }], ["Ranks", (r) => r.text, { by: (r) => r.first }], ["Count", (r) => number(r.count), { class: "number", by: (r) => r.count }]], nodes) : null,
            attempts.length > 1 ? heading("Attempts") : null,
            attempts.length > 1 ? table("attempts", [["Attempt", (a) => number(a.attempt ?? a.number), { class: "number", by: (a) => a.attempt }], ["Node", (a) => (a.node ? node_link(a.node) : "")], ["From", (a) => moment(a.started), { by: (a) => a.started }],
                ["For", (a) => (is_number(a.started) ? length_of((a.ended || now) - a.started) : ""), { class: "number", by: (a) => (is_number(a.started) ? (a.ended || now) - a.started : "") }],
                ["End", (a) => a.reason || a.message || "", { class: "wide" }]], attempts) : null,
            results.length ? heading("Results") : null,
            results.length ? element("p", { class: "note" }, element("code", { text: `skein job fetch ${id}` }), " brings back the newest of them.") : null,
            results.length ? table("results", [["What", (r) => r.name, { always: true }], ["From", (r) => (r.node ? node_link(r.node) : "")], ["When", (r) => moment(r.kept), { by: (r) => r.kept }],
                ["Files", (r) => number(r.files), { class: "number", by: (r) => r.files }], ["Size", (r) => bytes(r.bytes), { class: "number", by: (r) => r.bytes }],
                ["Missing", (r) => r.trouble || "", { class: "wide" }]], results) : null];
    }
    // What nodes tell once a second: [t, cpu, memory_used, disk_used, net_in, net_out]; see sample_columns at the head.
    const column = { t: 0, cpu: 1, memory_used: 2, disk_used: 3, net_in: 4, net_out: 5 };
    const part_of = (rows, name) => rows.filter((r) => is_number(r[column[name]])).map((r) => [r[0], r[column[name]]]);
    const spark_s = 600;
    const lately = { nodes: [], changes: null, rows: new Map(), number: 0, seconds: 30, asked: 0, listed: 0 };
    async function list_nodes() {
        const changes = told.nodes ?? told.changes;
        if (lately.changes !== changes || Date.now() > lately.listed + 2 * poll_ms) {   // who is there changes seldom
            lately.nodes = list(await ask("/api/v1/nodes"), "nodes");
            Object.assign(lately, { changes, listed: Date.now() });
        }
    }
    async function look_at_nodes() {
        await list_nodes();
        // Who comes back from another page wants what was told meanwhile.
        if (Date.now() > lately.asked + 10 * least_ms + 2 * pause) { lately.number = 0; lately.rows.clear(); }
        lately.asked = Date.now();
        const before = lately.number, points = Math.max(8, Math.min(60, Math.floor(1500 / Math.max(1, lately.nodes.length))));
        const said = await ask_if_there(before ? `/api/v1/samples?after=${before}` : `/api/v1/samples?seconds=${spark_s}&points=${points}`) || {};
        lately.number = said.number || 0;
        if (lately.number < before) { lately.number = 0; lately.rows.clear(); }   // another head: all of it anew
        for (const [name, rows] of Object.entries(said.nodes || {})) {
            const had = lately.rows.get(name) || [], newest = had.length ? had[had.length - 1][0] : 0;
            had.push(...rows.filter((r) => r[0] > newest));
            while (had.length && had[0][0] < had[had.length - 1][0] - spark_s) had.shift();
            lately.rows.set(name, had);
        }
        const all = [...lately.rows.values()].filter((r) => r.length), first = Math.min(...all.map((r) => r[0][0])), last = Math.max(...all.map((r) => r[r.length - 1][0]));
        lately.seconds = all.length ? Math.max(30, Math.min(spark_s, last - first)) : 30;   // of a young cluster: what there is
        for (const n of lately.nodes) {   // the newest is what stands in the table
            const rows = lately.rows.get(n.name), r = rows && rows[rows.length - 1];
            if (r && n.load) for (const [name, i] of Object.entries(column)) if (i && is_number(r[i])) n.load[name] = r[i];
        }
        return lately.nodes;
    }
    const node_link = (name) => element("a", { title: name, href: `#/nodes/${encodeURIComponent(name)}`, text: name });
    const rate = (x) => (is_number(x) ? `${bytes(Math.round(x))}/s` : "");
    const percent = (x) => `${Math.round(x * 100)} %`;
    // A line and the newest number; empty where the node tells nothing.
    function drawn(n, names, text, top) {
        const lines = names.map((name) => part_of(lately.rows.get(n.name) || [], name));
        if (!lines.some((l) => l.length) || text === "") return "";
        return element("div", { class: "drawn", title: text }, spark(lines, top, lately.seconds), element("span", { text }));
    }
    async function nodes(wanted) {
        if (wanted) return node(wanted);
        const all = await look_at_nodes();
        const of = (n) => n.load || {};
        const columns = [
            ["Node", (n) => (n.load ? node_link(n.name) : n.name || ""), { always: true, class: "name" }],
            ...node_columns().slice(1, 4),
            ["CPU", (n) => drawn(n, ["cpu"], is_number(of(n).cpu) ? percent(of(n).cpu) : "", 1), { by: (n) => of(n).cpu }],
            ["Memory", (n) => drawn(n, ["memory_used"], is_number(of(n).memory_used) ? `${bytes(of(n).memory_used)} / ${bytes(of(n).memory_total)}` : "", of(n).memory_total), { by: (n) => of(n).memory_used }],
            ["Network in, out", (n) => drawn(n, ["net_in", "net_out"], is_number(of(n).net_in) ? `${rate(of(n).net_in)}, ${rate(of(n).net_out)}` : ""), { by: (n) => of(n).net_in }],
            ["Disk", (n) => drawn(n, ["disk_used"], is_number(of(n).disk_used) ? `${bytes(of(n).disk_used)} / ${bytes(of(n).disk_total)}` : "", of(n).disk_total), { by: (n) => of(n).disk_used }],
            ["Workers", (n) => number(n.workers), { class: "number", by: (n) => n.workers }],
            ["Up", (n) => length_of(n.up_s), { class: "number", by: (n) => n.up_s }],
            ["Address", (n) => element("code", { text: n.address || n.host || "" })]];
        return [element("h1", { text: "Nodes" }),
            ...(all.length ? [table("nodes", columns, all, () => {})].flat() : [empty("No node has joined. Try: skein join HEAD:PORT")]),
            all.some((n) => n.load) ? element("p", { class: "note", text: `Lines: the last ${length_of(lately.seconds)}. A node's name leads to its last day.` }) : null];
    }
    const spans = [[600, "10 min"], [3600, "1 h"], [86400, "24 h"]];
    const watched = { key: "", rows: [], every: 1, seconds: 600, until: 0 };
    async function samples_of(name) {
        const key = `${name}/${watched.seconds}`, grows = watched.key === key && watched.every === 1 && watched.rows.length > 0;
        if (watched.key === key && Date.now() < watched.until) return;
        const since = grows ? `from=${watched.rows[watched.rows.length - 1][0]}` : `seconds=${watched.seconds}&points=${watched.seconds === 600 ? 601 : 480}`;
        const said = await ask_if_there(`/api/v1/samples?node=${encodeURIComponent(name)}&${since}`) || {};
        watched.rows = (grows ? watched.rows : []).concat(said.rows || []);
        const newest = watched.rows.length ? watched.rows[watched.rows.length - 1][0] : 0;
        watched.rows = watched.rows.filter((r) => r[0] > newest - watched.seconds);
        watched.every = grows ? 1 : said.every_s || 1;
        watched.key = key;
        watched.until = watched.every > 1 ? Date.now() + watched.every * 500 : 0;
    }
    const its_jobs = { name: "", changes: -1, list: [] };
    async function node(name) {
        await list_nodes();
        const n = lately.nodes.find((one) => one.name === name);
        if (n && is_there(n) && !n.load)    // it has just come, and tells it within a second
            Object.assign(watched, { key: "", rows: [] });
        else
            await samples_of(name);
        if (its_jobs.name !== name || its_jobs.changes !== told.changes)   // else they are as they were
            Object.assign(its_jobs, { name, changes: told.changes, list: list(await ask_for_jobs(name), "jobs").filter((j) => j.node === name) });
        const jobs = its_jobs.list;
        const load = (n && n.load) || {}, every = watched.every > 1 ? `, each point the mean of ${watched.every} s` : "";
        const short = watched.rows.length > 0 && watched.rows[watched.rows.length - 1][0] - watched.rows[0][0] < 300;
        const draw = (title, what, options) => chart(title, part_of(watched.rows, what), {
            x_name: "time", x_say: (t) => clock(t, watched.seconds === 600), tick_say: (t) => clock(t, short), x_ticks: time_ticks, gap: 3 * watched.every + 15, from: 0, ...options });
        const choose = element("select", { "aria-label": "How long", onchange: (e) => { watched.seconds = Number(e.target.value); e.target.blur(); soon(); } },
            spans.map(([seconds, text]) => element("option", { value: seconds, text, selected: seconds === watched.seconds })));
        return [element("h1", {}, `Node ${name} `, state(n ? n.state : "gone")),
            element("div", { class: "tools" }, choose, element("span", { text: `the last ${(spans.find(([s]) => s === watched.seconds) || [])[1]}${every}` }), element("a", { href: "#/nodes", text: "all nodes" })),
            watched.rows.length ? element("div", { class: "charts" },
                draw("CPU", "cpu", { say: percent, to: 1 }), draw("Memory", "memory_used", { say: bytes, y_ticks: byte_ticks, to: load.memory_total }),
                draw("Network in", "net_in", { say: rate, y_ticks: byte_ticks, least: 1024 }), draw("Network out", "net_out", { say: rate, y_ticks: byte_ticks, least: 1024 }),
                draw("Disk", "disk_used", { say: bytes, y_ticks: byte_ticks, to: load.disk_total }))
                : empty("This node has not told how busy it is."),
            jobs.length ? heading("Jobs of this node") : null, jobs.length ? table("jobs of a node", job_columns().filter(([title]) => title !== "Node"), jobs) : null];
    }
    async function tasks() {
        const programs = list(await ask("/api/v1/programs"), "programs");
        const calls = (title, key) => [title, (p) => number(p[key]), { class: "number", by: (p) => p[key] }];
        return [
            element("h1", { text: "Tasks and actors" }), heading("Programs"),
            ...(programs.length ? [table("programs", [["Program", (p) => p.name || "", { always: true, class: "wide" }], ["Host", (p) => p.host || ""], calls("Workers", "workers"),
                calls("Leases that wait", "waiting"), calls("Calls", "calls"), calls("Ended", "calls_done"), calls("Failed", "calls_failed"),
                ["Why it waits", (p) => p.why || "", { class: "wide" }]], programs, () => {})].flat() : [empty("No program runs on this cluster.")]),
            element("p", { class: "note", text: "Of a program's calls the head knows the numbers. It has no list of functions and actors: the program knows its own." })];
    }
    const log_link = (id) => element("a", { href: `/api/v1/jobs/${path_of(id)}/log`, download: `${id}.log`, text: "download the log" });

    // --- lines as a terminal shows them ----------------------------------------------------------
    const new_pen = () => ({ ink: "", back: "", bold: false, faint: false, slanted: false, under: false, turned: false });
    // Of 38 and 48: what follows, [colour, how many numbers it took].
    function colour_of(codes) {
        const byte = (x) => Math.max(0, Math.min(255, x || 0));
        if (codes[0] === 2) return [`rgb(${byte(codes[1])}, ${byte(codes[2])}, ${byte(codes[3])})`, 4];
        if (codes[0] !== 5) return ["", 0];
        const n = byte(codes[1]);
        if (n < 16) return [String(n), 2];
        if (n >= 232) return [`rgb(${Array(3).fill(8 + (n - 232) * 10).join(", ")})`, 2];
        const level = (x) => (x ? 55 + x * 40 : 0), c = n - 16;
        return [`rgb(${level(Math.floor(c / 36))}, ${level(Math.floor(c / 6) % 6)}, ${level(c % 6)})`, 2];
    }
    function set_pen(pen, codes) {
        for (let i = 0; i < codes.length; ++i) {
            const c = codes[i];
            if (c === 0) Object.assign(pen, new_pen());
            else if (c === 1) pen.bold = true;
            else if (c === 2) pen.faint = true;
            else if (c === 3) pen.slanted = true;
            else if (c === 4) pen.under = true;
            else if (c === 7) pen.turned = true;
            else if (c === 22) pen.bold = pen.faint = false;
            else if (c === 23) pen.slanted = false;
            else if (c === 24) pen.under = false;
            else if (c === 27) pen.turned = false;
            else if (c >= 30 && c <= 37) pen.ink = String(c - 30);
            else if (c >= 90 && c <= 97) pen.ink = String(c - 82);
            else if (c >= 40 && c <= 47) pen.back = String(c - 40);
            else if (c >= 100 && c <= 107) pen.back = String(c - 92);
            else if (c === 39) pen.ink = "";
            else if (c === 49) pen.back = "";
            else if (c === 38 || c === 48) {
                const [colour, took] = colour_of(codes.slice(i + 1));
                pen[c === 38 ? "ink" : "back"] = colour;
                i += took;
            }
        }
    }
    const plain = JSON.stringify(new_pen());
    // One line: text with what the pen was like. \r goes to its begin, and what follows overwrites;
    // of escape sequences colours, moves within the line and erasing are known, others are left out.
    const controls = /\x1b\[([0-?]*)[ -/]*([@-~]|$)|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]|[\x00-\x08\x0b-\x1f\x7f\x9b]/g;
    function draw_line(line, pen) {
        if (!/[\x00-\x08\x0b-\x1f\x7f\x9b]/.test(line) && JSON.stringify(pen) === plain) return { text: visible(line), parts: null };
        const cells = [];
        let at = 0, done = 0, now = JSON.stringify(pen);
        const put = (text) => { for (const c of visible(text)) cells[at++] = [c, now]; };
        for (const m of line.matchAll(controls)) {
            put(line.slice(done, m.index));
            done = m.index + m[0].length;
            const codes = m[2] && /^[0-9;:]*$/.test(m[1]) ? m[1].split(/[;:]/).map((n) => Number(n) || 0) : [], count = Math.min(Math.max(codes[0] || 0, 1), 1000);
            if (m[0] === "\r") at = 0;
            else if (m[0] === "\b") at = Math.max(0, at - 1);
            else if (m[2] && !codes.length) continue;   // of a terminal's own, as showing the cursor
            else if (m[2] === "m") { set_pen(pen, codes); now = JSON.stringify(pen); }
            else if (m[2] === "G") at = count - 1;
            else if (m[2] === "C") at = Math.min(at + count, 20000);
            else if (m[2] === "D") at = Math.max(0, at - count);
            else if (m[2] === "K") {
                if (codes[0] === 2) cells.length = 0;
                else if (codes[0] === 1) cells.fill([" ", plain], 0, Math.min(at + 1, cells.length));
                else cells.length = Math.min(cells.length, at);
            } else if (!m[0].startsWith("\x1b") && m[0] !== "\x07") put(`\\x${m[0].charCodeAt(0).toString(16).padStart(2, "0")}`);
        }
        put(line.slice(done));
        const parts = [];
        for (let i = 0; i < cells.length; ++i) {
            const [c, how] = cells[i] || [" ", plain];
            if (parts.length && parts[parts.length - 1][1] === how) parts[parts.length - 1][0] += c;
            else parts.push([c, how]);
        }
        const text = parts.map((p) => p[0]).join("");
        return { text, parts: parts.some((p) => p[1] !== plain) ? parts : null };
    }
    function span_of(text, how) {
        if (how === plain) return text;
        const pen = JSON.parse(how), e = element("span", { text });
        const [ink, back] = pen.turned ? [pen.back || "turned", pen.ink || "turned"] : [pen.ink, pen.back];
        for (const name of ["bold", "faint", "slanted", "under"]) if (pen[name]) e.classList.add(name);
        if (ink.startsWith("rgb")) e.style.color = ink; else if (ink) e.classList.add(`ink-${ink}`);
        if (back.startsWith("rgb")) e.style.backgroundColor = back; else if (back) e.classList.add(`back-${back}`);
        return e;
    }
    function drawn_lines(lines) {
        const out = document.createDocumentFragment();
        let text = "";   // lines without colours in one go
        lines.forEach((line, i) => {
            if (i) text += "\n";
            if (!line.parts) { text += line.text; return; }
            out.append(text, ...line.parts.map(([part, how]) => span_of(part, how)));
            text = "";
        });
        out.append(text);
        return out;
    }
    const kept = { filter: "", follow: true }; // what a person has set on the page of logs
    // Lines of one job, the new ones alone. Of a job that prints more than a page may take the last ones.
    const log = { id: "", next: 0, total: 0, left: 0, lines: [], pen: new_pen() };
    const lines_at_once = 400, bytes_at_once = 14000;
    async function take_lines(id) {
        if (log.id !== id) Object.assign(log, { id, next: 0, total: 0, left: 0, lines: [], pen: new_pen() });
        let said = await ask(`/api/v1/jobs/${path_of(id)}/lines?from=${log.next}&last=${lines_at_once}&bytes=${log.next ? bytes_at_once : 3 * bytes_at_once}`);
        if (log.next > said.total + 1) {   // another head, which has fewer
            Object.assign(log, { next: 0, total: 0, left: 0, lines: [], pen: new_pen() });
            said = await ask(`/api/v1/jobs/${path_of(id)}/lines?last=${lines_at_once}&bytes=${bytes_at_once}`);
        }
        const add = (from, lines, next) => {
            const gap = from - (log.next || 1);
            if (gap > 0) { log.left += gap; log.lines.push({ text: `(${number(gap)} lines are not here)`, parts: null }); }
            for (const line of lines) log.lines.push(draw_line(line, log.pen));
            log.next = next;
        };
        add(said.first, said.lines, said.next);
        if (said.total - log.next >= lines_at_once) {
            const end = await ask(`/api/v1/jobs/${path_of(id)}/lines?last=${lines_at_once}&bytes=${bytes_at_once}`);
            if (end.first >= log.next) add(end.first, end.lines, end.next);
            said.total = end.total;
        }
        log.total = said.total;
        if (log.next <= log.total) dirty = true;   // the rest in a moment
        if (log.lines.length > most_lines) log.lines.splice(0, log.lines.length - most_lines);
    }
    async function logs(wanted) {
        const [id, none] = await choose_job(wanted, "logs");
        if (none) return none;
        await take_lines(id);
        const all = log.lines;
        const box = element("pre", { class: "log", tabindex: "0", "aria-label": `Lines of ${id}` });
        const fill = () => {
            const found = kept.filter ? all.filter((l) => l.text.includes(kept.filter)) : all;
            box.replaceChildren(!all.length ? "No line has been printed." : drawn_lines(found));
        };
        const filter = element("input", { type: "search", placeholder: "only lines with", "data-keep": "logs/find", value: kept.filter, "aria-label": "Only lines with", oninput: (e) => { kept.filter = e.target.value; fill(); } });
        const follow = element("input", { type: "checkbox", "data-keep": "logs/follow", onchange: (e) => { kept.follow = e.target.checked; if (kept.follow) box.scrollTop = box.scrollHeight; } });
        follow.checked = kept.follow;
        fill();
        requestAnimationFrame(() => { if (kept.follow) box.scrollTop = box.scrollHeight; });
        return [element("h1", {}, "Logs of ", job_link(id)), element("div", { class: "tools" }, filter, element("label", {}, follow, " follow"), element("span", { text: `${number(log.total)} lines${log.left ? `, ${number(log.left)} of them not here` : ""}` }), log_link(id)), box];
    }

    // --- what is shown, and when it is asked for again -------------------------------------------
    const pages = { overview: ["Overview", overview], job: ["Job", job], nodes: ["Nodes", nodes], tasks: ["Tasks and actors", tasks], logs: ["Logs", logs] };
    function where() {
        const [page, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
        let id = "";
        try { id = decodeURIComponent(rest.join("/")); } catch (e) { /* then the first one */ }
        return pages[page] ? { page, id } : { page: "overview", id: "" };
    }
    let shown = "", busy = false, dirty = false, last = 0, timer = 0, pause = least_ms;

    let composes = false;   // an input method's word is not whole yet
    addEventListener("compositionstart", () => { composes = true; });
    addEventListener("compositionend", () => { composes = false; });
    function is_held() {
        const focus = document.activeElement, marked = getSelection();
        return $("page").contains(focus) && (focus.tagName === "SELECT" || composes) || (marked && !marked.isCollapsed && $("page").contains(marked.anchorNode));
    }
    // What is drawn anew has the keys and the caret where they were.
    function replace_page(parts) {
        const focus = document.activeElement, name = $("page").contains(focus) ? focus.getAttribute("data-keep") : null;
        const caret = name && focus.type === "search" ? [focus.selectionStart, focus.selectionEnd] : null;
        $("page").replaceChildren(...parts);
        const next = name && [...$("page").querySelectorAll("[data-keep]")].find((e) => e.getAttribute("data-keep") === name);
        if (!next) return;
        next.focus({ preventScroll: true });
        if (caret) next.setSelectionRange(...caret);
    }
    function tell_fault(e) {
        const box = $("fault");
        box.hidden = !e;
        if (!e) return;
        box.textContent = e.status === 401 ? "This browser has no key. Run `skein dashboard` and open the link that it prints." : `${e.message}${e.hint ? `: ${e.hint}` : ""}`;
    }
    async function refresh() {
        if (busy) { dirty = true; return; }
        credit = Math.min(most_credit, credit + (Date.now() - last) * bytes_per_ms);
        busy = true; dirty = false; last = Date.now(); taken = 0;
        const at = where(), key = `${at.page}/${at.id}`, fresh = key !== shown;
        $("tabs").replaceChildren(...Object.entries(pages).map(([name, [title]]) =>
            element("a", { href: `#/${name}${at.id && at.page !== "nodes" && (name === "job" || name === "logs") ? `/${encodeURIComponent(at.id)}` : ""}`, "aria-current": at.page === name ? "page" : null, text: title })));
        try {
            const parts = (await pages[at.page][1](at.id)).flat().filter((p) => p);
            const now = where();
            if (`${now.page}/${now.id}` !== key) dirty = true;
            else if (fresh || !is_held()) { // what a person types or marks stays
                const log = document.querySelector("pre.log"), at_line = log && !fresh ? log.scrollTop : 0;
                replace_page(parts);
                const next = document.querySelector("pre.log");
                if (next && !kept.follow) next.scrollTop = at_line;
                shown = key;
                document.title = `${pages[at.page][0]}${at.id ? ` ${at.id}` : ""} - skein`;
            }
            tell_fault(null);
            document.body.dataset.ready = key;
        } catch (e) {
            const now = where(), is_same = `${now.page}/${now.id}` === key;
            if (is_same) tell_fault(e);
            else dirty = true;
            if (fresh && is_same) {
                $("page").replaceChildren(element("h1", { text: pages[at.page][0] }), empty(e.status === 401 ? "Nothing is shown without a key." : "Nothing to show."));
                shown = key;
            }
            document.body.dataset.ready = key;
        }
        busy = false;
        credit -= taken;
        pause = Math.max(least_ms, -credit / bytes_per_ms);
        if (dirty) soon();
    }
    function soon() {
        if (timer) return;
        timer = setTimeout(() => { timer = 0; refresh(); }, Math.max(0, last + pause - Date.now()));
    }

    function follow_events() {
        const link = $("link");
        const say = (word, css) => { link.textContent = word; link.className = `dot ${css}`; };
        const source = new EventSource("/api/v1/events");
        source.onopen = () => { say("live", "on"); soon(); };
        source.onerror = () => {
            say(source.readyState === EventSource.CLOSED ? "not live" : "connecting again", source.readyState === EventSource.CLOSED ? "off" : "");
            if (source.readyState === EventSource.CLOSED) setTimeout(follow_events, poll_ms);
            soon();
        };
        source.onmessage = (event) => {
            let now = {};
            try { now = JSON.parse(event.data); } catch (e) { /* then all of it is new */ }
            const is_news = !is_number(now.changes) || now.changes !== told.changes, page = where().page;
            if (is_number(now.changes)) told = now;
            // How busy nodes are is on two pages alone, and in passing on one of them.
            if (is_news || page === "nodes" || (page === "overview" && Date.now() > last + poll_ms)) soon();
        };
    }

    addEventListener("hashchange", () => {
        const at = where();   // what is shown belongs to the address before
        if (`${at.page}/${at.id}` !== shown) {
            stops = "";
            $("page").replaceChildren(element("h1", { text: `${pages[at.page][0]}${at.id ? ` ${at.id}` : ""}` }), empty("Loading."));
        }
        last = 0; clearTimeout(timer); timer = 0; refresh();
    });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });
    refresh();
    follow_events();
})();
