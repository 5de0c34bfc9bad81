// SPDX-License-Identifier: Apache-2.0
// A head that is none: the page, with what dashboard_test.py wants it to show, behind the door of
// links. Prints its address and links to log in, ends with its standard input.
//
//   skein_dashboard [--empty] [--rubbish] [--links N] [--rows N] [--nodes N]
#include <apps/skein/page.hpp>

#include <skein/core/log.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/http_server.hpp>
#include <skein/net/link_endpoint.hpp>
#include <skein/net/readable_fd.hpp>
#include <skein/net/real_loop.hpp>
#include <skein/net/real_network.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

using namespace skein;
using namespace std::chrono_literals;

namespace {

/// What there is to see; grows by itself while somebody looks.
struct world {
    bool empty = false, rubbish = false, is_stopped = false;
    int rows = 400, nodes = 3;
    int changes = 0, samples = 0;
};

/// What somebody may call a node, escaped.
std::string name_of(const world& w, int i) {
    if (!w.rubbish) return fmt::format("node-{}", i + 1);
    if (i == 0) return "<img src=x onerror=document.title=3>";
    if (i == 1) return "\\\"' \\u202e%2f/../?#&amp;";
    return fmt::format("{}-{}", std::string(200, 'x'), i + 1);
}

/// One node at a second, as the head has it: [t, cpu, memory, disk, in, out].
std::string sample_at(int node, std::int64_t t) {
    const double turn = static_cast<double>(t % 600) / 600 * 6.2832;
    return fmt::format("[{}, {:.3f}, {}, 210453397504, {:.0f}, {:.0f}]", t,
                       0.5 + 0.4 * std::sin(turn * 3 + node), 21474836480LL + node * 1073741824LL,
                       1e6 * (1 + std::sin(turn * 7)), 3e6 * (1 + std::cos(turn * 5)));
}
std::int64_t second_now() { return static_cast<std::int64_t>(to_seconds(loop::current().wall())); }

std::string samples_of(int node, std::int64_t first, std::int64_t last, std::int64_t every) {
    std::string out = "[";
    for (auto t = first; t <= last; t += every)
        out += fmt::format("{}{}", out.size() == 1 ? "" : ", ", sample_at(node, t));
    return out + "]";
}
std::string all_samples_of(const world& w, bool all) {
    std::string out = fmt::format("{{\"number\": {}, \"nodes\": {{", w.samples + 1);
    const auto now = second_now();
    for (int i = 0; i < (w.empty ? 0 : w.nodes); ++i)
        out += fmt::format("{}\"{}\": {}", i == 0 ? "" : ", ", name_of(w, i),
                           samples_of(i, all ? now - 600 : now, now, 20));
    return out + "}}";
}

double loss_at(int step) {
    return 3.2 * std::exp(-step / 120.0) + 0.9 + 0.08 * std::sin(step * 0.7);
}

std::string nodes_of(const world& w) {
    if (w.empty) return "{\"nodes\": []}";
    std::string out = "{\"nodes\": [";
    for (int i = 0; i < w.nodes; ++i)
        out += fmt::format(
            "{}{{\"name\": \"{}\", \"state\": \"{}\", \"address\": \"tcp:10.0.0.{}:6400\", "
            "\"resources\": {{\"cpu\": 16, \"gpu\": 2}}, \"used\": {{\"cpu\": {}, \"gpu\": {}}}, "
            "\"load\": {{\"cpu\": {:.2f}, \"memory_used\": {}, \"memory_total\": 68719476736, "
            "\"disk_used\": 210453397504, \"disk_total\": 536870912000, \"net_in\": {}, "
            "\"net_out\": {}}}, \"up_s\": {}}}",
            i == 0 ? "" : ", ", name_of(w, i), i == 2 ? "draining" : "ready", i + 1, i == 2 ? 0 : 8,
            i == 2 ? 0 : 2, i == 2 ? 0.02 : 0.61 + i % 4 * 0.1, 21474836480LL + i * 1073741824LL,
            1234567 * (i + 1), 7654321 * (i + 1), 5400 + 60 * i);
    if (w.nodes == 3)
        out += ", {\"name\": \"node-9\", \"state\": \"missing\", \"resources\": {\"cpu\": 16, "
               "\"gpu\": 2}}";
    return out + "]}";
}

std::string job_of(const world& w, std::string_view id) {
    const double now = to_seconds(loop::current().wall());
    if (id == "train-7")
        return fmt::format(
            R"({{"id": "train-7", "state": "{4}", "entrypoint": "./110_gpt_ddp --workers 2",
            "submitted": {0:.0f}, "submitted_by": "ann@desk", "started": {0:.0f}, "attempt": 2,
            "step": {1}, "steps": 1000, "loss": {2:.4f}, "epoch": 1, "epochs": 3,
            "steps_per_s": 4.7, "tokens_per_s": 39120, "left_s": 128, "retries": 3,
            "node": "node-1", "workers": 3,
            "worlds": 4, "last_change": "worker 2 (pid 7) was killed by signal 9", "run_folder": "/data/jobs/train-7/runs/gpt",
            "ranks": [{{"rank": 0, "node": "node-1"}}, {{"rank": 1, "node": "node-1"}},
            {{"rank": 2, "node": "node-2"}}], "attempts": [{{"attempt": 1, "started": {0:.0f},
            "ended": {3:.0f}, "reason": "rank 1 on node-3 was killed by signal 9"}},
            {{"attempt": 2, "started": {3:.0f}}}]}})",
            now - 300, w.rows, loss_at(w.rows), now - 200, w.is_stopped ? "STOPPED" : "RUNNING");
    if (id == "broken-8")
        return fmt::format(
            R"({{"id": "broken-8", "state": "SUCCEEDED", "entrypoint": "./cnn --lr 40",
            "submitted": {0:.0f}, "submitted_by": "bob@desk", "started": {0:.0f},
            "ended": {1:.0f}, "exit_code": 0, "attempt": 1, "step": 120, "steps": 400,
            "loss": "NaN", "node": "node-2", "training": "stopped",
            "stopped_by": "early stopping: val_loss has not improved in 3 evaluations"}})",
            now - 900, now - 700);
    if (id == "wait-9") {
        std::string path;
        for (int i = 0; i < 12; ++i) path += "/an-archive-of-pictures";
        return fmt::format(R"({{"id": "wait-9", "state": "PENDING", "submitted": {:.0f},
            "submitted_by": "bob@desk", "entrypoint": "./train --data={}"}})",
                           now - 60, path);
    }
    return fmt::format(
        "{{\"id\": \"{}\", \"state\": \"FAILED\", \"reason\": \"<b>exit code 3</b>: no such file "
        "data.bin\", \"exit_code\": 3, \"attempt\": 1, \"submitted\": {:.0f}, \"started\": {:.0f}, "
        "\"ended\": {:.0f}, \"node\": \"node-1\", \"submitted_by\": \"ann@desk\", "
        "\"entrypoint\": \"python3 -c \\\"<script>document.title=1</script>\\\"\"}}",
        id, now - 4000, now - 3990, now - 3950);
}

/// A training that has diverged: JSON has no NaN.
std::string broken_rows() {
    std::string out = R"({"columns": ["step", "val_a,\"val_b\"", "loss", "grad_norm"], "rows": [)";
    for (int step = 1; step <= 120; ++step)
        out += fmt::format("{}[{}, {:.3f}, {}, {}]", step == 1 ? "" : ", ", step, step / 120.0,
                           step < 90 ? fmt::format("{:.4f}", loss_at(step)) : "\"NaN\"",
                           step < 88   ? fmt::format("{:.4f}", 1.0 + step * step / 100.0)
                           : step < 90 ? "\"Infinity\""
                                       : "\"NaN\"");
    return out + "], \"total\": 120}";
}

/// What programs print for terminals: colours, bars that draw over themselves, what is none of it.
std::string coloured_lines() {
    return R"({"first": 1, "next": 7, "total": 6, "lines": [
        "\u001b[1;31mERROR\u001b[0m: \u001b[38;5;208mamber\u001b[0m and \u001b[38;2;1;2;3mink\u001b[39m <b>plain</b>",
        "\r  0%|     | 0/3\r 33%|#    | 1/3\r 67%|###  | 2/3\r100%|#####| 3/3",
        "a long bar of the past\rshort  12%\b\b\b34%\u001b[K", "\u001b[?25lhidden cursor\u001b[?25h, title\u001b]0;evil\u0007, bell\u0007",
        "zero \u0000 and \u001b[32mgreen to the end", "still green\u001b[0m <img src=x onerror=document.title=4>"]})";
}

std::string rows_of(const world& w) {
    std::string out = "{\"columns\": [\"step\", \"loss\", \"lr\", \"step_s\", \"tokens_per_s\", "
                      "\"eval_loss\"], \"rows\": [";
    const auto row = [&](int step) {
        const double rate =
            step < 50 ? 6e-4 * step / 50 : 3e-4 * (1 + std::cos(step / 1000.0 * 3.1416));
        out += fmt::format("{}[{}, {:.6f}, {:.8f}, {:.4f}, {:.1f}, {}]",
                           out.back() == '[' ? "" : ", ", step, loss_at(step), rate,
                           0.21 + 0.01 * std::sin(step * 1.3), 39000 + 900 * std::sin(step * 0.4),
                           step % 50 == 0 ? fmt::format("{:.4f}", loss_at(step) + 0.1) : "null");
    };
    for (int step = 1; step <= 200; ++step) row(step);
    for (int step = 150; step <= w.rows; ++step) row(step); // from the checkpoint on, again
    return out + "]}";
}

std::string lines_of(int total, int from) {
    from = std::max(from, 1);
    std::string out = fmt::format(R"({{"first": {}, "next": {}, "total": {}, "lines": [)", from,
                                  std::max(from, total + 1), total);
    for (int line = from; line <= total; ++line)
        out += line == 1 ? "\"attempt 1, rank 0: <img src=x onerror=document.title=2> starts\""
                         : fmt::format("{}\"step {} loss {:.4f}\"", line == from ? "" : ", ",
                                       line - 1, loss_at(line - 1));
    return out + "]}";
}

task<net::http_answer> give(std::string text) { co_return wire::json_response(std::move(text)); }
task<net::http_answer> no_such_job(std::string id) {
    throw error(errc::not_found, "there is no job " + id).with_hint("skein job list");
    co_return net::http_answer();
}

task<std::optional<net::http_event>> next_event(world* w, std::string last) {
    if (!last.empty()) co_await sleep_for(1s);
    ++w->changes;
    ++w->samples;
    if (!w->empty && w->rows < 1000) ++w->rows;
    co_return net::http_event(
        fmt::format("{{\"changes\": {}, \"samples\": {}}}", w->changes, w->samples),
        fmt::to_string(w->changes));
}

net::http_router routes_of(world* w) {
    using enum net::http_right;
    net::http_router to;
    skein_program::add_page(to);
    const auto known = [w](const net::http_call& c) {
        const auto& id = c.part("id");
        return !w->empty &&
               (id == "train-7" || id == "prep-3" || id == "broken-8" || id == "wait-9");
    };
    to.add("GET", "/api/v1/nodes", view, [w](net::http_call) { return give(nodes_of(*w)); });
    to.add("GET", "/api/v1/samples", view, [w](net::http_call c) {
        if (c.request.parameter("node") == nullptr)
            return give(all_samples_of(*w, c.request.parameter("after") == nullptr));
        const auto* const from = c.request.parameter("from");
        const auto now = second_now();
        return give(fmt::format(
            "{{\"every_s\": 1, \"rows\": {}}}",
            samples_of(0, from == nullptr ? now - 600 : std::stoll(*from) + 1, now, 1)));
    });
    to.add("GET", "/api/v1/jobs", view, [w](net::http_call) {
        return give(
            w->empty ? "{\"jobs\": []}"
                     : fmt::format("{{\"jobs\": [{}, {}, {}, {}], \"total\": 1204, \"found\": 4, "
                                   "\"states\": {{\"RUNNING\": 1, \"FAILED\": 1201, "
                                   "\"SUCCEEDED\": 1, \"PENDING\": 1}}}}",
                                   job_of(*w, "wait-9"), job_of(*w, "broken-8"),
                                   job_of(*w, "train-7"), job_of(*w, "prep-3")));
    });
    to.add("GET", "/api/v1/jobs/{id}", view, [w, known](net::http_call c) {
        return known(c) ? give(job_of(*w, c.part("id"))) : no_such_job(c.part("id"));
    });
    to.add("GET", "/api/v1/jobs/{id}/rows", view, [w](net::http_call c) {
        return give(c.part("id") == "train-7"    ? rows_of(*w)
                    : c.part("id") == "broken-8" ? broken_rows()
                                                 : "{\"columns\": [], \"rows\": []}");
    });
    to.add("GET", "/api/v1/jobs/{id}/lines", view, [w](net::http_call c) {
        const auto* const from = c.request.parameter("from");
        if (c.part("id") == "broken-8")
            return give(from == nullptr || *from == "0"
                            ? coloured_lines()
                            : R"({"first": 7, "next": 7, "total": 6, "lines": []})");
        return give(lines_of(c.part("id") == "train-7" ? w->rows + 1 : 0,
                             from == nullptr ? 0 : std::atoi(from->c_str())));
    });
    to.add("GET", "/api/v1/programs", view, [w](net::http_call) {
        return give(w->empty ? "{\"programs\": []}"
                             : "{\"programs\": [{\"name\": \"map_reduce\", \"host\": \"desk\", "
                               "\"workers\": 16, \"waiting\": 2, \"calls\": 48330, \"calls_done\": "
                               "48210, \"calls_failed\": 2, \"why\": \"\"}]}");
    });
    to.add("GET", "/api/v1/session", view, [](net::http_call c) {
        return give(c.right == change ? R"({"may": "change"})" : R"({"may": "view"})");
    });
    to.add("POST", "/api/jobs/{id}/stop", change, [w](net::http_call) {
        w->is_stopped = true;
        return give("{\"stopped\": true}");
    });
    to.add("GET", "/api/v1/events", view, [w](net::http_call) -> task<net::http_answer> {
        return [](world* of) -> task<net::http_answer> {
            co_return net::http_events(
                [of](std::string last) { return next_event(of, std::move(last)); });
        }(w);
    });
    return to;
}

task<void> serve_links(net::link::handle l) {
    auto ended = l->wait_closed();
    co_await ended;
}

task<void> run(net::real_loop* on, net::network* network, world* w, int links) {
    net::http_server_options how;
    how.keys = {net::token::generate().to_hex(), net::token::generate().to_hex()};
    how.cluster = "test";
    net::http_server web(routes_of(w), how);
    net::connection_options options;
    options.secret = net::token::generate();
    net::link_endpoint door(*network, net::address::tcp("127.0.0.1", 0), options);
    door.on_http([&](std::unique_ptr<net::stream> s, byte_buffer first, net::admission* place) {
        return web.serve(std::move(s), std::move(first), place);
    });
    const auto site = fmt::format("http://127.0.0.1:{}", door.local().port);
    fmt::print("{}/\n", site);
    for (int i = 0; i < links; ++i) // the last one may stop jobs
        fmt::print("{}{}\n", site,
                   web.login_link(i + 1 < links ? net::http_right::view : net::http_right::change));
    std::fflush(stdout);
    scope serving;
    serving.spawn(door.serve([](net::link::handle l) { return serve_links(std::move(l)); }));
    auto ended = net::wait_readable(*on, STDIN_FILENO);
    co_await ended;
    serving.cancel();
    auto joined = serving.join();
    co_await joined;
}

} // namespace

int main(int argc, char** argv) {
    world w;
    int links = 4;
    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--empty") w.empty = true;
        if (word == "--rubbish") w.rubbish = true;
        if (word == "--nodes" && i + 1 < argc) w.nodes = std::atoi(argv[i + 1]);
        if (word == "--rows" && i + 1 < argc) w.rows = std::atoi(argv[i + 1]);
        if (word == "--links" && i + 1 < argc) links = std::atoi(argv[i + 1]);
    }
    net::real_loop loop;
    net::real_network network(loop);
    try {
        loop.run(run(&loop, &network, &w, links));
    } catch (const std::exception& e) {
        fmt::print(stderr, "error: {}\n", e.what());
        return 1;
    }
    return 0;
}
