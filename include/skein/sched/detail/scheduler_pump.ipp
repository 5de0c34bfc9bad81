// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of sched/scheduler.hpp: who is next. Fair shares, ageing, reservations.
//
// With every turn that grants something to anybody a job is charged by its share of the cluster at
// its end, divided by its weight. The ready job with the smallest charge is next. So what counts is
// how much a job holds and for how long, and the clock is the number of turns. (Not of grants: in a
// turn with many, the first would cost most.)

#include <skein/sched/detail/scheduler.hpp>

#include <algorithm>
#include <utility>

namespace skein::sched::detail {

inline constexpr double charge_scale = 1 << 24; ///< the whole cluster, for one turn
/// A job can owe so many turns of the whole cluster; what it held long ago is forgotten.
inline constexpr std::uint64_t most_owed = std::uint64_t{64} << 24;
/// What a job holds at the moment counts as if it went on for so many turns: without that, jobs of
/// long tasks hold too much and too little in turns.
inline constexpr std::uint64_t looked_ahead = 16;
/// Times a request may fit, while another job comes first, before that counts as being passed.
inline constexpr std::uint32_t free_chances = 16;

SKEIN_INLINE std::size_t schedule_state::take_grants(std::vector<grant>& into, std::size_t limit) {
    const auto before = into.size();
    const auto granted_before = grants;
    if (checked_version != places_version) recheck_feasible();
    for (;;) {
        look_at_grown(into);
        place_groups();
        while (into.size() - before < limit) {
            const auto j = next_job();
            if (j == no_index) break;
            const auto q = next_queue(jobs[j]);
            const auto p = find(all_queues[q]);
            if (p == no_index) {
                block(q);
            } else {
                give(q, p, into);
            }
        }
        if (into.size() - before >= limit) break;
        age_all();
        if (grown.empty() && !groups_may_fit) break;
    }
    if (grants != granted_before) ++turns;
    return into.size() - before;
}

// ---- the states of a queue ----------------------------------------------------------------------

SKEIN_INLINE void schedule_state::make_ready(std::uint32_t q) {
    auto& queue = all_queues[q];
    if (queue.state == queue_state::ready || queue.queued == 0) return;
    if (queue.state == queue_state::blocked) leave_blocked(q);
    if (queue.ages && queue.chances < free_chances) { // it may be granted now: nobody passes it
        const auto chances = queue.chances + 1;
        stop_ageing(q);
        age(q);
        queue.chances = chances;
    }
    queue.state = queue_state::ready;
    auto& job = jobs[queue.job];
    job.ready.push_back(q);
    if (job.is_ready) return;
    job.is_ready = true;
    ready_jobs.push_back(queue.job);
}

SKEIN_INLINE void schedule_state::not_ready(std::uint32_t q) {
    auto& job = jobs[all_queues[q].job];
    const auto at = std::find(job.ready.begin(), job.ready.end(), q);
    *at = job.ready.back();
    job.ready.pop_back();
    if (!job.ready.empty()) return;
    job.is_ready = false;
    std::erase(ready_jobs, all_queues[q].job);
}

/// It fits nowhere until a place has more room.
SKEIN_INLINE void schedule_state::block(std::uint32_t q) {
    auto& queue = all_queues[q];
    not_ready(q);
    queue.state = queue_state::blocked;
    auto& cls = classes[queue.cls];
    if (cls.blocked.empty()) waiting_classes.push_back(queue.cls);
    cls.blocked.push_back(q);
    if (!queue.ages && queue.reserved == no_index) age(q);
}

SKEIN_INLINE void schedule_state::leave_blocked(std::uint32_t q) {
    auto& cls = classes[all_queues[q].cls];
    std::erase(cls.blocked, q);
    if (cls.blocked.empty()) std::erase(waiting_classes, all_queues[q].cls);
}

/// Whether it is to be said that nothing there could hold it.
SKEIN_INLINE bool schedule_state::is_news(told_state& told) const {
    const bool any = std::any_of(all_places.begin(), all_places.end(),
                                 [&](const auto& p) { return p.host == no_index && is_there(p); });
    const auto now = any ? told_state::infeasible : told_state::no_places;
    if (told >= now) return false;
    told = now;
    return true;
}

/// Looks where a queue with requests belongs: new ones, and all when places have come or gone.
SKEIN_INLINE void schedule_state::check_queue(std::uint32_t q) {
    auto& queue = all_queues[q];
    if (is_feasible(queue.cls)) {
        queue.told = told_state::nothing;
        make_ready(q);
        return;
    }
    if (queue.fails) return refuse(q, missing(classes[queue.cls]));
    if (queue.state == queue_state::ready) not_ready(q);
    if (queue.state == queue_state::blocked) leave_blocked(q);
    stop_ageing(q);
    queue.state = queue_state::infeasible;
    if (!is_news(queue.told)) return;
    notice n;
    n.what = notice::kind::infeasible;
    n.id = request_id(requests.id(queue.first));
    n.tag = requests[queue.first].tag;
    n.why = missing(classes[queue.cls]);
    notices.push_back(std::move(n));
}

SKEIN_INLINE void schedule_state::recheck_feasible() {
    checked_version = places_version;
    for (std::uint32_t q = 0; q < all_queues.size(); ++q)
        if (all_queues[q].cls != no_index && all_queues[q].queued != 0) check_queue(q);
    std::vector<std::uint64_t> numbers;
    for (const auto& [number, g] : groups) numbers.push_back(number);
    for (const auto number : numbers)
        if (groups.at(number).waits) check_group(groups.at(number));
}

SKEIN_INLINE void schedule_state::say_again(job_id job) {
    const auto index = job_for(job);
    for (std::uint32_t q = 0; q < all_queues.size(); ++q) {
        auto& queue = all_queues[q];
        if (queue.cls == no_index || queue.job != index || queue.told == told_state::nothing)
            continue;
        queue.told = told_state::nothing;
        check_queue(q);
    }
    std::vector<std::uint64_t> told;
    for (const auto& [number, g] : groups)
        if (g.job_index == index && g.waits && g.told != told_state::nothing)
            told.push_back(number);
    for (const auto number : told) {
        groups.at(number).told = told_state::nothing;
        check_group(groups.at(number));
    }
}

// ---- room that has become free ------------------------------------------------------------------

SKEIN_INLINE void schedule_state::look_at_grown(std::vector<grant>& into) {
    std::vector<std::uint32_t> now;
    while (!grown.empty()) {
        now.swap(grown);
        for (const auto p : now) {
            all_places[p].grown = false;
            if (!all_places[p].alive) continue;
            resume(p, into);
            drop_hopeless(p);
            unblock_for(p);
        }
        now.clear();
    }
}

/// Those that have waited for others go on, in the order in which they could.
SKEIN_INLINE void schedule_state::resume(std::uint32_t p, std::vector<grant>& into) {
    auto& place = all_places[p];
    bool any = false;
    while (!place.resuming.empty()) {
        const auto e = place.resuming.front();
        const auto& entry = requests[e];
        const auto cpu = shapes[classes[all_queues[entry.queue].cls].shape].cpu;
        if (!may_resume(place, cpu)) break;
        place.resuming.erase(place.resuming.begin());
        place.resuming_cpus -= cpu;
        --resuming;
        take_cpus_again(e);
        any = true;
        grant g;
        g.id = request_id(requests.id(e));
        g.tag = entry.tag;
        g.place = place.id;
        g.gpus = gpu_set(entry.gpus);
        g.bundle = place.bundle;
        g.resumed = true;
        into.push_back(g);
    }
    if (any) offer(p);
}

SKEIN_INLINE void schedule_state::unblock_for(std::uint32_t p) {
    const auto& kept = all_places[p].kept;
    if (kept.queue != no_index && all_queues[kept.queue].state == queue_state::blocked &&
        fits_reserved(p))
        make_ready(kept.queue);
    for (std::size_t i = 0; i < waiting_classes.size();) {
        const auto c = waiting_classes[i];
        if (!allows(classes[c], p)) {
            ++i;
            continue;
        }
        const auto blocked =
            classes[c].blocked; // leaving changes the list, the last one waiting_classes
        for (const auto q : blocked) make_ready(q);
    }
}

// ---- who is next --------------------------------------------------------------------------------

SKEIN_INLINE std::uint32_t schedule_state::next_job() {
    auto best = no_index;
    std::uint64_t least = 0;
    for (const auto j : ready_jobs) {
        settle(jobs[j]);
        const auto charge = jobs[j].pass + looked_ahead * jobs[j].rate;
        if (best != no_index && (charge > least || (charge == least && jobs[j].id > jobs[best].id)))
            continue;
        best = j;
        least = charge;
    }
    return best;
}

/// The queue whose first request is oldest.
SKEIN_INLINE std::uint32_t schedule_state::next_queue(const job_record& j) const {
    return *std::min_element(j.ready.begin(), j.ready.end(), [&](auto a, auto b) {
        return requests[all_queues[a].first].order < requests[all_queues[b].first].order;
    });
}

SKEIN_INLINE void schedule_state::give(std::uint32_t q, std::uint32_t p, std::vector<grant>& into) {
    const auto e = all_queues[q].first;
    const auto& shape = shapes[classes[all_queues[q].cls].shape];
    stop_ageing(q);
    if (all_queues[q].reserved != no_index) drop_reservation(all_queues[q].reserved);
    unqueue(e);
    auto& place = all_places[p];
    grant g;
    g.gpus = place.now.take(shape.all);
    virtual_time = std::max(virtual_time, jobs[all_queues[q].job].pass);
    settle_on(e, p, g.gpus);
    ++grants;
    g.id = request_id(requests.id(e));
    g.tag = requests[e].tag;
    g.place = place.id;
    g.bundle = place.bundle;
    into.push_back(g);
}

/// Room has been taken for e.
SKEIN_INLINE void schedule_state::settle_on(std::uint32_t e, std::uint32_t p, gpu_set gpus) {
    hold(e, p, gpus);
    const auto& queue = all_queues[requests[e].queue];
    if (all_places[p].host == no_index)
        charge(queue.job, shapes[classes[queue.cls].shape].all, 1, true);
    offer(p);
}

SKEIN_INLINE void schedule_state::charge(std::uint32_t job, const needs& all, int sign,
                                         bool with_cpus) {
    auto& j = jobs[job];
    settle(j);
    if (j.used.size() < dims) j.used.resize(dims);
    for (const auto& n : all)
        if (with_cpus || n.dim != dim_cpu)
            j.used[n.dim == dim_share ? dim_gpu : n.dim] += sign * n.least;
    find_rate(j);
}

/// The charge up to now.
SKEIN_INLINE void schedule_state::settle(job_record& j) const {
    j.pass = std::min(j.pass + j.rate * (turns - j.at), virtual_time + most_owed);
    j.at = turns;
}

/// Its largest share of any resource (dominant resource fairness), by its weight. Rounded up:
/// nothing is free.
SKEIN_INLINE void schedule_state::find_rate(job_record& j) const {
    double share = 0;
    for (std::size_t d = dim_cpu; d < j.used.size(); ++d) {
        if (j.used[d] <= 0) continue;
        const auto all = d < cluster.size() ? cluster[d] : 0;
        const double part =
            static_cast<double>(j.used[d]) / static_cast<double>(std::max(all, j.used[d]));
        share = std::max(share, part);
    }
    j.rate = static_cast<std::uint64_t>(share * charge_scale) / j.weight;
    if (share > 0) ++j.rate;
}

// ---- waiting for long ---------------------------------------------------------------------------

SKEIN_INLINE std::uint64_t schedule_state::patience() const {
    return std::max<std::uint64_t>({1, options.patience, place_of.size()});
}

SKEIN_INLINE void schedule_state::age(std::uint32_t q) {
    auto& queue = all_queues[q];
    queue.ages = true;
    queue.chances = 0;
    queue.since = grants;
    queue.older = youngest;
    queue.younger = no_index;
    (youngest == no_index ? oldest : all_queues[youngest].younger) = q;
    youngest = q;
}

SKEIN_INLINE void schedule_state::stop_ageing(std::uint32_t q) {
    auto& queue = all_queues[q];
    if (!std::exchange(queue.ages, false)) return;
    (queue.older == no_index ? oldest : all_queues[queue.older].younger) = queue.younger;
    (queue.younger == no_index ? youngest : all_queues[queue.younger].older) = queue.older;
    queue.older = queue.younger = no_index;
}

/// Keeps places free for those that too many grants have passed, and ends what has come to nothing.
SKEIN_INLINE void schedule_state::age_all() {
    const auto old = reserved_queues;
    for (const auto q : old)
        if (grants - all_queues[q].since >= 4 * patience())
            drop_reservation(all_queues[q].reserved);
    while (oldest != no_index && grants - all_queues[oldest].since >= patience()) {
        const auto q = oldest;
        stop_ageing(q);
        if (all_queues[q].state == queue_state::blocked) reserve_for(q);
        if (all_queues[q].reserved == no_index) age(q);
    }
    for (auto& [number, g] : groups) {
        if (!g.waits || g.told != told_state::nothing) continue;
        if (g.reserved && grants - g.since >= 4 * patience()) drop_reservations(g);
        if (!g.reserved && grants - g.since >= patience()) reserve_for(g);
    }
}

/// What would be free on a place if all had ended that can be counted on to end.
SKEIN_INLINE room schedule_state::obtainable(const place_record& p) const {
    auto r = p.now;
    for (auto e = p.first_held; e != no_index; e = requests[e].next) {
        const auto& entry = requests[e];
        if ((entry.for_life && !entry.leaving) || entry.state == request_state::waiting) continue;
        const auto& shape = shapes[classes[all_queues[entry.queue].cls].shape];
        r.give(shape.all, gpu_set(entry.gpus), entry.state == request_state::running);
    }
    return r;
}

/// Keeps the place free where least is missing.
SKEIN_INLINE void schedule_state::reserve_for(std::uint32_t q) {
    const auto& cls = classes[all_queues[q].cls];
    const auto& all = shapes[cls.shape].all;
    auto best = no_index;
    double least = 0;
    for (std::uint32_t p = 0; p < all_places.size(); ++p) {
        const auto& place = all_places[p];
        if (!is_open(place) || place.kept.exists() || place.running + place.leaving == 0 ||
            !matches(constraints[cls.where].where, p))
            continue;
        double missing_part = 0;
        for (const auto& n : all)
            missing_part += std::max(0.0, 1 - static_cast<double>(place.now.at(n.dim)) /
                                                  static_cast<double>(n.least));
        if (best != no_index && missing_part >= least) continue;
        if (!obtainable(place).fits(all)) continue;
        best = p;
        least = missing_part;
    }
    if (best == no_index) return;
    all_places[best].kept.kept = all;
    all_places[best].kept.queue = q;
    all_queues[q].reserved = best;
    all_queues[q].since = grants;
    reserved_queues.push_back(q);
    ++reservations;
    offer(best);
}

SKEIN_INLINE bool schedule_state::keep_room(request_id id) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state != request_state::queued) return false;
    const auto q = requests[e].queue;
    if (all_queues[q].reserved != no_index) return true;
    if (all_queues[q].state != queue_state::blocked) return false; // whoever has not been tried
    reserve_for(q);
    if (all_queues[q].reserved == no_index) return false;
    stop_ageing(q);
    return true;
}

SKEIN_INLINE void schedule_state::drop_reservation(std::uint32_t p) {
    auto& place = all_places[p];
    if (!place.kept.exists()) return;
    if (place.kept.group != 0) return drop_reservations(groups.at(place.kept.group));
    const auto q = place.kept.queue;
    all_queues[q].reserved = no_index;
    std::erase(reserved_queues, q);
    place.kept = {};
    if (all_queues[q].state == queue_state::blocked) age(q);
    offer(p);
    grow(p);
}

/// Nothing is left there that ends by itself, and it is not enough: others may need the room to go
/// on.
SKEIN_INLINE void schedule_state::drop_hopeless(std::uint32_t p) {
    const auto& place = all_places[p];
    if (place.kept.exists() && place.running + place.leaving == 0 && !fits_reserved(p))
        drop_reservation(p);
}

} // namespace skein::sched::detail
