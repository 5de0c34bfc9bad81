// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who has no part in an elastic job. What is refused counts at its host: a host that has brought
// nothing but that is turned out with the reason, and the others never wait for it.

#include <skein/core/loop.hpp>
#include <skein/spmd/detail/elastic_parts.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd {

SKEIN_INLINE bool elastic_coordinator::is_own(const worker& which) const {
    return which.self.keeper == options_.id;
}

/// Another worker of its host was in a world before it.
SKEIN_INLINE bool elastic_coordinator::has_proved_itself(const worker& of) {
    return std::any_of(workers_.begin(), workers_.end(), [&](const auto& w) {
        const auto& other = *w.second;
        return &other != &of && other.self.keeper == of.self.keeper && other.first_view != 0 &&
               !other.is_refused && (of.first_view == 0 || other.first_view < of.first_view);
    });
}

SKEIN_INLINE bool elastic_coordinator::is_closed(const elastic_keeper& keeper) const {
    const auto found = records_.find(&keeper);
    if (found == records_.end() || keeper.places_later()) return false; // it is of many hosts
    return found->second.is_turned_out || found->second.refusals >= options_.max_refusals;
}

// ---- settings -----------------------------------------------------------------------------------

/// What later ones are measured by. Those that are ready and unlike it are refused.
SKEIN_INLINE void elastic_coordinator::measure_by(const worker& one,
                                                  std::vector<setting> settings) {
    settings_ = std::move(settings);
    has_settings_ = true;
    are_own_settings_ = is_own(one);
    for (auto* w : ready())
        if (auto differs = difference(static_cast<int>(w->self.id), w->settings, -1, settings_))
            refuse(*w, error(errc::mismatch, fmt::format("{} is unlike the others", name_of(*w)))
                           .with_cause(differs->what()));
}

/// The first one says what the job is; before the first view it is one of the coordinator's host,
/// as another host may be there by mistake.
SKEIN_INLINE void elastic_coordinator::heard_first_ask(worker& from,
                                                       std::vector<setting> settings) {
    from.settings = std::move(settings);
    from.is = stage::ready;
    from.ready_at = loop::current().now();
    const bool decides = view_.generation == 0 && is_own(from) && !are_own_settings_;
    if (!has_settings_ || decides) {
        measure_by(from, from.settings);
    } else if (auto differs =
                   difference(static_cast<int>(from.self.id), from.settings, -1, settings_)) {
        return refuse(from,
                      error(errc::mismatch, fmt::format("{} is unlike the others", name_of(from)))
                          .with_cause(differs->what()));
    }
    judge_lonely();
}

// ---- programs without a world -------------------------------------------------------------------

/// Its program has no Trainer of elastic ranks: each of its processes is a run of its own, and this
/// one is done. In a job that trains it is another program.
SKEIN_INLINE void elastic_coordinator::ended_without_world(worker& which) {
    which.is_alone = true;
    if (view_.generation == 0) return judge_lonely();
    which.is_alone = false;
    refuse(which, lonely(which));
}

SKEIN_INLINE error elastic_coordinator::lonely(const worker& which) const {
    return error(errc::mismatch, fmt::format("{} ended with 0 and has asked for no world, and the "
                                             "others train",
                                             name_of(which)))
        .with_hint("its program has no Trainer<Elastic<...>>, or returns before it: start the same "
                   "program on all hosts");
}

/// Before the first view: the programs of all hosts train, or none does. The coordinator's own host
/// says which.
SKEIN_INLINE void elastic_coordinator::judge_lonely() {
    bool trains = false, is_done = false, any = false, others_wait = false;
    for (const auto& [id, w] : workers_) {
        any = any || w->is_alone;
        others_wait = others_wait || !w->has_ended;
        if (!is_own(*w)) continue;
        trains = trains || (w->is == stage::ready && !w->has_ended);
        is_done = is_done || w->is_alone;
    }
    if (!any || over_ || view_.generation != 0) return;
    for (auto& [id, place] : workers_) {
        auto& w = *place;
        if (over_) return;
        if (trains && w.is_alone) {
            w.is_alone = false;
            if (is_own(w))
                count_failure(lonely(w), -1);
            else
                refuse(w, lonely(w));
        } else if (!trains && is_done && w.is == stage::ready && !w.has_ended && !is_own(w)) {
            refuse(w, error(errc::mismatch,
                            fmt::format("{} wants to train, and the program of host {} has ended "
                                        "without",
                                        name_of(w), own_host()))
                          .with_hint("start the same program on all hosts"));
        }
    }
    if (trains || others_wait) return;
    is_alone_ = true;
    finish(std::nullopt);
}

SKEIN_INLINE std::string elastic_coordinator::own_host() const {
    for (const auto* k : keepers_)
        if (k->id() == options_.id) return k->host();
    return "of the coordinator";
}

// ---- hosts --------------------------------------------------------------------------------------

SKEIN_INLINE void elastic_coordinator::refuse(worker& which, const error& why) {
    which.is = stage::leaving;
    if (!which.has_ended) send_end(which, false, why);
    // Others have come by mistake, but a job whose first host contradicts itself cannot begin.
    if (view_.generation == 0 && is_own(which)) return finish(why);
    count_refusal(which, why);
}

/// It does not count against the budget, but it would come again.
SKEIN_INLINE void elastic_coordinator::count_refusal(worker& which, error why) {
    which.is_refused = true;
    if (options_.on_failure) options_.on_failure(why, failures_, options_.max_failures);
    auto* const host = which.keeper;
    if (host == nullptr) return; // and its host is gone
    auto& record = records_[host];
    ++record.refusals;
    const bool lives = std::any_of(workers_.begin(), workers_.end(), [&](const auto& w) {
        return w.second->keeper == host && w.second->is == stage::member && !w.second->has_ended;
    });
    const bool may_stay =
        has_proved_itself(which) && (lives || record.refusals < options_.max_refusals);
    if (!is_own(which) && !may_stay) {
        const auto code = why.code() == errc::mismatch ? errc::mismatch : errc::usage;
        return turn_out(*host, error(code, why.what()));
    }
    ++bad_starts_;
    retry_at_ = deadline_after(loop::current().now(), options_.times.pause(bad_starts_));
    refused_ = std::move(why);
}

/// A host that has never had a worker in a world uses up nobody's budget but its own.
SKEIN_INLINE bool elastic_coordinator::count_bad_start(worker& which, const error& why) {
    auto* const host = which.keeper;
    if (host == nullptr || is_own(which) || has_proved_itself(which)) return false;
    last_loss_ = why;
    if (options_.on_failure) options_.on_failure(why, failures_, options_.max_failures);
    ++bad_starts_;
    retry_at_ = deadline_after(loop::current().now(), options_.times.pause(bad_starts_));
    if (++records_[host].bad_starts >= options_.max_refusals) turn_out(*host, why);
    return true;
}

/// Its supervisor says why and ends; its workers are no losses.
SKEIN_INLINE void elastic_coordinator::turn_out(elastic_keeper& host, const error& why) {
    if (std::exchange(records_[&host].is_turned_out, true)) return;
    for (auto& [id, w] : workers_) {
        if (w->keeper != &host || w->has_ended) continue;
        w->is = stage::leaving;
        kill(*w);
    }
    host.turn_out(
        error(why.code(), fmt::format("host {} has no part in job '{}'", host.host(), options_.job))
            .with_cause(why.what())
            .with_hint("start the same program with the same settings on all hosts; another job "
                       "wants a --rdzv-id of its own"));
    changed_.set();
}

/// Too few are there, and no host that is there can start another one.
SKEIN_INLINE void elastic_coordinator::finish_if_none_comes(time_point now) {
    if (!refused_ || any_starting() || places::any_waits(*this)) return;
    bool is_any_closed = false;
    for (const auto* k : keepers_) {
        if (is_closed(*k)) {
            is_any_closed = is_any_closed || !records_[k].is_turned_out;
            continue;
        }
        const auto used = std::count_if(workers_.begin(), workers_.end(), [&](const auto& w) {
            return w.second->keeper == k && !w.second->has_ended;
        });
        if (used < k->places() && !is_draining(*k)) return;
    }
    if (!is_any_closed) return; // a right host may come
    int all = 0;                // of the hosts that are still there
    for (const auto& [keeper, record] : records_)
        if (!record.is_turned_out) all += record.refusals;
    error why(refused_->code(),
              fmt::format("fewer than {} workers are there, and no others are started: {} were "
                          "refused",
                          options_.least, all));
    finish(std::move(why.with_cause(refused_->what())));
    kill_at_ = deadline_after(now, options_.times.stop_grace); // they may save
}

} // namespace skein::spmd
