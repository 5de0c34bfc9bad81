// SPDX-License-Identifier: Apache-2.0
// The bodies of dashboard.hpp.
#include "dashboard.hpp"
#include "dashboard_text.hpp"
#include "metrics_text.hpp"
#include "page.hpp"
#include "web.hpp"

#include <skein/cluster/jobs.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/one_more.hpp>
#include <skein/core/sleep.hpp>
#include <skein/net/http_server.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein_program {
namespace {

namespace net = skein::net;
namespace wire = skein::wire;
using skein::errc;
using skein::error;
using skein::task;

/// Routes of a handler that does not wait.
template <class F>
net::http_handler now(F answer) {
    return [answer](net::http_call call) -> task<net::http_answer> {
        return [](F how, net::http_call asked) -> task<net::http_answer> {
            co_return how(asked);
        }(answer, std::move(call));
    };
}

/// The same of one that reads these parameters: another one is a mistake, which nobody would see.
template <class F>
auto reads(std::vector<std::string_view> names, F answer) {
    return [names = std::move(names), answer](const net::http_call& call) {
        for (const auto& [name, value] : call.request.query)
            if (std::find(names.begin(), names.end(), name) == names.end())
                throw error(errc::invalid_argument,
                            fmt::format("nobody reads the parameter {}", skein::printable(name)))
                    .with_hint(fmt::format("here there are {}", fmt::join(names, ", ")));
        return answer(call);
    };
}

wire::http_response json(const skein::ordered_json& what) {
    return wire::json_response(what.dump(-1, ' ', false, skein::json::error_handler_t::replace));
}

std::size_t number_of(const net::http_call& call, std::string_view name, std::size_t other) {
    const auto* const text = call.request.parameter(name);
    if (text == nullptr) return other;
    std::size_t n = 0;
    const auto read = std::from_chars(text->data(), text->data() + text->size(), n);
    if (read.ec != std::errc() || read.ptr != text->data() + text->size())
        throw error(errc::invalid_argument,
                    fmt::format("{}={} is no number", name, skein::printable(*text)));
    return n;
}

/// From when on samples are asked for: after `from`, seconds since 1970, or of the last `seconds`.
std::int64_t moment_of(const net::http_call& call) {
    const auto now = static_cast<std::int64_t>(skein::to_seconds(skein::loop::current().wall()));
    const auto seconds = number_of(call, "seconds", 3600);
    constexpr std::size_t most = INT64_MAX;
    const auto other =
        now - static_cast<std::int64_t>(std::min(seconds, static_cast<std::size_t>(now)));
    return static_cast<std::int64_t>(
        std::min(number_of(call, "from", static_cast<std::size_t>(other)), most));
}

/// A job's lines, all that are kept.
std::string lines_text(const cluster::head& of, const std::string& id) {
    std::string out;
    for (std::uint64_t from = 1;;) {
        const auto said = of.job_output(id, from);
        if (said.first > from && !said.lines.empty())
            out += fmt::format("... lines {} to {} are left out\n", from, said.first - 1);
        for (const auto& line : said.lines) out += line.text + "\n";
        from = said.first + said.lines.size();
        if (said.lines.empty()) return out;
    }
}

/// A log that a browser saves: so much of it at most, and so many of them at a time.
constexpr std::size_t most_log_bytes = std::size_t{8} << 20;
constexpr int most_logs = 4;

wire::http_response log_file(std::string name) {
    for (auto& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.')
            c = '_';
    wire::http_response out;
    out.type = "text/plain; charset=utf-8";
    out.headers.emplace_back("Content-Disposition",
                             fmt::format("attachment; filename=\"{}.log\"", name));
    return out;
}

/// Of Ray's, those that mean something here. Ray's own client sends others empty.
void check_fields(const skein::json& body) {
    constexpr std::array<std::string_view, 8> known{
        "entrypoint",           "submission_id",       "job_id",
        "entrypoint_num_cpus",  "entrypoint_num_gpus", "entrypoint_memory",
        "entrypoint_resources", "runtime_env"};
    for (const auto& [name, value] : body.items()) {
        const bool is_empty = value.is_null() || (value.is_structured() && value.empty());
        if (std::find(known.begin(), known.end(), name) == known.end() && !is_empty)
            throw error(errc::not_supported,
                        fmt::format("not supported: {}", skein::printable(name)))
                .with_hint(fmt::format("fields that are read: {}", fmt::join(known, ", ")));
    }
}

cluster::job_request request_of(const net::http_call& call) {
    const auto read = skein::parse_json(call.request.body);
    if (!read)
        throw error(errc::invalid_argument, "the body is no JSON").with_cause(read.error().what());
    const auto& body = *read;
    if (!body.is_object() || !body.contains("entrypoint") || !body["entrypoint"].is_string())
        throw error(errc::invalid_argument, "the body is no JSON object with an entrypoint")
            .with_hint(R"(e.g. {"entrypoint": "./train --workers 2"})");
    const auto number = [&](const char* name, double other) {
        if (!body.contains(name) || body[name].is_null()) return other;
        if (!body[name].is_number())
            throw error(errc::invalid_argument, fmt::format("{} is no number", name));
        return body[name].template get<double>();
    };
    const auto text = [&](const char* name) {
        if (!body.contains(name) || body[name].is_null()) return std::string();
        if (!body[name].is_string())
            throw error(errc::invalid_argument, fmt::format("{} is no text", name));
        return body[name].get<std::string>();
    };
    const auto object = [&](const char* name) {
        if (!body.contains(name) || body[name].is_null()) return skein::json::object();
        if (!body[name].is_object())
            throw error(errc::invalid_argument, fmt::format("{} is no object", name));
        return body[name];
    };
    check_fields(body);
    cluster::job_request out;
    out.command = {"/bin/sh", "-c", text("entrypoint")};
    if (out.command.back().empty()) throw error(errc::invalid_argument, "the entrypoint is empty");
    out.id = text("submission_id").empty() ? text("job_id") : text("submission_id");
    out.demand = fmt::format("cpu={:.4f}", number("entrypoint_num_cpus", 1));
    if (const auto gpus = number("entrypoint_num_gpus", 0); gpus != 0)
        out.demand += fmt::format(",gpu={:.4f}", gpus);
    if (const auto memory = number("entrypoint_memory", 0); memory != 0)
        out.demand += fmt::format(",memory={:.0f}", memory);
    const auto resources = object("entrypoint_resources"), environment = object("runtime_env");
    for (const auto& [name, value] : resources.items()) {
        if (!value.is_number())
            throw error(errc::invalid_argument, "a resource of the entrypoint is no number");
        out.demand += fmt::format(",{}={:.4f}", name, value.get<double>());
    }
    for (const auto& [name, value] : environment.items()) {
        if (name != "env_vars")
            throw error(errc::not_supported,
                        fmt::format("not supported: runtime_env.{}", skein::printable(name)))
                .with_hint("skein job submit --working-dir sends a folder along");
        if (!value.is_object()) throw error(errc::invalid_argument, "env_vars is no object");
        for (const auto& [key, word] : value.items()) {
            if (!word.is_string())
                throw error(errc::invalid_argument,
                            fmt::format("env_vars.{} is no text", skein::printable(key)));
            out.env.push_back(key + "=" + word.get<std::string>());
        }
    }
    out.by = "HTTP";
    return out;
}

/// Large answers that many ask for: made once for each state that they show.
class answer_memory {
public:
    /// question   what was asked; the same state gives it the same answer
    template <class Make>
    wire::http_response get(const std::string& question, const std::string& state, Make make) {
        const auto same = [&](const entry& e) { return e.question == question; };
        auto found = std::find_if(known_.begin(), known_.end(), same);
        if (found != known_.end() && found->state == state) return found->answer;
        auto answer = make();
        if (answer.body.size() > most_bytes) return answer;
        if (found != known_.end()) known_.erase(found);
        if (known_.size() == most) known_.pop_front();
        known_.push_back({question, state, answer});
        return answer;
    }

private:
    static constexpr std::size_t most = 8, most_bytes = std::size_t{1} << 20;
    struct entry {
        std::string question, state;
        wire::http_response answer;
    };
    std::deque<entry> known_; ///< the newest last
};

class dashboard final : public cluster::head_web {
public:
    dashboard(cluster::head& of, const net::token& secret)
        : head_(of), server_(routes(), options(of, secret)) {}

    task<void> serve(std::unique_ptr<net::stream> with, skein::byte_buffer first,
                     net::admission* place) override {
        return server_.serve(std::move(with), std::move(first), place);
    }
    std::string login_link() override { return server_.login_link(net::http_right::change); }

private:
    static net::http_server_options options(cluster::head& of, const net::token& secret) {
        net::http_server_options how;
        how.keys.view = http_key(secret, net::key_kind::view);
        how.keys.submit = http_key(secret, net::key_kind::submit);
        how.cluster = how.keys.view.substr(0, 8);
        const auto at = of.local();
        if (!at.host.empty()) how.hosts.push_back(at.host);
        how.hosts.push_back(skein::proc::host_name());
        return how;
    }

    net::http_router routes() {
        net::http_router out;
        add_page(out);
        add_ray_jobs(out);
        add_own(out);
        out.add("GET", "/metrics", net::http_right::view, now([this](const net::http_call&) {
                    wire::http_response text;
                    text.type = "text/plain; version=0.0.4; charset=utf-8";
                    text.body = metrics_text(head_);
                    return text;
                }));
        return out;
    }

    /// The job API of Ray 2, as far as it fits.
    void add_ray_jobs(net::http_router& to) {
        using net::http_right;
        to.add("GET", "/api/version", http_right::view, now([](const net::http_call&) {
                   return json(
                       {{"version", "4"},
                        {"skein_version", fmt::format("{}.{}.{}", SKEIN_VERSION_MAJOR,
                                                      SKEIN_VERSION_MINOR, SKEIN_VERSION_PATCH)}});
               }));
        to.add("GET", "/api/jobs/", http_right::view, now([this](const net::http_call&) {
                   auto all = skein::ordered_json::array();
                   for (const auto& job : head_.jobs().jobs) all.push_back(ray_json_of(job));
                   return json(all);
               }));
        to.add("POST", "/api/jobs/", http_right::change,
               [this](net::http_call call) { return submit(this, std::move(call)); });
        to.add("GET", "/api/jobs/{id}", http_right::view, now([this](const net::http_call& c) {
                   return json(ray_json_of(head_.jobs(c.part("id")).jobs.at(0)));
               }));
        to.add("GET", "/api/jobs/{id}/logs", http_right::view, now([this](const net::http_call& c) {
                   return json({{"logs", lines_text(head_, c.part("id"))}});
               }));
        to.add("POST", "/api/jobs/{id}/stop", http_right::change,
               now([this](const net::http_call& c) {
                   const auto was = head_.jobs(c.part("id")).jobs.at(0);
                   (void)head_.end_job(c.part("id"), "HTTP");
                   return json({{"stopped", !cluster::is_over(cluster::state_of(was))}});
               }));
        to.add("DELETE", "/api/jobs/{id}", http_right::change, now([this](const net::http_call& c) {
                   head_.forget_job(c.part("id"));
                   return json({{"deleted", true}});
               }));
    }

    static task<net::http_answer> submit(dashboard* self, net::http_call call) {
        auto what = request_of(call);
        auto submitting = self->head_.submit(std::move(what));
        const auto taken = co_await submitting;
        co_return json({{"job_id", taken.id}, {"submission_id", taken.id}});
    }

    /// A head that cannot open its storage has none, and says so to who fetches them.
    static task<net::http_answer> job_with_results(dashboard* self, std::string id) {
        auto listing = skein::as_result(self->head_.job_results(id));
        const auto kept = co_await listing;
        const auto job = self->head_.jobs(id).jobs.at(0);
        auto out = json_of(job);
        add_course(out, job, self->head_.course(id));
        out["results"] = results_json(kept ? *kept : std::vector<cluster::stored_set>());
        co_return json(out);
    }

    /// A job's lines from the first one on, also those that only its node has.
    static task<net::http_answer> whole_log(dashboard* self, std::string id) {
        if (self->logs_ == most_logs)
            throw error(errc::exhausted, fmt::format("{} logs are being read", most_logs))
                .with_hint("try again in a moment, or use skein job logs");
        const skein::one_more here(self->logs_);
        auto out = log_file(id);
        for (std::uint64_t from = 1;;) {
            auto reading = self->head_.job_log_from(id, from);
            auto said = co_await reading;
            if (said.first > from && !said.lines.empty())
                out.body += fmt::format("... lines {} to {} are gone\n", from, said.first - 1);
            from = said.first + said.lines.size();
            for (const auto& line : said.lines) out.body += line.text + "\n";
            if (said.is_all || said.lines.empty()) co_return out;
            if (out.body.size() < most_log_bytes) continue;
            out.body +=
                fmt::format("... the log goes on with line {}: skein job logs {}\n", from, id);
            co_return out;
        }
    }

    wire::http_response samples_of(const net::http_call& call, const std::string& node) {
        const auto from = moment_of(call);
        const auto points = number_of(call, "points", 4096);
        return samples_.get(fmt::format("{} {} {}", from, points, node), samples_now(), [&] {
            return json(samples_json(node, head_.usage_since(node, from, points)));
        });
    }
    wire::http_response all_samples_of(const net::http_call& call) {
        const auto from = moment_of(call);
        const auto points = number_of(call, "points", 60), after = number_of(call, "after", 0);
        return samples_.get(fmt::format("{} {} {}/", from, points, after), samples_now(),
                            [&] { return json(all_samples_json(head_, from, points, after)); });
    }
    [[nodiscard]] std::string samples_now() const {
        return fmt::format("{} {}", head_.usage_changes(), head_.node_changes());
    }
    wire::http_response rows_of_job(const net::http_call& call) {
        const auto table = head_.job_table(call.part("id"));
        const auto points = number_of(call, "points", 4096), from = number_of(call, "from", 0),
                   edition = number_of(call, "edition", 0);
        return rows_.get(fmt::format("{} {} {} {}", points, from, edition, call.part("id")),
                         fmt::format("{} {} {}", table.edition, table.text.size(), table.run),
                         [&] { return json(rows_json(table, points, from, edition)); });
    }

    void add_own(net::http_router& to) {
        using net::http_right;
        to.add("GET", "/api/v1/nodes", http_right::view, now([this](const net::http_call&) {
                   return json(nodes_json(head_.status(), head_.usage()));
               }));
        to.add("GET", "/api/v1/nodes/{name}/samples", http_right::view,
               now(reads({"seconds", "from", "points"}, [this](const net::http_call& c) {
                   return samples_of(c, c.part("name"));
               })));
        const std::vector<std::string_view> of_samples{"node", "seconds", "from", "points",
                                                       "after"};
        to.add("GET", "/api/v1/samples", http_right::view,
               now(reads(of_samples, [this](const net::http_call& c) {
                   // A name with a slash is no part of a path.
                   if (const auto* const node = c.request.parameter("node"); node != nullptr)
                       return samples_of(c, *node);
                   return all_samples_of(c);
               })));
        to.add("GET", "/api/v1/programs", http_right::view, now([this](const net::http_call&) {
                   return json(programs_json(head_.status(), head_.counts().by_program));
               }));
        to.add("GET", "/api/v1/jobs", http_right::view,
               now(reads({"cursor", "limit", "filter", "find"}, [this](const net::http_call& c) {
                   const auto first = number_of(c, "cursor", 0), most = number_of(c, "limit", 100);
                   const auto* const filter = c.request.parameter("filter");
                   const auto* const text = c.request.parameter("find");
                   return json(jobs_json(head_.jobs(), first, most,
                                         filter == nullptr ? "" : *filter,
                                         text == nullptr ? "" : *text));
               })));
        to.add("GET", "/api/v1/jobs/{id}", http_right::view,
               [this](net::http_call c) { return job_with_results(this, c.part("id")); });
        to.add("GET", "/api/v1/jobs/{id}/rows", http_right::view,
               with_table(now(reads({"points", "from", "edition"},
                                    [this](const net::http_call& c) { return rows_of_job(c); }))));
        to.add("GET", "/api/v1/jobs/{id}/lines", http_right::view,
               now(reads({"from", "last", "bytes"}, [this](const net::http_call& c) {
                   return json(lines_json(head_, c.part("id"), number_of(c, "from", 0),
                                          number_of(c, "last", 1000),
                                          number_of(c, "bytes", 65'536)));
               })));
        to.add("GET", "/api/v1/jobs/{id}/log", http_right::view,
               [this](net::http_call c) { return whole_log(this, c.part("id")); });
        to.add("GET", "/api/v1/session", http_right::view, now([](const net::http_call& c) {
                   return json({{"may", net::to_string(c.right)}});
               }));
        const auto refuse = [&](const char* path, const char* what, const char* hint) {
            to.add("GET", path, http_right::view,
                   now([what, hint](const net::http_call&) -> wire::http_response {
                       throw error(errc::not_supported, fmt::format("not supported: {}", what))
                           .with_hint(hint);
                   }));
        };
        refuse("/api/v1/functions", "calls by function: drivers tell how many calls they have made",
               "/api/v1/programs has these numbers");
        refuse("/api/v1/actors", "a list of actors: programs and namespaces know theirs",
               "/api/v1/programs has the namespaces");
        refuse("/api/v1/logs", "logs of nodes and of workers: a driver prints what its workers say",
               "/api/v1/jobs/ID/lines has what a job prints");
        to.add("GET", "/api/v1/events", http_right::view, now([this](const net::http_call&) {
                   return net::http_answer(net::http_events(
                       [this](std::string last) { return next_event(this, std::move(last)); }));
               }));
    }

    /// The same handler, when the table of a job that has ended before was looked for on its node.
    net::http_handler with_table(net::http_handler answer) {
        auto then = std::make_shared<net::http_handler>(std::move(answer));
        return [this, then](net::http_call c) { return find_first(this, then, std::move(c)); };
    }
    static task<net::http_answer> find_first(dashboard* self,
                                             std::shared_ptr<net::http_handler> then,
                                             net::http_call call) {
        auto finding = self->head_.find_job_table(call.part("id"));
        (void)co_await finding;
        auto answering = (*then)(std::move(call));
        co_return co_await answering;
    }

    /// That something has changed, once a second at most.
    static task<std::optional<net::http_event>> next_event(dashboard* self, std::string last) {
        for (;;) {
            const auto nodes = self->head_.node_changes();
            const auto changes = self->head_.changes() + nodes;
            const auto samples = self->head_.usage_changes();
            const auto now_is = fmt::format("{}.{}", changes, samples);
            if (last != now_is)
                co_return net::http_event(fmt::format(R"({{"changes":{},"nodes":{},"samples":{}}})",
                                                      changes, nodes, samples),
                                          now_is);
            co_await skein::sleep_for(std::chrono::seconds(1));
        }
    }

    cluster::head& head_;
    net::http_server server_;
    answer_memory samples_, rows_;
    int logs_ = 0; // that are being read
};

} // namespace

std::shared_ptr<cluster::head_web> make_dashboard(cluster::head& of,
                                                  const skein::net::token& secret) {
    return std::make_shared<dashboard>(of, secret);
}

} // namespace skein_program
