// SPDX-License-Identifier: Apache-2.0
// The bodies of drain_command.hpp.
#include "drain_command.hpp"

#include "drain_text.hpp"
#include "time_option.hpp"

#include <skein/core/clock.hpp>
#include <skein/core/error.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/printable.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/real_loop.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein_program {
namespace {

using skein::cluster::drain_reply;
using skein::cluster::drained_lease;

constexpr auto look_every = std::chrono::milliseconds(200);
/// What was ended by force has a moment to be gone.
constexpr auto gone_within = std::chrono::seconds(10);

/// Until it is time to look again.
void wait_to_look() {
    skein::net::real_loop loop;
    loop.run([]() -> skein::task<void> { co_await skein::sleep_for(look_every); }());
}

/// To people, unless a program reads.
void say(const drain_arguments& args, const std::string& text) {
    if (args.json) return;
    fmt::print("{}", text);
    std::fflush(stdout);
}

void say_notes(const drain_arguments& args, const drain_reply& now) {
    if (!now.not_durable.empty())
        skein::write_notice(
            fmt::format("skein drain: a head that is started again will not know of it: {}\n",
                        skein::printable(now.not_durable)));
    if (now.open == 0 && !now.missing)
        skein::write_notice(fmt::format(
            "skein drain: it was the last one: no node takes workers now, and what programs ask "
            "for waits; skein join adds a node, skein drain {} --undo takes this back\n",
            args.node));
}

std::string first_text(const drain_arguments& args, const drain_reply& now) {
    if (now.missing)
        return fmt::format("node {} is missing; it takes {} when it comes\n", args.node,
                           args.undo ? "workers" : "no workers");
    if (args.undo) return fmt::format("node {} takes new workers again\n", args.node);
    const auto until = now.left_ms < 0 ? std::string()
                                       : fmt::format(", it is to be empty in {:.3g} s",
                                                     static_cast<double>(now.left_ms) / 1000);
    return fmt::format("node {} takes no new workers{}; {} there\n", args.node, until,
                       now.workers == 1 ? "1 still runs"
                                        : fmt::format("{} still run", now.workers)) +
           leases_text(now);
}

/// The end of a wait, for people; empty: it goes on.
std::string end_text(const drain_arguments& args, const drain_reply& now, bool is_late) {
    if (now.missing) return fmt::format("node {} has left the cluster\n", args.node);
    if (now.workers == 0) return fmt::format("{} is empty\n", args.node);
    if (!now.draining)
        return fmt::format("the drain of {} was taken back; what still runs there stays: {}\n",
                           args.node, now.workers);
    if (now.left_ms < 0)
        return fmt::format("the drain has no deadline any more; {} still run on {}:\n{}",
                           now.workers, args.node, leases_text(now));
    if (!is_late) return {};
    const auto next =
        now.force ? fmt::format("skein status shows whether {} still answers", args.node)
        : now.open == 0
            ? fmt::format("skein join adds a node that they can go to; skein drain {} --undo takes "
                          "the drain back",
                          args.node)
            : fmt::format("the drain goes on; skein drain {0} --within 30s --force ends them, "
                          "skein drain {0} --undo takes it back",
                          args.node);
    return fmt::format("{} is not empty; what stays:\n{}next: {}\n", args.node, leases_text(now),
                       next);
}

bool has_unanswered(const drain_reply& now) {
    return std::any_of(now.leases.begin(), now.leases.end(), [](const auto& l) {
        return l.word == static_cast<std::uint8_t>(skein::cluster::leave_word::none);
    });
}

int wait_until_empty(const drain_arguments& args, skein::cluster::tool_options how, drain_reply now,
                     std::vector<drained_lease> left) {
    how.patience = std::chrono::seconds(60); // the head may be started again meanwhile
    how.on_wait = [](const skein::error& why, skein::time_span) {
        skein::write_notice(fmt::format("skein drain: the head is away: {}\n", why.what()));
    };
    skein::system_clock clock;
    auto late_after = skein::time_point::max();
    for (bool is_late = false;;) {
        const auto time = clock.now();
        if (now.left_ms == 0 && late_after == skein::time_point::max())
            late_after =
                time + (now.force ? skein::duration(gone_within) : skein::duration(look_every));
        if (now.left_ms > 0) late_after = skein::time_point::max();
        is_late = time >= late_after;
        if (const auto end = end_text(args, now, is_late); !end.empty()) {
            say(args, end);
            if (args.json) fmt::print("{}", drain_json(args.node, now, left));
            return now.missing || now.workers == 0 ? skein::exit_code::done
                                                   : skein::exit_code::failed;
        }
        wait_to_look();
        auto next = skein::cluster::look_at_drain(how, args.node);
        for (auto& one : left_since(now, next)) {
            say(args, fmt::format("  left   {}\n", lease_text(one)));
            left.push_back(std::move(one));
        }
        now = std::move(next);
    }
}

} // namespace

void declare_drain(CLI::App& drain, drain_arguments& args) {
    drain.add_option("node", args.node, "its name, as skein status shows it")->required();
    auto* const undo = drain.add_flag("--undo", args.undo, "it takes workers again");
    auto* const forget =
        drain.add_flag("--forget", args.forget, "a node that is missing is no more listed")
            ->excludes(undo);
    auto* const within =
        drain
            .add_option("--within", args.within,
                        "it is to be empty after so long: 30s, 10m; waits for that, and says what "
                        "leaves (default: what runs there may end by itself)")
            ->excludes(undo)
            ->excludes(forget)
            ->check([](const std::string& value) {
                return value.empty() ? "it is empty; leave it out for no deadline" : "";
            });
    drain.add_flag("--force", args.force, "then what stays is ended; it goes with --within")
        ->needs(within);
    drain.add_flag("--json", args.json, "one JSON object, at the end");
}

void check_drain(const drain_arguments& args) { (void)read_time(args.within, "--within"); }

int run_drain(const drain_arguments& args, skein::cluster::tool_options how) {
    if (args.forget) {
        (void)skein::cluster::forget_node(how, args.node);
        say(args, fmt::format("node {} is forgotten\n", args.node));
        return skein::exit_code::done;
    }
    skein::cluster::drain_wish wish{args.node, {}, args.force};
    if (!args.within.empty())
        wish.within = std::chrono::milliseconds(read_time(args.within, "--within"));
    auto now = args.undo ? skein::cluster::drain_node(how, args.node, false)
                         : skein::cluster::drain_node(how, wish);
    const auto notes = now;
    std::vector<drained_lease> left;
    if (wish.within && has_unanswered(now)) { // drivers have just been asked
        wait_to_look();
        auto next = skein::cluster::look_at_drain(how, args.node);
        left = left_since(now, next);
        now = std::move(next);
    }
    say(args, first_text(args, now));
    for (const auto& one : left) say(args, fmt::format("  left   {}\n", lease_text(one)));
    say_notes(args, notes);
    if (wish.within && !now.missing)
        return wait_until_empty(args, std::move(how), now, std::move(left));
    if (args.json) fmt::print("{}", drain_json(args.node, now, {}));
    return skein::exit_code::done;
}

} // namespace skein_program
