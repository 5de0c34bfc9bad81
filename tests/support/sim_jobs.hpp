// SPDX-License-Identifier: Apache-2.0
#pragma once
// Jobs in the simulated cluster: entry processes that do what their arguments say, and a tool that
// submits and follows.
//
//     test::sim_jobs jobs;                        // outlives the world
//     jobs.attach(c);
//     jobs.add_node(2);
//     auto running = jobs.run(what);              // what.command = {"/bin/sh", "print", "3", "exit", "0"}
//     const auto said = co_await running;         // said.end, said.lines

#include <skein/cluster/detail/ask_head.hpp>
#include <skein/cluster/jobs.hpp>
#include <tests/support/sim_nodes.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::test {

/// Must outlive the loop's run.
class sim_jobs {
public:
    /// What a follower has heard of a job.
    struct story {
        cluster::job_info end;
        std::vector<std::string> lines;
        std::uint64_t left_out = 0;
        bool in_order = true; ///< lines that begin with their number have it
    };

    /// What an attempt's entry processes did.
    struct attempt_record {
        int starts = 0;
        std::uint64_t printed = 0; ///< lines
        int code = -1;             ///< that it gave; -1: none
        int others = 0;            ///< entry processes of its job that ran already when it began
        time_point began{};
    };

    void attach(sim_nodes& c) { c_ = &c; }
    /// By job and attempt.
    [[nodiscard]] const std::map<std::pair<std::string, std::uint32_t>, attempt_record>& attempts()
        const {
        return attempts_;
    }

    sim_nodes::node& add_node(int cpus) {
        auto& n = c_->add_node(cpus);
        with_entries(n);
        return n;
    }
    /// Entry processes can be started there.
    void with_entries(sim_nodes::node& n) {
        auto* const children = n.children.get();
        children->add("", [this, children](sim::process* self) {
            return entry_program(this, children, self);
        });
    }
    task<void> until_nodes(std::size_t n) {
        while (c_->head().status().nodes.size() != n)
            co_await sleep_for(std::chrono::milliseconds(10));
        co_await sleep_for(std::chrono::milliseconds(100));
    }
    /// Entry processes of it that run now.
    [[nodiscard]] int alive(const std::string& id) const {
        const auto found = alive_.find(id);
        return found == alive_.end() ? 0 : found->second;
    }
    /// Its attempts, as they started.
    [[nodiscard]] std::vector<int> starts_of(const std::string& id) const {
        std::vector<int> out;
        for (const auto& [which, had] : attempts_)
            if (which.first == id)
                out.insert(out.end(), static_cast<std::size_t>(had.starts),
                           static_cast<int>(which.second));
        return out;
    }

    // ---- what a tool asks ----------------------------------------------------------------------

    [[nodiscard]] cluster::tool_options as_tool() const {
        cluster::tool_options how;
        how.head = sim_nodes::head_address();
        how.secret = c_->secret();
        how.host = "tool";
        how.pid = 1;
        return how;
    }
    task<cluster::submit_reply> submit(cluster::job_request what) {
        return cluster::ask_to_submit(tool(), as_tool(), std::move(what));
    }
    task<cluster::stop_job_reply> stop(std::string id, bool forget = false) {
        return cluster::ask_to_stop_job(tool(), as_tool(), std::move(id), forget);
    }
    task<cluster::job_list> list(std::uint32_t first = 0, std::uint32_t most = 0) {
        cluster::ask_jobs asked;
        asked.first = first;
        asked.most = most;
        return cluster::detail::ask_head<cluster::job_list>(&tool(), as_tool(), std::move(asked));
    }
    task<cluster::job_info> info(std::string id) {
        auto asking = cluster::ask_for_jobs(tool(), as_tool(), std::move(id));
        auto all = co_await asking;
        co_return std::move(all.jobs.at(0));
    }
    task<cluster::job_lines> lines(std::string id, std::uint64_t from, std::uint8_t known = 255,
                                   duration most = std::chrono::seconds(10)) {
        return cluster::ask_for_lines(tool(), as_tool(), std::move(id), from, known, most);
    }
    /// Until it is in that state; an error when it has ended in another one.
    task<cluster::job_info> until(std::string id, cluster::job_state state) {
        constexpr std::uint64_t far = std::uint64_t{1} << 40; // no line is news
        std::uint8_t known = 255;
        for (;;) {
            auto asking = lines(id, far, known);
            auto said = co_await asking;
            known = said.now.state;
            if (cluster::state_of(said.now) == state) co_return std::move(said.now);
            if (cluster::is_over(cluster::state_of(said.now)))
                throw error(errc::internal,
                            fmt::format("{} has ended as {}: {}", id,
                                        to_string(cluster::state_of(said.now)), said.now.reason));
        }
    }
    /// All that it prints, to its end.
    task<story> follow(std::string id, std::uint64_t from = 1) {
        story out;
        auto next = from;
        const auto hear = [&](const cluster::job_lines& said) {
            if (said.first > next) out.left_out += said.first - next;
            next = said.first + said.lines.size();
            auto number = said.first;
            for (const auto& line : said.lines) {
                out.lines.push_back(line.text);
                out.in_order = out.in_order && line.text == std::to_string(number++);
            }
        };
        auto following = cluster::follow_to_end(tool(), as_tool(), std::move(id), from, hear);
        out.end = co_await following;
        co_return out;
    }
    task<story> run(cluster::job_request what) {
        auto submitting = submit(std::move(what));
        auto taken = co_await submitting;
        auto following = follow(std::move(taken.id));
        co_return co_await following;
    }
    /// "not_found: there is no job"; "": it was not refused.
    template <class T>
    task<std::string> refusal_of(task<T> asked) {
        auto answer = as_result(std::move(asked));
        const auto outcome = co_await answer;
        if (outcome) co_return std::string();
        co_return fmt::format("{}: {}", to_string(outcome.error().code()), outcome.error().text());
    }

    [[nodiscard]] net::network& tool() { return c_->network().host("tool"); }
    bool was_asked = false; ///< see ask_head_once

private:
    /// Of a job's entry processes, while it is there.
    class one_more {
    public:
        explicit one_more(int* of) : of_(of), others_((*of)++) {}
        one_more(const one_more&) = delete;
        one_more& operator=(const one_more&) = delete;
        ~one_more() { --*of_; }
        [[nodiscard]] int others() const noexcept { return others_; }

    private:
        int* of_;
        int others_;
    };

    static std::string variable(const sim::process& self, const std::string& name) {
        std::string out; // of several the last one counts
        for (const auto& [key, value] : self.started_with().env)
            if (key == name) out = value;
        return out;
    }

    /// SIGTERM does nothing; SIGKILL closes what a process listens on.
    static task<void> sleep_deaf(sim::process* self, duration length) {
        const auto listener = self->network().listen(net::address::sim(self->host(), 0));
        auto waiting = as_result(shield(with_timeout(listener->accept(), length)));
        const auto woken = co_await waiting;
        if (!woken && woken.error().code() != errc::timeout) throw woken.error(); // it is dead
    }

    /// Numbered lines; `talk` says of which attempt they are.
    static task<void> say(sim::process* self, attempt_record* had, std::string before, int lines) {
        std::string text;
        std::uint64_t said = 0; // in `text`
        for (int i = 1; i <= lines; ++i) {
            ++said;
            const auto number =
                before.empty() ? static_cast<std::uint64_t>(i) : had->printed + said;
            text += before + std::to_string(number) + "\n";
            if (i != lines && text.size() < 4000) continue;
            auto printing = self->print(false, std::exchange(text, {}));
            co_await printing;
            if (self->is_killed()) co_return; // in the moment in which it was to go on
            had->printed += std::exchange(said, 0);
        }
    }
    static std::string all_variables(const sim::process& self) {
        std::string text;
        for (const auto& [name, value] : self.started_with().env) text += name + "=" + value + "\n";
        return text;
    }

    static task<int> entry_program(sim_jobs* all, sim::children* in, sim::process* self) {
        const auto attempt =
            static_cast<std::uint32_t>(std::stoi(variable(*self, "SKEIN_JOB_ATTEMPT")));
        co_await sleep_for(std::chrono::microseconds(1)); // killed as it began: it ends here
        const auto job = variable(*self, "SKEIN_JOB");
        auto& had = all->attempts_[{job, attempt}];
        ++had.starts;
        had.began = all->c_->loop().now();
        const one_more living(&all->alive_[job]);
        had.others = living.others();
        auto doing = act(in, self, &had, static_cast<int>(attempt));
        const int code = co_await doing;
        had.code = code;
        co_return code;
    }

    static task<int> act(sim::children* in, sim::process* self, attempt_record* had, int attempt) {
        const auto words = self->started_with().argv;
        bool is_deaf = false;
        for (std::size_t at = 1; at < words.size(); ++at) {
            const auto& word = words[at];
            const auto number = [&] { return std::stoi(words.at(++at)); };
            if (word == "print" || word == "talk") {
                const auto before = word == "talk" ? fmt::format("{} ", attempt) : std::string();
                auto saying = say(self, had, before, number());
                co_await saying;
            } else if (word == "sleep") {
                const auto length = std::chrono::milliseconds(number());
                auto sleeping = is_deaf ? sleep_deaf(self, length) : sleep(length);
                co_await sleeping;
            } else if (word == "env") {
                auto printing = self->print(false, all_variables(*self));
                co_await printing;
            } else if (word == "ignore") {
                is_deaf = true;
            } else if (word == "die") {
                in->kill(self->pid());
                co_await sleep_for(std::chrono::seconds(1));
            } else if (word == "exit-after") {
                co_return attempt > number() ? 0 : 1;
            } else if (word == "exit") {
                co_return number();
            }
        }
        co_return 0;
    }
    static task<void> sleep(duration length) { co_await sleep_for(length); }

    sim_nodes* c_ = nullptr;
    std::map<std::pair<std::string, std::uint32_t>, attempt_record> attempts_;
    std::map<std::string, int> alive_; ///< entry processes, by job
};

} // namespace skein::test
