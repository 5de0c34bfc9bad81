// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/result_sender.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/head_runs.hpp>
#include <skein/cluster/job_storage.hpp>
#include <skein/cluster/package_store.hpp>
#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/sleep.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/offload.hpp>

#include <chrono>
#include <optional>
#include <stop_token>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

struct stop_at_end {
    std::stop_source source;
    explicit stop_at_end(std::stop_source of) : source(std::move(of)) {}
    stop_at_end(const stop_at_end&) = delete;
    stop_at_end& operator=(const stop_at_end&) = delete;
    ~stop_at_end() { source.request_stop(); }
};

/// Why some of them are not kept; "": all are.
[[nodiscard]] inline std::string text_of_left_out(const result_files& found) {
    const auto all = found.changed + found.unread;
    if (all == 0) return {};
    return fmt::format("{} of {} files {} left out: {}", all, all + found.files.entries.size(),
                       all == 1 ? "is" : "are", found.first_unread);
}

SKEIN_INLINE result_question result_sender::question_of(const start_worker_order& order,
                                                        const job_place& place) {
    result_question out;
    if (!place.has_own_folder) return out;
    out.folder = place.folder;
    out.runs = "runs";
    for (const auto& v : order.variables) {
        const auto split = v.find('=');
        if (split == v.npos) continue;
        if (v.compare(0, split, runs_variable) == 0) out.runs = v.substr(split + 1);
        if (v.compare(0, split, results_variable) == 0)
            out.patterns = read_result_patterns(v.substr(split + 1));
    }
    if (!check_package_path(out.runs)) out.runs.clear();
    return out;
}

/// Gives why not all of it is kept; "": all is, or there is none.
SKEIN_INLINE task<std::string> result_sender::send_once(result_sender* self, attempt of) {
    auto looking = net::offload([question = of.question, kept = self->storage_,
                                 package = of.package, token = of.reading.get_token()] {
        auto brought = package.empty() ? std::nullopt : kept->get().packages->find(package);
        return find_results(question, brought ? &*brought : nullptr, token);
    });
    auto finding = as_result(std::move(looking));
    auto found = co_await finding;
    if (!found && found.error().code() == errc::cancelled) throw found.error();
    head_runs<head_link> store(&self->head_, of.job, of.lease);
    stored_set set;
    set.name = of.name;
    if (!found) {
        set.trouble = "no results are kept: " + found.error().text();
    } else {
        set.trouble = text_of_left_out(*found);
        if (found->files.entries.empty() && set.trouble.empty()) co_return std::string();
        if (!found->files.entries.empty()) {
            co_await self->turns_.acquire();
            auto sending =
                as_result(send_set(&store, of.question.folder, std::move(found->files), set));
            const auto sent = co_await sending;
            self->turns_.release();
            if (sent) co_return set.trouble;
            const auto code = sent.error().code();
            if (code == errc::cancelled || code == errc::aborted || !self->head_.is_joined())
                throw sent.error();
            set.trouble = "no results are kept: " + sent.error().text();
        }
    }
    auto telling = store.commit(set);
    co_await telling;
    co_return set.trouble;
}

/// What the pool reads does not hear of a cancellation, and is waited for.
inline task<void> stop_when_cancelled(std::stop_source reading) {
    const stop_at_end at_end(std::move(reading));
    event never;
    co_await never.wait();
}

/// An agent that is to end does not wait for the rest of a large set.
inline task<void> give_up_in_time(results_deadline until, cancel_source* late) {
    co_await until.stopping->wait();
    co_await sleep_for(until.moment);
    late->request();
}

SKEIN_INLINE task<void> result_sender::try_in_time(result_sender* self, attempt of,
                                                   cancel_token stop, results_deadline until) {
    cancel_source late;
    scope beside;
    beside.spawn(give_up_in_time(until, &late));
    beside.spawn(with_cancel(late.token(), with_cancel(stop, stop_when_cancelled(of.reading))));
    auto trying = as_result(try_often(self, std::move(of), std::move(stop), late.token(), until));
    (void)co_await trying;
    beside.cancel();
    auto ending = as_result(shield(beside.join()));
    (void)co_await ending;
}

/// A head that is away may come back; a file that changes may come to rest.
SKEIN_INLINE task<void> result_sender::try_often(result_sender* self, attempt of, cancel_token stop,
                                                 cancel_token late, results_deadline until) {
    auto& on = loop::current();
    const auto begin = on.now();
    std::string trouble;
    bool is_told = true, is_tried = false;
    for (int tries = 0; tries < 3;) {
        const auto waited = on.now() - begin;
        if (*until.leaving || stop.requested() || waited >= until.patience ||
            (until.stopping->is_set() && waited >= until.moment))
            break;
        if (self->head_.is_joined()) {
            auto sending = as_result(with_cancel(late, with_cancel(stop, send_once(self, of))));
            auto sent = co_await sending;
            is_told = sent.has_value();
            is_tried = true;
            const bool is_given_up = !sent && sent.error().code() == errc::cancelled;
            trouble = sent          ? *sent
                      : is_given_up ? "no results are kept: a stop came while they were sent"
                                    : "no results are kept: " + sent.error().text();
            if (sent || is_given_up) break;
            if (self->head_.is_joined()) ++tries;
        }
        co_await sleep_for(std::chrono::milliseconds(100));
    }
    if (!is_tried && stop.requested() && !of.question.folder.empty()) {
        trouble = "no results are looked for: it was to end at once";
        is_told = false;
    }
    if (!is_told && self->head_.is_joined()) {
        head_runs<head_link> store(&self->head_, of.job, of.lease);
        stored_set none;
        none.name = of.name;
        none.trouble = trouble;
        auto telling = as_result(with_timeout(store.commit(std::move(none)), until.moment));
        (void)co_await telling;
    }
    if (!trouble.empty())
        logging::warn("agent", "results of a job are not all kept",
                      {{"job", of.job}, {"why", trouble}});
}

SKEIN_INLINE task<void> result_sender::send(const start_worker_order& order, const job_place& place,
                                            cancel_token stop, results_deadline until) {
    attempt of;
    of.question = question_of(order, place);
    of.job = order.job();
    of.name = fmt::format("attempt-{}", order.entry() != nullptr ? order.entry()->attempt : 0);
    of.package = order.package;
    of.lease = order.lease;
    if (of.question.folder.empty()) until.patience = duration(0); // there can be none
    return try_in_time(this, std::move(of), std::move(stop), until);
}

} // namespace skein::cluster::detail
