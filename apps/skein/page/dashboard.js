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
    function number(x) {
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
    const moment = (unix_s) => (is_number(unix_s) && unix_s > 0 ? new Date(unix_s * 1000).toLocaleString() : "");
    function state(word) {
        const w = String(word || "unknown");
        const kind = /^(running|succeeded|ready|alive|idle)$/i.test(w) ? "good" : /^(failed|dead|missing|lost)$/i.test(w) ? "bad" :
            /^(pending|starting|retrying|rescaling|suspect|draining|joining)$/i.test(w) ? "warn" : "";
        return element("span", { class: `state ${kind}`, text: w });
    }
    function use(used, total, say, text) {
        if (!is_number(total) || total <= 0) return "";
        const part = Math.min(1, Math.max(0, (used || 0) / total));
        const bar = element("i");
        bar.style.width = `${part * 100}%`;
        return element("div", { class: "use" }, bar, element("span", { text: text || `${say(used || 0)} / ${say(total)}` }));
    }
    const tile = (label, value, note) =>
        element("div", { class: "tile" }, element("span", { text: label }), element("b", { text: value === "" ? "–" : value }), note ? element("span", { class: "note", text: note }) : null);

    // Columns that no row has are left out: [title, row => text or element, options].
    function table(columns, rows) {
        const cells = rows.map((row) => columns.map((c) => c[1](row)));
        const there = columns.map((c, i) => (c[2] && c[2].always) || cells.some((row) => row[i] !== "" && row[i] !== null && row[i] !== undefined));
        const kept = (list) => list.filter((_, i) => there[i]);
        const css = (c) => (c[2] && c[2].class) || "";
        const head = kept(columns).map((c) => element("th", { class: css(c), scope: "col", text: c[0] }));
        const body = cells.map((row) => {
            const all = row.map((cell, i) => element("td", { class: css(columns[i]) }, cell instanceof Node ? cell : String(cell ?? "")));
            return element("tr", {}, kept(all));
        });
        return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
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
        const all = points.filter((p) => is_number(p[0]) && is_number(p[1]));
        const last = all[all.length - 1];
        const read = element("span", { text: last ? say(last[1]) : "" });
        const box = element("figure", { class: "chart", role: "img", "aria-label": last ? `${title}, ${all.length} points, last ${say(last[1])} at ${x_name} ${x_say(last[0])}` : `${title}, no data` },
            element("h3", {}, title, read));
        box.style.margin = "0";
        if (!last) {
            box.append(element("p", { class: "empty", text: "no data yet" }));
            return box;
        }
        const W = 480, H = 210, left = 62, right = 20, top = 10, bottom = 34;
        let x0 = all[0][0], x1 = x0, y0 = all[0][1], y1 = y0;
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
        if (all.length === 1) svg.append(shape("circle", { class: "point", cx: px(last[0]), cy: py(last[1]), r: 3 }));
        else svg.append(shape("path", { class: "curve", d: lines_of(all, gap).map((line) => thin(line, W).map((p, i) => `${i ? "L" : "M"}${px(p[0]).toFixed(1)} ${py(p[1]).toFixed(1)}`).join("")).join("") }));
        const cross = shape("line", { class: "cross", y1: top, y2: H - bottom, visibility: "hidden" });
        svg.append(cross);
        svg.addEventListener("pointermove", (event) => {
            const at = svg.getBoundingClientRect(), x = x0 + (((event.clientX - at.left) / at.width) * W - left) / (W - left - right) * (x1 - x0);
            let near = all[0];
            for (const p of all) if (Math.abs(p[0] - x) < Math.abs(near[0] - x)) near = p;
            cross.setAttribute("x1", px(near[0])); cross.setAttribute("x2", px(near[0])); cross.setAttribute("visibility", "visible");
            read.textContent = `${x_name} ${x_say(near[0])}: ${say(near[1])}`;
        });
        svg.addEventListener("pointerleave", () => {
            cross.setAttribute("visibility", "hidden");
            read.textContent = say(last[1]);
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
    async function ask(path, as_text) {
        let answer;
        try {
            answer = await fetch(path, { cache: "no-store" });
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
        return as_text ? text : JSON.parse(text);
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
            ["Step", (j) => (is_number(j.step) ? (is_number(j.steps) ? use(j.step, j.steps, number) : number(j.step)) : "")],
            ["Loss", (j) => (is_number(j.loss) ? number(j.loss) : ""), { class: "number" }],
            ["Attempt", (j) => number(j.attempt), { class: "number" }],
            ["For", (j) => (is_number(j.started) ? length_of((j.ended || now) - j.started) : ""), { class: "number" }],
            ["Command", (j) => element("code", { text: j.entrypoint || j.command || "" }), { class: "wide" }]];
    }
    function node_columns() {
        const of = (n, key) => (n.resources || {})[key], used = (n, key) => (n.used || {})[key], load = (n) => n.load || {};
        return [
            ["Node", (n) => (n.load ? node_link(n.name) : n.name || n.id || ""), { always: true, class: "name" }],
            ["State", (n) => state(n.state), { always: true }],
            ["CPUs given", (n) => use(used(n, "cpu"), of(n, "cpu"), number)],
            ["GPUs given", (n) => use(used(n, "gpu"), of(n, "gpu"), number)],
            ["CPU", (n) => (is_number(load(n).cpu) ? use(load(n).cpu, 1, null, `${Math.round(load(n).cpu * 100)} %`) : "")],
            ["Memory", (n) => use(load(n).memory_used, load(n).memory_total, bytes)],
        ];
    }
    const count_of = (all, words) => all.filter((x) => words.test(String(job_state(x)))).length;
    const sum_of = (all, what) => all.reduce((sum, n) => sum + (what(n) || 0), 0);

    async function overview() {
        const said = await ask("/api/v1/nodes");
        const [nodes, jobs] = [list(said, "nodes"), list(await ask("/api/v1/jobs"), "jobs")];
        const given = (key) => {
            const total = sum_of(nodes, (n) => (n.resources || {})[key]);
            return total > 0 ? [`${number(sum_of(nodes, (n) => (n.used || {})[key]))} / ${number(total)}`, "given / there"] : ["none", ""];
        };
        const ready = count_of(nodes, /^(ready|alive)$/i);
        return [
            element("h1", { text: "Overview" }),
            ...(said && said.trouble ? [element("p", { class: "empty", role: "alert", text: `What changes now is not kept: ${said.trouble}` })] : []),
            element("div", { class: "tiles" },
                tile("Nodes", number(nodes.length), nodes.length === 0 ? "" : nodes.length === ready ? "all ready" : `${ready} ready`),
                tile("CPUs", ...given("cpu")), tile("GPUs", ...given("gpu")),
                tile("Jobs running", number(count_of(jobs, /^(running|starting|retrying|rescaling)$/i))),
                tile("Jobs waiting", number(count_of(jobs, /^pending$/i))),
                tile("Jobs failed", number(count_of(jobs, /^failed$/i)))),
            heading("Jobs"),
            jobs.length ? table(job_columns(), jobs) : empty("No job has been submitted. Try: skein job submit --working-dir . -- ./train --workers 2"),
            heading("Nodes"),
            nodes.length ? table(node_columns(), nodes) : empty("No node has joined. Try: skein join HEAD:PORT")];
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
        const left = columns.map((name, i) => [name, i]).filter(([_, i]) => i !== x && rows.some((r) => is_number(r[i])));
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
    async function job(wanted) {
        const [id, none] = await choose_job(wanted, "job");
        if (none) return none;
        const base = `/api/v1/jobs/${path_of(id)}`;
        const [j, rows] = [await ask(base), await rows_of(id, base)];
        const now = Date.now() / 1000, drawn = curves(rows);
        const a_second = is_number(j.tokens_per_s) ? [`${number(j.tokens_per_s)} tokens/s`] : is_number(j.samples_per_s) ? [`${number(j.samples_per_s)} samples/s`] : [];
        const pace = is_number(j.steps_per_s) ? (j.steps_per_s >= 1 ? `${number(Number(j.steps_per_s.toPrecision(3)))} steps/s` : `${number(Number((1 / j.steps_per_s).toPrecision(3)))} s a step`) : "";
        const rows_are = rows.total > rows.rows.length ? element("p", { class: "note", text: `${number(rows.rows.length)} of ${number(rows.total)} rows are drawn.` }) : null;
        const ranks = list(j.ranks, "ranks"), attempts = list(j.attempts, "attempts");
        return [
            element("h1", {}, `Job ${id} `, state(job_state(j))),
            element("div", { class: "tiles" },
                tile(j.ended ? "Ran for" : "Running for", is_number(j.started) ? length_of((j.ended || now) - j.started) : "", is_number(j.submitted) ? `submitted ${moment(j.submitted)}` : ""),
                tile("Step", is_number(j.step) ? number(j.step) : "", is_number(j.steps) ? `of ${number(j.steps)}` : ""),
                is_number(j.epoch) ? tile("Epoch", number(j.epoch)) : null,
                is_number(j.loss) ? tile("Loss", number(j.loss)) : null,
                pace ? tile("Speed", pace, a_second[0]) : a_second.length ? tile("Speed", a_second[0]) : null,
                is_number(j.left_s) ? tile("Time left", length_of(j.left_s)) : null,
                tile("Attempt", number(j.attempt), is_number(j.retries) && j.retries ? `of ${number(j.retries + 1)}` : ""),
                tile("Node", j.node || ""),
                is_number(j.workers) || ranks.length ? tile("Ranks", number(j.workers ?? ranks.length)) : null,
                j.ended ? tile("Exit", j.signal ? String(j.signal) : number(j.exit_code)) : null),
            j.reason || j.message ? element("p", { text: j.reason || j.message }) : null,
            element("p", {}, element("code", { text: j.entrypoint || j.command || "" }), " ", element("a", { href: `#/logs/${path_of(id)}`, text: "logs" })),
            heading("Curves"),
            rows_are, drawn.length ? element("div", { class: "charts" }, drawn) : empty("No rows yet: a training reports them while it runs."),
            ranks.length ? heading("Ranks") : null,
            ranks.length ? table([["Rank", (r) => number(r.rank), { class: "number" }], ["State", (r) => (r.state ? state(r.state) : "")], ["Node", (r) => r.node || ""],
                ["Process", (r) => (r.pid ? String(r.pid) : ""), { class: "number" }], ["Step", (r) => number(r.step), { class: "number" }],
                ["Step time", (r) => (is_number(r.step_s) ? `${number(r.step_s)} s` : ""), { class: "number" }]], ranks) : null,
            attempts.length > 1 ? heading("Attempts") : null,
            attempts.length > 1 ? table([["Attempt", (a) => number(a.attempt ?? a.number), { class: "number" }], ["Node", (a) => a.node || ""], ["From", (a) => moment(a.started)],
                ["For", (a) => (is_number(a.started) ? length_of((a.ended || now) - a.started) : ""), { class: "number" }],
                ["End", (a) => a.reason || a.message || "", { class: "wide" }]], attempts) : null];
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
            ["CPU", (n) => drawn(n, ["cpu"], is_number(of(n).cpu) ? percent(of(n).cpu) : "", 1)],
            ["Memory", (n) => drawn(n, ["memory_used"], is_number(of(n).memory_used) ? `${bytes(of(n).memory_used)} / ${bytes(of(n).memory_total)}` : "", of(n).memory_total)],
            ["Network in, out", (n) => drawn(n, ["net_in", "net_out"], is_number(of(n).net_in) ? `${rate(of(n).net_in)}, ${rate(of(n).net_out)}` : "")],
            ["Disk", (n) => drawn(n, ["disk_used"], is_number(of(n).disk_used) ? `${bytes(of(n).disk_used)} / ${bytes(of(n).disk_total)}` : "", of(n).disk_total)],
            ["Workers", (n) => number(n.workers), { class: "number" }],
            ["Up", (n) => length_of(n.up_s), { class: "number" }],
            ["Address", (n) => element("code", { text: n.address || n.host || "" })]];
        return [element("h1", { text: "Nodes" }),
            all.length ? table(columns, all) : empty("No node has joined. Try: skein join HEAD:PORT"),
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
    async function node(name) {
        await list_nodes();
        const n = lately.nodes.find((one) => one.name === name);
        await samples_of(name);
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
                : empty("This node has not told how busy it is.")];
    }
    async function tasks() {
        let why = {};
        const there = async (name) => {
            try { return list(await ask(`/api/v1/${name}`), name); } catch (e) {
                if (e.status !== 404 && e.status !== 501) throw e;
                why[name] = `${e.message}${e.hint ? `; ${e.hint}` : ""}`;
                return [];
            }
        };
        const [programs, functions, actors] = [await there("programs"), await there("functions"), await there("actors")];
        const calls = (key) => (p) => number(p[key]);
        return [
            element("h1", { text: "Tasks and actors" }), heading("Programs"),
            programs.length ? table([["Program", (p) => p.name || "", { always: true, class: "wide" }], ["Host", (p) => p.host || ""], ["Workers", calls("workers"), { class: "number" }],
                ["Leases that wait", calls("waiting"), { class: "number" }], ["Calls", calls("calls"), { class: "number" }], ["Ended", calls("calls_done"), { class: "number" }],
                ["Failed", calls("calls_failed"), { class: "number" }], ["Why it waits", (p) => p.why || "", { class: "wide" }]], programs)
                : empty(why.programs || "No program runs on this cluster."),
            heading("Functions"),
            functions.length ? table([["Function", (f) => f.name || "", { always: true, class: "wide" }], ["Waiting", (f) => number(f.waiting), { class: "number" }],
                ["Running", (f) => number(f.running), { class: "number" }], ["Done", (f) => number(f.done), { class: "number" }],
                ["Failed", (f) => number(f.failed), { class: "number" }], ["Mean", (f) => (is_number(f.mean_s) ? `${number(f.mean_s)} s` : ""), { class: "number" }]], functions)
                : empty(why.functions || "No remote function has been called."),
            heading("Actors"),
            actors.length ? table([["Actor", (a) => a.name || a.id || "", { always: true, class: "wide" }], ["Type", (a) => a.type || ""], ["State", (a) => state(a.state)],
                ["Node", (a) => a.node || ""], ["Calls", (a) => number(a.calls), { class: "number" }], ["Restarts", (a) => number(a.restarts), { class: "number" }]], actors)
                : empty(why.actors || "There are no actors.")];
    }
    const kept = { filter: "", follow: true }; // what a person has set on the page of logs
    // Lines of one job, the new ones alone. Of a job that prints more than a page may take the last ones.
    const log = { id: "", next: 0, total: 0, left: 0, lines: [] };
    const lines_at_once = 400, bytes_at_once = 14000;
    async function take_lines(id) {
        if (log.id !== id) Object.assign(log, { id, next: 0, total: 0, left: 0, lines: [] });
        let said = await ask(`/api/v1/jobs/${path_of(id)}/lines?from=${log.next}&last=${lines_at_once}&bytes=${log.next ? bytes_at_once : 3 * bytes_at_once}`);
        if (log.next > said.total + 1) {   // another head, which has fewer
            Object.assign(log, { next: 0, total: 0, left: 0, lines: [] });
            said = await ask(`/api/v1/jobs/${path_of(id)}/lines?last=${lines_at_once}&bytes=${bytes_at_once}`);
        }
        const add = (from, lines, next) => {
            const gap = from - (log.next || 1);
            if (gap > 0) { log.left += gap; log.lines.push(`(${number(gap)} lines are not here)`); }
            log.lines.push(...lines);
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
            const found = kept.filter ? all.filter((l) => l.includes(kept.filter)) : all;
            const cut = Math.max(0, found.length - most_lines);
            box.textContent = !all.length ? "No line has been printed." : (cut ? `(${number(cut)} earlier lines are left out)\n` : "") + found.slice(cut).join("\n");
        };
        const filter = element("input", { type: "search", placeholder: "only lines with", value: kept.filter, "aria-label": "Only lines with", oninput: (e) => { kept.filter = e.target.value; fill(); } });
        const follow = element("input", { type: "checkbox", onchange: (e) => { kept.follow = e.target.checked; if (kept.follow) box.scrollTop = box.scrollHeight; } });
        follow.checked = kept.follow;
        fill();
        requestAnimationFrame(() => { if (kept.follow) box.scrollTop = box.scrollHeight; });
        return [element("h1", {}, "Logs of ", job_link(id)), element("div", { class: "tools" }, filter, element("label", {}, follow, " follow"), element("span", { text: `${number(log.total)} lines${log.left ? `, ${number(log.left)} of them not here` : ""}` })), box];
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

    function is_held() {
        const focus = document.activeElement, marked = getSelection();
        return $("page").contains(focus) && (focus.tagName === "SELECT" || focus.tagName === "INPUT" && focus.type === "search") || (marked && !marked.isCollapsed && $("page").contains(marked.anchorNode));
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
            const parts = (await pages[at.page][1](at.id)).filter((p) => p);
            const now = where();
            if (`${now.page}/${now.id}` !== key) dirty = true;
            else if (fresh || !is_held()) { // what a person types or marks stays
                const log = document.querySelector("pre.log"), at_line = log && !fresh ? log.scrollTop : 0;
                $("page").replaceChildren(...parts);
                const next = document.querySelector("pre.log");
                if (next && !kept.follow) next.scrollTop = at_line;
                shown = key;
                document.title = `${pages[at.page][0]}${at.id ? ` ${at.id}` : ""} - skein`;
            }
            tell_fault(null);
            document.body.dataset.ready = key;
        } catch (e) {
            tell_fault(e);
            if (fresh) {
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

    addEventListener("hashchange", () => { last = 0; clearTimeout(timer); timer = 0; refresh(); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });
    refresh();
    follow_events();
})();
