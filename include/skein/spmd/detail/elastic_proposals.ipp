// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a coordinator does next: starts, asks, kills, and the next view.

#include <skein/core/check.hpp>
#include <skein/core/known_names.hpp>
#include <skein/core/loop.hpp>
#include <skein/net/network.hpp>
#include <skein/spmd/detail/elastic_parts.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd {

// ---- of the workers -----------------------------------------------------------------------------

SKEIN_INLINE elastic_coordinator::worker* elastic_coordinator::find(std::uint64_t id) {
    const auto found = workers_.find(id);
    return found == workers_.end() ? nullptr : found->second.get();
}
/// Those of the newest view that live and have not left its group, in the order of their ranks.
SKEIN_INLINE std::vector<elastic_coordinator::worker*> elastic_coordinator::members() {
    std::vector<worker*> all;
    for (const auto& m : view_.members) {
        auto* const w = find(m.id);
        if (w != nullptr && w->is == stage::member && !w->has_ended && !has_left(*w))
            all.push_back(w);
    }
    return all;
}
/// In the order in which they have asked.
SKEIN_INLINE std::vector<elastic_coordinator::worker*> elastic_coordinator::ready() {
    std::vector<worker*> all;
    for (auto& [id, w] : workers_)
        if (w->is == stage::ready && !w->has_ended) all.push_back(w.get());
    std::sort(all.begin(), all.end(), [](const worker* a, const worker* b) {
        return std::tuple(a->ready_at, a->self.id) < std::tuple(b->ready_at, b->self.id);
    });
    return all;
}
SKEIN_INLINE bool elastic_coordinator::has_left(const worker& which) const {
    if (which.left) return true;
    return which.is == stage::member && group_ && group_->generation == view_.generation &&
           group_->server->has_left(which.rank) && !group_->server->has_failed(which.rank);
}
/// A member of the newest view is done with the training: no view without it would be one.
SKEIN_INLINE bool elastic_coordinator::is_ending() {
    return std::any_of(view_.members.begin(), view_.members.end(), [this](const view_member& m) {
        const auto* const w = find(m.id);
        return w != nullptr && has_left(*w);
    });
}
SKEIN_INLINE bool elastic_coordinator::is_draining(const elastic_keeper& keeper) const {
    return std::find(draining_.begin(), draining_.end(), &keeper) != draining_.end();
}
SKEIN_INLINE bool elastic_coordinator::any_running() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& w) { return !w.second->has_ended; });
}
SKEIN_INLINE bool elastic_coordinator::any_starting() const {
    return std::any_of(workers_.begin(), workers_.end(), [](const auto& w) {
        return w.second->is == stage::starting && !w.second->has_ended && !w.second->place.waits;
    });
}
/// While the job stops, whoever is left saves.
SKEIN_INLINE int elastic_coordinator::least() const noexcept {
    return stop_signal_ != 0 ? 1 : options_.least;
}
SKEIN_INLINE std::string elastic_coordinator::name_of(const worker& which) const {
    if (options_.are_hosts) return "host " + which.self.host;
    if (which.self.host.empty()) return fmt::format("worker {}", which.self.id);
    if (which.self.pid == 0) return fmt::format("worker {} at {}", which.self.id, which.self.host);
    return fmt::format("worker {} (pid {} at {})", which.self.id, which.self.pid, which.self.host);
}
SKEIN_INLINE error elastic_coordinator::end_of(const worker& which) const {
    if (which.end.not_started) {
        auto why = *which.end.not_started;
        return error(why.code(), fmt::format("{} {}", name_of(which), which.end.how))
            .with_cause(why.what());
    }
    return detail::loss_of(fmt::format("{} {}", name_of(which), which.end.how), which.end.signal,
                           which.end.last_words);
}
SKEIN_INLINE void elastic_coordinator::kill(worker& which) {
    if (which.has_ended) return;
    which.killed_by_us = true;
    if (which.keeper != nullptr) which.keeper->kill(which.self.id);
}
SKEIN_INLINE void elastic_coordinator::send_end(worker& which, bool in_order, const error& why) {
    which.keeper->tell(which.self.id, detail::member_end::number,
                       wire::encode(detail::member_end{in_order, why}));
}
SKEIN_INLINE void elastic_coordinator::wake_at(time_point when) {
    wake_at_ = std::min(wake_at_, when);
}

// ---- what is to be done -------------------------------------------------------------------------

SKEIN_INLINE void elastic_coordinator::look(time_point now) {
    take_over(now);
    judge_group();
    judge_ends(now);
    watch_limits(now);
    if (over_) return look_at_end(now);
    if (stop_signal_ != 0 && view_.generation == 0)
        return finish(error(errc::cancelled, "the workers were still starting"));
    places::give_back(*this);
    start_missing(now);
    let_go(now);
    wish();
}

/// Members of the newest view whose supervisors have not come to this coordinator are lost.
SKEIN_INLINE void elastic_coordinator::take_over(time_point now) {
    if (take_over_until_ == time_point::min()) return;
    const auto is_there = [&](const view_member& m) { return find(m.id) != nullptr; };
    const bool all = std::all_of(view_.members.begin(), view_.members.end(), is_there);
    if (!all && now < take_over_until_) return wake_at(take_over_until_);
    take_over_until_ = time_point::min();
    news_.push_back("the coordinator was lost");
    was_refused_ = true; // nobody's failure
    mark_broken();
    for (std::size_t r = 0; r < view_.members.size(); ++r) {
        const auto& m = view_.members[r];
        if (is_there(m)) continue;
        auto w = std::make_unique<worker>();
        w->self = m;
        w->is = stage::member;
        w->rank = static_cast<int>(r);
        w->first_view = view_.generation;
        w->has_ended = true;
        w->ended_at = now;
        w->end.how = "did not come to the new coordinator";
        w->end.was_seen = false;
        workers_[m.id] = std::move(w);
    }
}

/// As many as are wanted, where there is room.
SKEIN_INLINE void elastic_coordinator::start_missing(time_point now) {
    if (stop_signal_ != 0 || take_over_until_ != time_point::min() || is_ending()) return;
    int there = 0;
    std::map<const elastic_keeper*, int> used;
    const bool has_failed = group_ && group_->outcome && group_->outcome->failure;
    for (const auto& [id, w] : workers_) {
        // Who has left the group is done, and the others soon are; an end without an error may be
        // one of those. Where one of the others was lost, they need company.
        const bool may_be_done = !has_failed && (has_left(*w) || (!w->judged && w->end.success()));
        if (w->has_ended && !may_be_done && !w->is_alone) continue;
        if (w->is == stage::leaving || w->leaves || w->place.is_asked_back)
            continue; // another one may come for it before
        ++there;
        if (!w->has_ended || w->is_alone) ++used[w->keeper];
    }
    for (; there < target_; ++there) {
        if (now < retry_at_) return wake_at(retry_at_);
        elastic_keeper* best = nullptr;
        for (auto* k : keepers_) {
            if (used[k] >= k->places() || is_draining(*k) || is_closed(*k)) continue;
            if (best == nullptr || used[k] < used[best]) best = k;
        }
        if (best == nullptr) return;
        auto w = std::make_unique<worker>();
        w->self.id = ++last_id_;
        w->place.waits = best->places_later();
        if (!w->place.waits) w->self.host = best->host();
        w->self.keeper = best->id();
        w->keeper = best;
        w->started_at = now;
        wake_at(deadline_after(now, options_.times.ready_limit));
        const auto id = w->self.id;
        workers_[id] = std::move(w);
        ++used[best];
        best->start(id);
    }
}

/// One that is no member yet: it hears it, or is ended.
SKEIN_INLINE void elastic_coordinator::send_away(worker& which) {
    const bool hears = which.is == stage::ready;
    which.is = stage::leaving;
    if (hears)
        send_end(which, true, error(errc::closed, "it is not wanted any more"));
    else
        kill(which);
}

/// More than are wanted: those that are no members yet go first, then the last ranks.
SKEIN_INLINE void elastic_coordinator::let_go(time_point now) {
    std::vector<worker*> stay;
    for (auto* w : members()) {
        if (std::exchange(w->is_let_go, false)) w->leaves = false; // it may be wanted again
        if (!w->leaves && !w->place.is_asked_back)
            stay.push_back(w); // else another one comes for it
    }
    // Who was told to go before it was a member goes at once: another one is started for it.
    for (auto& [id, w] : workers_)
        if (w->leaves && !w->has_ended && (w->is == stage::starting || w->is == stage::ready))
            send_away(*w);
    for (auto* w : ready()) stay.push_back(w);
    for (const bool waits : {false, true})
        for (auto& [id, w] : workers_)
            if (w->is == stage::starting && !w->has_ended && !w->killed_by_us &&
                w->place.waits == waits)
                stay.push_back(w.get());
    for (; static_cast<int>(stay.size()) > target_; stay.pop_back()) {
        auto& w = *stay.back();
        if (w.is == stage::member) {
            w.leaves = w.is_let_go = true;
            w.why = fmt::format("{} workers are wanted", target_);
            continue;
        }
        send_away(w);
    }
    for (auto& [id, w] : workers_) { // what was told to leave does so
        if (w->is != stage::leaving || w->has_ended) continue;
        if (w->until == time_point::max())
            w->until = deadline_after(now, options_.times.stop_grace);
        if (now >= w->until) kill(*w);
        wake_at(w->until);
    }
}

/// All members are told what is wished: a planned change, a stop.
SKEIN_INLINE void elastic_coordinator::wish() {
    bool change = false;
    const auto stay = members();
    const auto joining = ready();
    int rest = static_cast<int>(joining.size());
    for (const auto* w : stay) rest += w->leaves ? 0 : 1;
    for (const auto* w : stay) {
        change = change || (w->leaves && rest >= least());
        if (options_.are_hosts && w->leaves && rest < least()) stop(SIGTERM);
    }
    if (!joining.empty() && stop_signal_ == 0) {
        const auto due = deadline_after(joining.front()->ready_at, options_.times.join_settle);
        if (loop::current().now() >= due)
            change = true;
        else
            wake_at(due);
    }
    for (auto* w : stay) {
        if (w->told_change == change && w->told_stop == stop_signal_) continue;
        w->told_change = change;
        w->told_stop = stop_signal_;
        w->keeper->tell(w->self.id, detail::member_wish::number,
                        wire::encode(detail::member_wish{change, stop_signal_}));
    }
}

SKEIN_INLINE void elastic_coordinator::watch_limits(time_point now) {
    if (kill_now_ || now >= stop_at_) {
        if (!over_) finish(error(errc::timeout, "the ranks did not stop in time"));
        kill_now_ = false;
        stop_at_ = time_point::max();
        for (auto& [id, w] : workers_) kill(*w);
    }
    wake_at(stop_at_);
    if (over_) return;
    for (auto& [id, w] : workers_) {
        if (w->is != stage::starting || w->has_ended || w->killed_by_us || w->place.waits) continue;
        const auto limit = deadline_after(w->started_at, options_.times.ready_limit);
        if (now >= limit) {
            w->failed =
                error(errc::timeout, fmt::format("{} was not ready within {:.3g} s", name_of(*w),
                                                 to_seconds(options_.times.ready_limit)));
            w->was_late = true;
            kill(*w);
        } else {
            wake_at(limit);
            name_slow_start(*w, now);
        }
    }
    if (short_since_ == time_point::max()) return;
    const auto limit = deadline_after(short_since_, options_.times.pause_limit);
    if (now < limit) return wake_at(limit);
    error why(errc::timeout, fmt::format("fewer than {} {} were there for {:.3g} s", options_.least,
                                         options_.are_hosts ? "hosts" : "workers",
                                         to_seconds(options_.times.pause_limit)));
    if (options_.are_hosts)
        why.with_hint("start the same skein run on the other hosts, or fewer of them: --nnodes "
                      "LEAST:MOST");
    if (refused_ || last_loss_) why.with_cause(refused_ ? refused_->what() : last_loss_->what());
    finish(std::move(why));
    kill_at_ = deadline_after(now, options_.times.stop_grace); // they may save
}

SKEIN_INLINE void elastic_coordinator::look_at_end(time_point now) {
    for (auto& [id, w] : workers_) {
        if (w->has_ended) continue;
        const auto until = std::min(w->until, kill_at_);
        if (now >= until)
            kill(*w);
        else
            wake_at(until);
    }
}

// ---- views --------------------------------------------------------------------------------------

SKEIN_INLINE std::optional<view> elastic_coordinator::proposal(time_point now) {
    if (over_ || take_over_until_ != time_point::min()) return std::nullopt;
    const auto stay = members();
    if (is_ending()) {
        finish_with_the_others();
        if (!over_) kill_those_that_hang(now);
        return std::nullopt;
    }
    if (stay.empty()) return first_proposal(now);
    bool is_lost = false, is_seen = true;
    for (const auto& m : view_.members) {
        const auto* const w = find(m.id);
        if (w == nullptr || w->is != stage::member || !w->has_ended || w->left) continue;
        is_lost = true;
        is_seen = is_seen && w->judged; // it is, as soon as its moment for more losses is over
    }
    const bool all_ask =
        std::all_of(stay.begin(), stay.end(), [](const worker* w) { return w->asked.has_value(); });
    if (is_lost && !is_seen) return std::nullopt;
    if (is_lost && group_ && !group_->outcome)
        break_group(news_.empty() ? "a worker was lost" : news_.back());
    if (!is_lost && !all_ask) {
        kill_those_that_hang(now);
        return std::nullopt;
    }
    if (!is_lost && broken_) {
        const auto due = deadline_after(broken_at_, options_.times.settle);
        if (now < due) {
            wake_at(due);
            return std::nullopt;
        }
        error why(errc::aborted, fmt::format("a collective failed, and no worker was lost{}{}",
                                             broken_why_.empty() ? "" : ": ", broken_why_));
        if (options_.are_hosts)
            why = error(errc::worker_lost,
                        broken_why_.empty() ? "the hosts have lost each other" : broken_why_);
        if (broken_why_.empty() && group_ && group_->outcome && group_->outcome->failure)
            why.with_cause(group_->outcome->failure->what());
        if (!was_refused_ && !std::exchange(is_break_counted_, true)) {
            last_loss_ = why;
            news_.push_back(why.what());
            count_failure(why, -1);
        }
        if (over_) return std::nullopt;
    }
    auto next = make_view(now);
    if (static_cast<int>(next.members.size()) >= least()) {
        short_since_ = time_point::max();
        return next;
    }
    if (short_since_ == time_point::max()) short_since_ = now;
    wake_at(deadline_after(short_since_, options_.times.pause_limit));
    finish_if_none_comes(now);
    return std::nullopt;
}

/// Some are done. The job ends when the others are, too, or have died, or wait for a next view.
SKEIN_INLINE void elastic_coordinator::finish_with_the_others() {
    std::uint64_t done_in = 0; // whoever came later has had no part in the training's end
    for (const auto& m : view_.members)
        if (const auto* const w = find(m.id)) done_in = std::max(done_in, w->done_in);
    auto why = outcome_.failure;
    int culprit = outcome_.culprit;
    for (const auto& m : view_.members) {
        const auto* const w = find(m.id);
        if (w == nullptr || has_left(*w)) continue;
        if (w->has_ended ? !w->judged : !w->asked) return;
        if (why || w->has_ended || (done_in != 0 && w->first_view > done_in)) continue;
        why = error(errc::aborted,
                    fmt::format("{} wants another world, and others are done", name_of(*w)));
        if (last_loss_) why->with_cause(last_loss_->what());
        culprit = w->rank;
    }
    // Its end, with what rank 0 has told, is on its way.
    if (!why && group_ && !group_->outcome &&
        std::all_of(view_.members.begin(), view_.members.end(), [this](const view_member& m) {
            const auto* const w = find(m.id);
            return w != nullptr && w->rank >= 0 && group_->server->has_left(w->rank);
        }))
        return;
    is_done_ = !why;
    finish(std::move(why), culprit);
}

/// Its control connection works, so nothing else would end the wait for it.
SKEIN_INLINE void elastic_coordinator::kill_those_that_hang(time_point now) {
    if (asked_at_ == time_point::max()) return;
    const auto due = deadline_after(asked_at_, options_.times.ask_limit);
    if (now < due) return wake_at(due);
    for (auto* w : members()) {
        if (w->asked || w->killed_by_us) continue;
        w->failed = error(errc::worker_lost,
                          fmt::format("{} hung, and was killed: {:.3g} s after the first of the "
                                      "others it had not asked for the next world",
                                      name_of(*w), to_seconds(options_.times.ask_limit)));
        kill(*w);
    }
}

/// Nobody has been in a world, or nobody of the last one is left.
SKEIN_INLINE std::optional<view> elastic_coordinator::first_proposal(time_point now) {
    for (const auto& m : view_.members) { // a member that has left in order is no loss
        const auto* const w = find(m.id);
        if (w != nullptr && w->is == stage::member && (!w->has_ended || !w->judged))
            return std::nullopt;
    }
    if (stop_signal_ != 0) {
        finish(last_loss_ ? *last_loss_ : error(errc::cancelled, "all workers have left"));
        return std::nullopt;
    }
    if (view_.generation == 0 && now < first_from_) {
        wake_at(first_from_);
        return std::nullopt;
    }
    const auto there = ready();
    if (static_cast<int>(there.size()) < least()) {
        enough_at_ = time_point::max();
        if (view_.generation == 0 && places::any_waits(*this))
            short_since_ = time_point::max(); // nothing is held meanwhile
        else if (short_since_ == time_point::max())
            short_since_ = now;
        finish_if_none_comes(now);
        return std::nullopt;
    }
    enough_at_ = std::min(enough_at_, now);
    const auto due = deadline_after(enough_at_, options_.times.first_settle);
    const auto lease = lease_of_lost();
    if ((any_starting() && now < due) || now < lease) {
        wake_at(now < lease ? lease : due);
        return std::nullopt;
    }
    enough_at_ = time_point::max();
    short_since_ = time_point::max();
    return make_view(now);
}

/// Until when members of the newest view that nobody saw end may believe in it.
SKEIN_INLINE time_point elastic_coordinator::lease_of_lost() {
    time_point until{};
    for (const auto& m : view_.members) {
        const auto* const w = find(m.id);
        if (w != nullptr && w->has_ended && !w->end.was_seen)
            until = std::max(until, deadline_after(w->ended_at, options_.times.lease));
    }
    return until;
}

/// Of members of which the first ones may all leave: the one that must not yet, as the state of the
/// training would go with it; null if none.
SKEIN_INLINE elastic_coordinator::worker* elastic_coordinator::last_with_state(
    const std::vector<worker*>& stay) {
    const bool some = std::any_of(stay.begin(), stay.end(), [](auto* w) { return w->has_state; });
    worker* first = nullptr;
    for (auto* w : stay) {
        if (some && !w->has_state) continue;
        if (!w->leaves) return nullptr;
        if (first == nullptr) first = w;
    }
    return first;
}

/// Those that stay keep their order and come first.
SKEIN_INLINE view elastic_coordinator::make_view(time_point) {
    view next;
    next.generation = view_.generation + 1;
    next.author = options_.id;
    next.failures = static_cast<std::uint64_t>(failures_);
    auto why = news_;
    const auto stay = members();
    const auto joining = stop_signal_ == 0 ? ready() : std::vector<worker*>();
    std::size_t rest = joining.size();
    for (const auto* w : stay) rest += w->leaves ? 0 : 1;
    const bool may_leave = static_cast<int>(rest) >= least();
    const auto* const keeps = last_with_state(stay);
    for (auto* w : stay) {
        if (w->leaves && may_leave && w != keeps) {
            why.push_back(
                fmt::format("{} leaves{}{}", name_of(*w), w->why.empty() ? "" : ": ", w->why));
            continue;
        }
        next.members.push_back(w->self);
    }
    // In a job of one place there is a second one while the state is handed on.
    const int most = options_.most + (keeps != nullptr && options_.most == 1 ? 1 : 0);
    for (auto* w : joining) {
        if (static_cast<int>(next.members.size()) >= most) break;
        next.members.push_back(w->self);
        if (view_.generation > 0) why.push_back(fmt::format("{} joins", name_of(*w)));
    }
    if (why.empty())
        why.emplace_back(view_.generation == 0 ? "the first workers are ready"
                                               : "a change is not wanted any more");
    next.why = detail::clipped(joined(why, "; "), detail::most_view_text);
    return next;
}

SKEIN_INLINE void elastic_coordinator::break_group(const std::string& why) {
    int culprit = -1;
    for (const auto& m : view_.members) {
        const auto* const w = find(m.id);
        if (w != nullptr && w->has_ended && !w->left) culprit = w->rank;
    }
    group_->server->abort(error(errc::peer_lost, why), culprit);
}

/// Puts it in the register, then in the place of the view before.
SKEIN_INLINE task<void> elastic_coordinator::swap(view next) {
    auto fresh = std::make_shared<view_group>();
    fresh->generation = next.generation;
    fresh->secret = net::token::generate(*options_.random);
    group_options how;
    how.world_size = static_cast<int>(next.members.size());
    how.generation = static_cast<int>(next.generation);
    how.job = options_.job;
    how.secret = fresh->secret;
    how.join_deadline = options_.times.join_deadline;
    how.alive = options_.alive;
    how.given = options_.given;
    how.most_told = options_.most_told;
    how.failure_is_loss = true;
    auto at = options_.groups;
    if (at.kind == net::scheme::unix_abstract)
        at.host += fmt::format("-{}-{:016x}", next.generation, options_.random->next());
    fresh->server = std::make_unique<group_server>(network_, at, how);
    auto reached = fresh->server->local();
    if (!options_.advertise.empty()) reached.host = options_.advertise;
    next.group = net::to_string(reached);
    const auto told = news_.size();
    auto swapping = register_.compare_and_swap(view_.generation, next);
    const auto swapped = co_await swapping;
    if (!swapped.swapped)
        throw error(errc::aborted, fmt::format("view {} was made by another coordinator ({})",
                                               swapped.now.generation, swapped.now.author));
    if (over_) { // while the register was not there
        view_ = std::move(next);
        co_return;
    }
    news_.erase(news_.begin(), news_.begin() + static_cast<std::ptrdiff_t>(told));
    const auto before = std::exchange(view_, std::move(next));
    const auto old = std::exchange(group_, fresh);
    broken_ = was_refused_ = is_break_counted_ = false;
    asked_at_ = time_point::max();
    broken_why_.clear();
    begin_view(before, view_.why);
    // After the news of the next view: a rank that still works in the old world knows why it ends.
    if (old) old->server->abort(error(errc::peer_lost, view_.why));
    if (is_ending()) // meanwhile
        fresh->server->abort(error(errc::peer_lost, "the training is done at a member"));
    tasks_.spawn(watch_group(fresh));
    if (options_.on_view) options_.on_view(view_);
}

SKEIN_INLINE void elastic_coordinator::begin_view(const view& before, const std::string& why) {
    detail::member_begin told;
    told.now = view_;
    told.secret = group_->secret.to_hex();
    told.job = options_.job;
    for (const auto& m : before.members) {
        auto* const w = find(m.id);
        if (w == nullptr || w->is != stage::member) continue;
        const bool stays = std::any_of(view_.members.begin(), view_.members.end(),
                                       [&](const view_member& n) { return n.id == m.id; });
        if (stays) continue;
        if (w->has_ended) {
            if (told.lost_rank < 0 && !w->left) told.lost_rank = w->rank;
        } else {
            send_end(*w, true, error(errc::closed, why));
        }
        w->is = stage::leaving;
    }
    bad_starts_ = 0;
    for (std::size_t r = 0; r < view_.members.size(); ++r) {
        auto* const w = find(view_.members[r].id);
        if (w == nullptr) continue;
        if (w->first_view == 0) w->first_view = view_.generation;
        if (view_.generation == 1) w->has_state = true;
        w->is = stage::member;
        w->rank = static_cast<int>(r);
        w->asked.reset();
        w->told_change = false;
        w->told_stop = 0;
        told.rank = w->rank;
        if (!w->has_ended)
            w->keeper->tell(w->self.id, detail::member_begin::number, wire::encode(told));
    }
    changed_.set();
}

} // namespace skein::spmd
