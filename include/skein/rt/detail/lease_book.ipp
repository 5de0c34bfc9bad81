// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/lease_book.hpp.

#include <skein/core/check.hpp>
#include <skein/rt/detail/lease_book.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

inline constexpr std::uint32_t most_cpus = std::numeric_limits<std::uint16_t>::max();
/// The tag of a request for all that a worker has; others carry the number of their line's demand.
inline constexpr std::uint64_t whole_tag = std::uint64_t{most_cpus} + 1;
/// Lists of workers are searched so far for the one with the least to do.
inline constexpr int most_looked_at = 8;

/// Puts the leases of a line on a worker into the list where they belong now.
inline void file(lease_share& share) {
    const auto& at = *share.at;
    auto list = lease_line::nowhere;
    if (share.line->by == lease_line::service::own)
        list = share.out < share.leases.size() ? lease_line::unused : lease_line::nowhere;
    else if (share.out < share.leases.size())
        list = at.unleased == 0 && at.alone == nullptr ? lease_line::unused : lease_line::beside;
    else if (!share.line->need->spreads && share.out < share.leases.size() * at.pace.window)
        list = lease_line::ahead; // what is sent ahead would not be spread
    share.unlink();
    if (list != lease_line::nowhere) share.line->with[list].push_back(share);
}

[[nodiscard]] inline lease_share& share_for(worker_room& at, lease_line& line) {
    if (auto* const known = lease_book::share_of(at, line)) return *known;
    auto& made = *at.shares.emplace_back(std::make_unique<lease_share>());
    made.at = &at;
    made.line = &line;
    return made;
}

// ---- workers -----------------------------------------------------------------------------------

SKEIN_INLINE void lease_book::add(worker_room& worker, std::string_view who) {
    workers_.push_back(&worker);
    if (worker.demand) {
        auto& line = lines_.line_of(worker.demand);
        line.by = lease_line::service::own;
        auto& share = share_for(worker, line);
        share.leases.emplace_back(); // of no scheduler: it lasts as long as the worker
        ++line.held;
        file(share);
        return;
    }
    sched::resources total;
    total.cpu = sched::amount(static_cast<int>(std::min(worker.capacity, most_cpus)));
    const auto name = fmt::format("worker {}", worker.place);
    const auto added = places_.add_place(worker.place, name, total, worker.labels);
    SKEIN_CHECK(added, "{} is no place: {}", who, added.error().what());
    worker.is_place = true;
    at_place_[worker.place] = &worker;
    largest_ = std::max(largest_, worker.capacity);
    note_use(worker);
    note_room();
}

SKEIN_INLINE bool lease_book::remove(worker_room& worker) {
    worker.unlink();
    if (std::erase(workers_, &worker) == 0) return false;
    if (worker.lent) lent_changed_.set();
    if (worker.is_place) {
        worker.is_place = false;
        at_place_.erase(worker.place);
        (void)places_.remove_place(worker.place);
    }
    for (const auto& share : worker.shares) {
        share->line->held -= share->leases.size();
        if (worker.demand) share->line->out -= std::min<std::size_t>(share->line->out, share->out);
    }
    worker.shares.clear();
    for (auto& [demand, line] : lines_.all()) { // whoever had its label may have gone
        if (line.by != lease_line::service::shared || line.held > 0 || line.need->is_anywhere())
            continue;
        withdraw(line);
        line.by = lease_line::service::undecided;
    }
    if (worker.demand) return true;
    worker.whole = {};
    largest_ = 0;
    for (const auto& [place, other] : at_place_) largest_ = std::max(largest_, other->capacity);
    note_room();
    return true;
}

SKEIN_INLINE void lease_book::update(worker_room& worker) {
    (void)places_.drain(worker.place, worker.lent || worker.retiring);
    release_unused(worker);
    note_room();
}

SKEIN_INLINE void lease_book::set_labels(worker_room& worker,
                                         const std::vector<std::string>& labels) {
    worker.labels = labels;
    worker.labels_follow = false;
    if (places_.set_labels(worker.place, labels)) note_room();
}

SKEIN_INLINE bool lease_book::any_has(const std::string& label) const {
    return std::any_of(at_place_.begin(), at_place_.end(),
                       [&](const auto& one) { return one.second->has_label(label); });
}

// ---- leases of lines ---------------------------------------------------------------------------

SKEIN_INLINE lease_share* lease_book::share_of(const worker_room& at,
                                               const lease_line& line) noexcept {
    for (const auto& share : at.shares)
        if (share->line == &line) return share.get();
    return nullptr;
}

/// For one lease of a line.
SKEIN_INLINE sched::request_id lease_book::request_lease(const lease_line& line,
                                                         const sched::constraint& where) {
    sched::request r;
    r.demand = line.need->need;
    r.where = where;
    if (where == sched::constraint()) r.where = sched::where_labelled(line.need->label);
    r.tag = line.demand.value();
    is_changed_ = true;
    return places_.submit(r).value();
}

SKEIN_INLINE bool lease_book::ask(lease_line& line) {
    if (!line.asked) {
        if (line.full_at == version_) return false;
        line.asked = request_lease(line, {});
        ++asking_;
    }
    if (take()) has_news_ = true; // another line may have one, too
    if (!line.asked) return true;
    line.full_at = version_;
    return false;
}

SKEIN_INLINE void lease_book::stand(lease_line& line) {
    line.asked = request_lease(line, {});
    ++asking_;
}

SKEIN_INLINE void lease_book::withdraw(lease_line& line) {
    if (!line.asked) return;
    (void)places_.cancel(std::exchange(line.asked, {}));
    --asking_;
    if (std::exchange(line.stands, false)) note_room(); // a worker may have been kept free for it
}

SKEIN_INLINE bool lease_book::take() {
    if (!std::exchange(is_changed_, false)) return false;
    std::vector<sched::grant> granted;
    std::vector<sched::notice> notices; // nothing is asked for that no worker could hold
    places_.take_grants(granted);
    places_.take_notices(notices);
    for (const auto& g : granted) book(g);
    return !granted.empty();
}

SKEIN_INLINE void lease_book::book(const sched::grant& g) {
    auto& at = *at_place_.at(g.place);
    if (g.tag == whole_tag) {
        at.whole = g.id;
        return;
    }
    auto& line = lines_.all().at(sched::demand_id(static_cast<std::uint16_t>(g.tag)));
    if (line.asked == g.id) {
        line.asked = {};
        line.stands = false;
        --asking_;
    }
    auto& share = share_for(at, line);
    share.leases.push_back(g.id);
    share.turn += at.pace.window;
    ++line.held;
    file(share);
}

SKEIN_INLINE bool lease_book::lease_on(worker_room& worker, lease_line& line) {
    const auto id = request_lease(line, sched::constraint::on(worker.place));
    (void)take();
    return !places_.cancel(id);
}

SKEIN_INLINE worker_room* lease_book::take_whole(const sched::demand& need) {
    std::vector<worker_room*> idle; // those whose loop nobody needs go first
    for (auto* const one : workers_)
        if (one->is_place && one->up && !one->retiring && !one->lent && one->busy == 0 &&
            one->alone == nullptr && one->capacity >= need.cpus &&
            (need.is_anywhere() || one->has_label(need.label)))
            idle.push_back(one);
    std::sort(idle.begin(), idle.end(), [](const worker_room* a, const worker_room* b) {
        return std::pair(a->is_needed(), a->place) < std::pair(b->is_needed(), b->place);
    });
    for (auto* const one : idle) {
        release_unused(*one);
        sched::request all;
        all.demand.cpu = sched::amount(static_cast<int>(std::min(one->capacity, most_cpus)));
        all.where = sched::constraint::on(one->place);
        all.tag = whole_tag;
        is_changed_ = true;
        const auto id = places_.submit(all).value();
        if (take()) has_news_ = true;
        if (!places_.cancel(id)) return one;
    }
    return nullptr;
}

SKEIN_INLINE void lease_book::release_unused(worker_room& worker) {
    for (const auto& share : worker.shares) release_unused(*share);
}

SKEIN_INLINE void lease_book::release_unused(lease_share& share) {
    if (share.line->by == lease_line::service::own) return;
    while (share.leases.size() > share.out) {
        (void)places_.release(share.leases.back());
        share.leases.pop_back();
        --share.line->held;
        note_room();
    }
    if (share.leases.empty()) share.turn = 0;
    file(share);
}

SKEIN_INLINE bool lease_book::reclaim() {
    if (lines_.all().size() < 2) return false; // one line has nobody to give it to
    const auto before = version_;
    for (auto& [demand, line] : lines_.all()) {
        if (line.by == lease_line::service::own) continue;
        for (const auto list : {lease_line::unused, lease_line::beside}) {
            intrusive_list<lease_share, lease_share> all;
            all.splice_back(line.with[list]);
            while (!all.empty()) {
                auto& share = all.pop_front();
                if (line.is_empty() || (share.turn == 0 && others_wait(line)))
                    release_unused(share);
                else
                    file(share);
            }
        }
    }
    return version_ != before;
}

SKEIN_INLINE void lease_book::forget_idle_lines() {
    auto& lines = lines_.all();
    for (auto at = lines.begin(); lines.size() > 16 && at != lines.end();) {
        const auto* line = &at->second;
        if (!line->is_empty() || line->asked || line->held > 0 || line->parents > 0 ||
            line->wanted > 0) {
            ++at;
            continue;
        }
        for (auto* const worker : workers_)
            std::erase_if(worker->shares, [&](const auto& share) { return share->line == line; });
        at = lines.erase(at);
    }
}

// ---- which worker a task goes to ---------------------------------------------------------------

/// Whether a worker with nothing to do is worth looking for, where the task could also go
/// elsewhere.
SKEIN_INLINE bool lease_book::may_be_free(const lease_line& line) const noexcept {
    return !free_.empty() && !line.need->spreads && line.none_free_at != version_ + freed_;
}

/// A worker with nothing to do, over a lease that the line has there or gets. nullptr: there is
/// none.
SKEIN_INLINE worker_room* lease_book::pick_free(lease_line& line) {
    if (!may_be_free(line)) return nullptr;
    const bool is_last_turn = others_wait(line);
    std::array<worker_room*, most_looked_at> found{};
    std::size_t n = 0;
    int seen = 0;
    free_.for_each_while([&](worker_room& at) {
        const auto* const share = share_of(at, line);
        const bool has_turn = !is_last_turn || (share != nullptr && share->turn > 0);
        if (!at.retiring && !at.lent && at.alone == nullptr && at.capacity >= line.cpus &&
            has_turn && (line.need->is_anywhere() || at.has_label(line.need->label)))
            found[n++] = &at;
        return ++seen < most_looked_at;
    });
    const auto has_lease = [&](const worker_room& at) {
        const auto* const share = share_of(at, line);
        return share != nullptr && share->out < share->leases.size();
    };
    for (std::size_t i = 0; i < n; ++i) // what the line has asked for before may have been that one
        if (has_lease(*found[i]) || lease_on(*found[i], line) || has_lease(*found[i]))
            return found[i];
    for (; n == 0 && seen > 0 && !free_.empty(); --seen) // the next ones another time
        free_.push_back(free_.pop_front());
    line.none_free_at = version_ + freed_;
    return nullptr;
}

SKEIN_INLINE worker_room* lease_book::choose(lease_line& line) {
    auto* const to = pick(line, lease_line::unused);
    if (to == nullptr || !to->is_needed()) return to;
    auto* const better = pick_free(line);
    return better != nullptr ? better : to;
}

SKEIN_INLINE worker_room* lease_book::pick(lease_line& line, lease_line::list among) const {
    const bool is_last_turn = others_wait(line) && line.by != lease_line::service::own;
    const auto is_before = [](const worker_room& a, const worker_room& b) {
        return std::pair(a.is_needed(), a.busy) < std::pair(b.is_needed(), b.busy);
    };
    worker_room* best = nullptr;
    int seen = 0;
    line.with[among].for_each_while([&](const lease_share& share) {
        auto* const at = share.at;
        const bool is_open =
            at->up && !at->retiring && !at->lent && at->alone == nullptr &&
            (share.turn > 0 || !is_last_turn) &&
            (at->unleased == 0 || at->busy + line.cpus <= at->capacity * at->pace.window);
        if (is_open && (best == nullptr || is_before(*at, *best))) best = at;
        return ++seen < most_looked_at;
    });
    for (; best == nullptr && seen > 0; --seen) // the next ones another time
        line.with[among].push_back(line.with[among].pop_front());
    return best;
}

SKEIN_INLINE worker_room* lease_book::straight(lease_line& line) {
    if (asking_ > 0 || is_changed_ || line.by != lease_line::service::shared) return nullptr;
    auto* to = pick(line, lease_line::unused);
    if (to == nullptr && line.full_at != version_) return nullptr; // there may be more leases
    if (to != nullptr && to->is_needed() && may_be_free(line)) return nullptr;
    if (to == nullptr) to = pick(line, lease_line::beside);
    if (to == nullptr) to = pick(line, lease_line::ahead);
    return to;
}

// ---- what becomes of tasks ---------------------------------------------------------------------

SKEIN_INLINE void lease_book::note_use(worker_room& at) noexcept {
    const bool is_free = at.busy == 0 && !at.is_needed() && at.up && at.is_place;
    if (is_free == at.is_linked()) return;
    if (!is_free) return at.unlink();
    free_.push_back(at);
    ++freed_;
}

SKEIN_INLINE void lease_book::occupy(worker_room& at, std::uint32_t cores) noexcept {
    crowded_ += (cores > at.capacity ? 1U : 0U);
    crowded_ -= (at.busy > at.capacity ? 1U : 0U);
    at.busy = cores;
    note_use(at);
    if (cores == 0 && at.lent) lent_changed_.set();
}

SKEIN_INLINE void lease_book::sent(worker_room& to, call_base& call) {
    if (call.cpus == 0 || (demand_lines::is_leased(call) && to.alone == &call)) return;
    if (!demand_lines::is_leased(call)) {
        to.unleased += call.cpus;
        for (const auto& share : to.shares) file(*share);
        return;
    }
    auto* share = share_of(to, lines_.line_of(call.demand));
    SKEIN_CHECK(share != nullptr, "{} was sent without a lease", call.name());
    ++share->out;
    if (to.demand) ++share->line->out;
    if (share->turn > 0) --share->turn;
    file(*share);
}

SKEIN_INLINE void lease_book::settled(worker_room& from, const call_base& call, bool had_cores) {
    if (!demand_lines::is_leased(call)) {
        from.unleased -= std::min<std::uint32_t>(from.unleased, call.cpus);
    } else if (call.alone != 0) {
        (void)places_.release(std::exchange(from.whole, {}));
        note_room();
    } else if (auto* share = share_of(from, lines_.line_of(call.demand));
               share != nullptr && had_cores) {
        share->out -= std::min<std::uint32_t>(share->out, 1);
        if (from.demand) share->line->out -= std::min<std::size_t>(share->line->out, 1);
    }
    for (const auto& share : from.shares) file(*share); // its pace may be another, too
    // Each task that is spread asks for the next node.
    if (!lines_.demands().at(call.demand).spreads || from.demand ||
        !demand_lines::is_leased(call) || call.alone != 0)
        return;
    if (auto* const share = share_of(from, lines_.line_of(call.demand))) release_unused(*share);
}

SKEIN_INLINE void lease_book::set_blocked(worker_room& at, const call_base& call, bool on) {
    auto& share = share_for(at, lines_.line_of(call.demand));
    if (on)
        share.out -= std::min<std::uint32_t>(share.out, 1);
    else
        ++share.out;
    file(share);
    occupy(at, on ? at.busy - std::min<std::uint32_t>(at.busy, call.cpus) : at.busy + call.cpus);
}

SKEIN_INLINE void lease_book::settle_in(worker_room& at) {
    auto* const share = share_of(at, lines_.line_of(at.demand));
    if (share == nullptr) return;
    ++share->out;
    ++share->line->out;
    file(*share);
}

SKEIN_INLINE void lease_book::spend(worker_room& at) {
    at.spent = true;
    auto* const share = share_of(at, lines_.line_of(at.demand));
    if (share == nullptr) return;
    auto& line = *share->line;
    line.held -= share->leases.size();
    line.out -= std::min<std::size_t>(line.out, share->out);
    share->leases.clear();
    share->out = 0;
    file(*share);
}

} // namespace skein::rt::detail
