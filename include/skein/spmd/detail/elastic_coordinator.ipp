// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a coordinator makes of what has come. What it proposes: elastic_proposals.ipp.

#include <skein/core/awaitable.hpp>
#include <skein/core/cancel.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/network.hpp>
#include <skein/net/token.hpp>
#include <skein/spmd/detail/elastic_parts.hpp>
#include <skein/spmd/detail/elastic_protocol.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <csignal>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace skein::spmd {

SKEIN_INLINE elastic_coordinator::elastic_coordinator(net::network& via, view_register& truth,
                                                      coordinator_options options)
    : options_(std::move(options)), network_(via), register_(truth),
      target_(options_.start > 0 ? options_.start : options_.most) {
    target_ = std::clamp(target_, options_.least, options_.most);
}

SKEIN_INLINE elastic_coordinator::~elastic_coordinator() = default;

SKEIN_INLINE task<coordinator_place> elastic_coordinator::claim() {
    coordinator_place me{options_.id, options_.address};
    auto claiming = register_.claim(me);
    auto who = co_await claiming;
    if (who.id != options_.id) co_return who;
    auto reading = register_.read();
    view_ = co_await reading;
    if (view_.generation < options_.known.generation) {
        news_.push_back(fmt::format(
            "the register has lost view {}: it holds {}", options_.known.generation,
            view_.generation == 0 ? std::string("none") : std::to_string(view_.generation)));
        view_ = options_.known;
    }
    failures_ = static_cast<int>(view_.failures);
    for (const auto& m : view_.members) last_id_ = std::max(last_id_, m.id);
    is_claimed_ = true;
    first_from_ = deadline_after(loop::current().now(), options_.first_after);
    if (view_.generation == 0) co_return who;
    // Another coordinator has started workers that no view has had: their ids are used, too.
    constexpr std::uint64_t ids_at_once = 1000;
    last_id_ = (last_id_ / ids_at_once + 1) * ids_at_once;
    take_over_until_ = deadline_after(loop::current().now(), options_.times.take_over);
    co_return who;
}

SKEIN_INLINE std::vector<std::uint64_t> elastic_coordinator::add(
    elastic_keeper& keeper, const std::vector<view_member>& running) {
    std::vector<std::uint64_t> kept;
    keepers_.push_back(&keeper);
    changed_.set();
    for (const auto& one : running) {
        const auto found = std::find_if(view_.members.begin(), view_.members.end(),
                                        [&](const view_member& m) { return m.id == one.id; });
        if (found == view_.members.end() || find(one.id) != nullptr || found->pid != one.pid ||
            found->keeper != keeper.id() || take_over_until_ == time_point::min())
            continue;
        auto w = std::make_unique<worker>();
        w->self = *found;
        w->keeper = &keeper;
        w->is = stage::member;
        w->rank = static_cast<int>(found - view_.members.begin());
        w->first_view = view_.generation;
        w->has_state = true;
        w->asked = world_end::broken; // the group was the other coordinator's
        w->started_at = loop::current().now();
        workers_[one.id] = std::move(w);
        kept.push_back(one.id);
    }
    return kept;
}

SKEIN_INLINE void elastic_coordinator::lose(elastic_keeper& keeper, const error& why) {
    std::erase(keepers_, &keeper);
    std::erase(draining_, &keeper);
    records_.erase(&keeper);
    changed_.set();
    worker_end how;
    how.how =
        fmt::format("{}: {}", options_.are_hosts ? "is lost" : "is lost with its host", why.what());
    how.was_seen = false;
    for (auto& [id, w] : workers_)
        if (w->keeper == &keeper) {
            worker_ended(id, how);
            w->keeper = nullptr;
        }
}

SKEIN_INLINE void elastic_coordinator::drain(elastic_keeper& keeper, const std::string& why) {
    if (std::find(draining_.begin(), draining_.end(), &keeper) != draining_.end()) return;
    draining_.push_back(&keeper);
    for (auto& [id, w] : workers_) {
        if (w->keeper != &keeper || w->has_ended) continue;
        w->leaves = true;
        w->place.is_why = false;
        w->why = why;
        if (w->is == stage::member || w->is == stage::leaving) continue;
        w->is = stage::leaving;
        kill(*w);
    }
    changed_.set();
}

SKEIN_INLINE bool elastic_coordinator::has_drained(const elastic_keeper& keeper) const {
    return is_draining(keeper) &&
           std::none_of(workers_.begin(), workers_.end(), [&](const auto& w) {
               return w.second->keeper == &keeper && !w.second->has_ended;
           });
}

SKEIN_INLINE task<supervisor_outcome> elastic_coordinator::run() {
    std::exception_ptr failure;
    try {
        auto working = work();
        co_await working;
    } catch (...) {
        failure = std::current_exception();
    }
    if (group_) group_->server->abort(error(errc::aborted, "the job has ended"));
    tasks_.cancel();
    auto joined = shield(as_result(tasks_.join()));
    (void)co_await joined;
    if (failure) std::rethrow_exception(failure);
    outcome_.stop_signal = stop_signal_;
    outcome_.restarts = failures_;
    co_return outcome_;
}

SKEIN_INLINE task<void> elastic_coordinator::work() {
    if (!is_claimed_) {
        auto claiming = claim();
        const auto who = co_await claiming;
        if (who.id != options_.id)
            throw error(errc::aborted, fmt::format("the coordinator is {}", who.address));
    }
    if (view_.is_over) {
        if (view_.why != detail::done_in_order && view_.why != detail::done_alone)
            outcome_.failure = error(errc::aborted, "the job is over").with_cause(view_.why);
        co_return;
    }
    for (;;) {
        changed_.reset();
        wake_at_ = time_point::max();
        const auto now = loop::current().now();
        look(now);
        if (auto next = proposal(now)) {
            auto swapping = swap(std::move(*next));
            co_await swapping;
            continue;
        }
        if (over_ && !any_running()) break;
        auto changing = changed_.wait_until(std::min(wake_at_, now + std::chrono::hours(1)));
        co_await changing;
    }
    auto saying = as_result(with_timeout(say_it_is_over(), time_constants::lan().close_timeout));
    (void)co_await saying; // who does not hear it learns it from the end of the links
    auto resigning = as_result(register_.resign());
    (void)co_await resigning;
}

SKEIN_INLINE task<void> elastic_coordinator::say_it_is_over() {
    view last = view_;
    ++last.generation;
    last.author = options_.id;
    last.is_over = true;
    last.failures = static_cast<std::uint64_t>(failures_);
    last.why = is_alone_ ? detail::done_alone : detail::done_in_order;
    if (outcome_.failure) last.why = outcome_.failure->what();
    auto swapping = register_.compare_and_swap(view_.generation, last);
    const auto swapped = co_await swapping;
    if (swapped.swapped && options_.on_view) options_.on_view(last);
}

SKEIN_INLINE task<void> elastic_coordinator::watch_group(std::shared_ptr<view_group> which) {
    group_outcome how;
    try {
        auto running = which->server->run();
        how = co_await running;
    } catch (const error& e) {
        how.failure = e;
    }
    for (auto& [key, blob] : how.told) outcome_.told[key] = std::move(blob);
    which->outcome = std::move(how);
    changed_.set();
}

// ---- what has come ------------------------------------------------------------------------------

SKEIN_INLINE void elastic_coordinator::stop(int signal) {
    if (stop_signal_ != 0) return;
    stop_signal_ = signal;
    stop_at_ = deadline_after(loop::current().now(), options_.times.stop_grace);
    changed_.set();
}
SKEIN_INLINE void elastic_coordinator::kill_all() {
    kill_now_ = true;
    changed_.set();
}
SKEIN_INLINE void elastic_coordinator::set_target(int workers) {
    target_ = std::clamp(workers, options_.least, options_.most);
    changed_.set();
}

SKEIN_INLINE void elastic_coordinator::worker_started(std::uint64_t id, std::int64_t pid) {
    if (auto* w = find(id)) w->self.pid = pid;
}

SKEIN_INLINE void elastic_coordinator::worker_said(std::uint64_t id, std::uint16_t kind,
                                                   byte_span body) {
    auto* const from = find(id);
    if (from == nullptr || from->has_ended) return;
    changed_.set();
    if (kind == detail::member_ask::number) return heard_ask(*from, body);
    if (kind == detail::member_leave::number) {
        auto said = wire::decode<detail::member_leave>(body);
        // Its place stays empty, where the others are enough.
        const bool is_news = !std::exchange(from->leaves, true);
        if (is_news && (from->keeper == nullptr || !from->keeper->places_later()))
            target_ = std::max(target_ - 1, options_.least);
        from->is_let_go = from->place.is_why = false; // for good
        from->why = said ? detail::clipped(said->why) : std::string();
        return;
    }
    if (kind == detail::member_done::number) {
        auto said = wire::decode<detail::member_done>(body);
        return said ? heard_done(*from, said->generation) : kill(*from);
    }
    if (kind == detail::member_fail::number) {
        auto said = wire::decode<detail::member_fail>(body);
        return heard_failure(*from, said ? detail::clipped(said->why) : said.error());
    }
    kill(*from); // nonsense
}

SKEIN_INLINE void elastic_coordinator::heard_ask(worker& from, byte_span body) {
    auto said = wire::decode<detail::member_ask>(body);
    if (!said || said->last > static_cast<std::uint8_t>(world_end::paused)) return kill(from);
    const auto last = static_cast<world_end>(said->last);
    if (last == world_end::none) {
        if (from.is != stage::starting) return; // its first view is on its way
        return heard_first_ask(from, std::move(said->settings));
    }
    // Of an older world: the next one is on its way to it.
    if (from.is != stage::member || said->generation != view_.generation) return;
    // Who was there before this coordinator knows better than who comes what the job is.
    if (!std::exchange(are_of_members_, true)) measure_by(from, std::move(said->settings));
    from.asked = last;
    asked_at_ = std::min(asked_at_, loop::current().now());
    from.has_state = from.has_state || last == world_end::paused;
    if (last == world_end::broken) {
        mark_broken();
        if (broken_why_.empty() && !said->why.empty())
            broken_why_ = options_.are_hosts
                              ? detail::clipped(said->why)
                              : fmt::format("{}: {}", name_of(from), detail::clipped(said->why));
        if (group_)
            group_->server->abort(
                error(errc::peer_lost, fmt::format("a collective failed at {}", name_of(from))));
    }
}

SKEIN_INLINE void elastic_coordinator::heard_done(worker& from, std::uint64_t generation) {
    if (from.is != stage::member || generation == 0) return;
    from.left = true;
    from.done_in = generation;
    // It will not come to the newest view.
    if (group_ && generation != view_.generation)
        group_->server->abort(
            error(errc::peer_lost, fmt::format("the training is done at {}", name_of(from))));
}

SKEIN_INLINE void elastic_coordinator::heard_failure(worker& from, error why) {
    if (from.is != stage::member) {
        from.failed = std::move(why); // counts when it has ended
        return;
    }
    const bool was_member_before = from.first_view != view_.generation || view_.generation == 1;
    if (why.code() != errc::mismatch || was_member_before) return finish(std::move(why), from.rank);
    // It has never been part of a world that worked: the others go on without it.
    news_.push_back(fmt::format("{} was refused: {}", name_of(from), why.what()));
    refuse(from, why);
    mark_broken();
    was_refused_ = true;
    if (group_) group_->server->abort(error(errc::peer_lost, news_.back()), from.rank);
}

SKEIN_INLINE void elastic_coordinator::mark_broken() {
    if (broken_) return;
    broken_ = true;
    broken_at_ = loop::current().now();
}

SKEIN_INLINE void elastic_coordinator::worker_ended(std::uint64_t id, const worker_end& how) {
    auto* const which = find(id);
    if (which == nullptr || which->has_ended) return;
    which->has_ended = true;
    which->ended_at = loop::current().now();
    which->end = how;
    changed_.set();
}

/// How the newest view's group has ended, if it has.
SKEIN_INLINE void elastic_coordinator::judge_group() {
    if (over_ || !group_ || !group_->outcome || group_->judged) return;
    group_->judged = true;
    const auto& how = *group_->outcome;
    if (!how.failure) {
        is_done_ = true;
        return finish(std::nullopt);
    }
    auto* const culprit =
        how.culprit >= 0 ? find(view_.members[static_cast<std::size_t>(how.culprit)].id) : nullptr;
    const auto code = how.failure->code();
    if (how.reported && !detail::is_echo(code)) {
        if (culprit == nullptr) return finish(how.failure, how.culprit);
        return heard_failure(*culprit, *how.failure);
    }
    // Somebody has not come.
    if (code == errc::timeout && culprit != nullptr && !how.reported && !culprit->left)
        kill(*culprit);
    mark_broken();
}

SKEIN_INLINE void elastic_coordinator::judge_ends(time_point now) {
    for (auto& [id, place] : workers_) {
        auto& w = *place;
        if (!w.has_ended || w.judged) continue;
        if (w.is == stage::leaving) {
            w.judged = true;
            continue;
        }
        if (w.is != stage::member) {
            w.judged = true;
            failed_start(w, w.failed ? *w.failed : end_of(w));
            continue;
        }
        // A better reason than its end may be on its way.
        const auto due = deadline_after(w.ended_at, options_.times.settle);
        if (now < due && !over_) {
            wake_at(due);
            continue;
        }
        w.judged = true;
        judge_member_end(w);
    }
}

SKEIN_INLINE void elastic_coordinator::judge_member_end(worker& w) {
    const bool as_asked =
        stop_signal_ != 0 && (w.end.code == 128 + stop_signal_ || w.end.signal == stop_signal_);
    if (over_ || has_left(w)) {
        const bool bad = !w.end.success() && !as_asked && !w.killed_by_us;
        // It failed after its training was done.
        if (bad && !outcome_.failure) {
            outcome_.failure = end_of(w);
            outcome_.culprit = w.rank;
        }
        w.left = true;
        return;
    }
    if (w.end.success()) {
        auto why =
            error(errc::worker_lost, fmt::format("{} exited before the job was done", name_of(w)))
                .with_hint("it must return from its training function, not call exit()");
        return finish(std::move(why), w.rank);
    }
    last_loss_ = w.failed ? *w.failed : end_of(w);
    news_.push_back(last_loss_->what());
    if (is_ending()) { // nothing is made good any more
        if (!outcome_.failure) {
            outcome_.failure = *last_loss_;
            outcome_.culprit = w.rank;
        }
        return;
    }
    if (as_asked || w.end.is_moved) return;
    // A lost host counts once, however many workers it had.
    if (!w.end.was_seen && !is_first_of_host(w)) return;
    count_failure(*last_loss_, w.rank);
}

SKEIN_INLINE bool elastic_coordinator::is_first_of_host(const worker& which) const {
    return std::none_of(workers_.begin(), workers_.end(), [&](const auto& w) {
        const auto& other = *w.second;
        return &other != &which && other.judged && !other.end.was_seen &&
               other.self.keeper == which.self.keeper && other.self.host == which.self.host &&
               which.ended_at - other.ended_at <= duration(options_.times.settle);
    });
}

/// A worker that was no member yet has ended.
SKEIN_INLINE void elastic_coordinator::failed_start(worker& w, error why) {
    if (over_ || stop_signal_ != 0 || (w.killed_by_us && !w.was_late)) return;
    if (w.end.success() && w.is == stage::starting && !w.failed) return ended_without_world(w);
    const bool lasting = detail::is_lasting_end(w.end) || is_lasting(why.code());
    if (lasting && view_.generation == 0 && is_own(w)) return finish(std::move(why));
    if (lasting) return count_refusal(w, std::move(why));
    if (w.place.waits ||
        w.end.is_moved) { // it has had no place, as when the head was lost: another one waits
        retry_at_ = deadline_after(loop::current().now(), options_.times.pause(++bad_starts_));
        return;
    }
    if (count_bad_start(w, why)) return;
    ++bad_starts_;
    retry_at_ = deadline_after(loop::current().now(), options_.times.pause(bad_starts_));
    last_loss_ = why;
    count_failure(std::move(why), -1);
}

SKEIN_INLINE void elastic_coordinator::count_failure(error why, int culprit) {
    ++failures_;
    if (options_.on_failure) options_.on_failure(why, failures_, options_.max_failures);
    if (failures_ <= options_.max_failures) return;
    detail::give_up(
        why, options_.are_hosts
                 ? fmt::format("all ranks were started again {} time{} already", failures_ - 1,
                               failures_ == 2 ? "" : "s")
                 : fmt::format("{} workers were lost or failed to start, and the job allows {}",
                               failures_, options_.max_failures));
    finish(std::move(why), culprit);
}

/// The job has ended: nothing is made any more, all leave.
SKEIN_INLINE void elastic_coordinator::finish(std::optional<error> failure, int culprit) {
    if (over_) return;
    over_ = true;
    const auto now = loop::current().now();
    if (failure) outcome_.culprit = culprit;
    const error why = failure ? *failure : error(errc::closed, detail::done_in_order);
    if (failure) {
        if (group_) group_->server->abort(*failure, culprit);
        kill_at_ = std::min(stop_at_, deadline_after(now, options_.times.crash_grace));
    }
    if (failure) outcome_.failure = std::move(failure); // else it may have one already
    for (auto& [id, place] : workers_) {
        auto& w = *place;
        if (w.has_ended) continue;
        send_end(w, is_done_, why);
        // It holds nothing that anybody waits for.
        if (w.is == stage::starting) kill(w);
        w.until = w.is == stage::member ? time_point::max()
                                        : deadline_after(now, options_.times.crash_grace);
    }
    changed_.set();
}

// ---- places -------------------------------------------------------------------------------------

// Workers that run where there is room for them, as leases of a cluster do, wait for a place, and may
// be asked to give it back. One that is asked leaves between two steps, where the others are enough
// to go on; else it stays, another one is started for it, and it leaves when that is there.

/// What a coordinator does about them.
struct elastic_coordinator::places {
    /// A first one of a job that has not begun holds nothing meanwhile.
    [[nodiscard]] static bool any_waits(const elastic_coordinator& of) {
        return std::any_of(of.workers_.begin(), of.workers_.end(), [](const auto& w) {
            return w.second->place.waits && !w.second->has_ended;
        });
    }
    static void heard(elastic_coordinator& of, worker& w, const proc::place_news& news) {
        using kind = proc::place_news::kind;
        switch (news.what) {
        case kind::waits: return say_that_it_waits(of, w, news.text);
        case kind::given:
            w.place.waits = w.place.is_said = false;
            w.self.host = news.text;
            w.started_at = loop::current().now();
            return;
        case kind::asked_back:
            w.place.is_asked_back = true;
            w.place.is_told_to_stay = false;
            w.place.why = news.text;
            return;
        case kind::not_asked_back:
            if (!std::exchange(w.place.is_asked_back, false) || w.is != stage::member) return;
            if (std::exchange(w.place.is_why, false))
                w.leaves = false; // if the next view is not made yet
            return;
        }
    }
    static void give_back(elastic_coordinator& of) {
        if (of.stop_signal_ != 0 || of.is_ending()) return;
        auto rest = static_cast<int>(of.ready().size());
        for (const auto* w : of.members()) rest += w->leaves ? 0 : 1;
        for (auto& [id, one] : of.workers_) {
            auto& w = *one;
            if (!w.place.is_asked_back || w.has_ended || w.is == stage::leaving) continue;
            if (w.leaves && !w.is_let_go) continue;
            if (w.is == stage::ready) --rest;
            const bool is_counted = w.is == stage::member && !w.is_let_go;
            if (!is_counted || rest > of.least()) {
                if (is_counted) --rest;
                w.leaves = w.place.is_why = true;
                w.is_let_go = false;
                w.why = w.place.why;
            } else if (!std::exchange(w.place.is_told_to_stay, true)) {
                w.keeper->keep_place(
                    id, fmt::format("the training needs {} worker{}, and others have no place yet",
                                    of.options_.least, of.options_.least == 1 ? "" : "s"));
            }
        }
    }

private:
    /// Of one at a time: where there is room for none, there is none for the others.
    static void say_that_it_waits(const elastic_coordinator& of, worker& which,
                                  const std::string& why) {
        const bool is_said = std::any_of(of.workers_.begin(), of.workers_.end(), [](const auto& w) {
            return w.second->place.is_said && !w.second->has_ended;
        });
        if (is_said || !which.place.waits || !of.options_.say) return;
        which.place.is_said = true;
        of.options_.say(fmt::format("{} waits for a place: {}", of.name_of(which), why));
    }
};

SKEIN_INLINE void elastic_coordinator::worker_place(std::uint64_t id,
                                                    const proc::place_news& news) {
    auto* const w = find(id);
    if (w == nullptr || w->has_ended) return;
    places::heard(*this, *w, news);
    changed_.set();
}

/// It may load for that long, or hang.
SKEIN_INLINE void elastic_coordinator::name_slow_start(worker& which, time_point now) {
    if (which.was_named_slow || !options_.say) return;
    const auto due = deadline_after(which.started_at, options_.times.slow_start);
    if (now < due) return wake_at(due);
    which.was_named_slow = true;
    options_.say(fmt::format("{} is not ready after {:.3g} s: its program has not come to its "
                             "Trainer yet; it is waited for up to {:.3g} s",
                             name_of(which), to_seconds(options_.times.slow_start),
                             to_seconds(options_.times.ready_limit)));
}

} // namespace skein::spmd
