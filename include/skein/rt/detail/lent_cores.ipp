// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/lent_cores.hpp.

#include <skein/rt/detail/lent_cores.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace skein::rt::detail {

SKEIN_INLINE void lent_cores::begin(call_id id, call_base& call, worker_room& at) {
    if (!may_wait(call)) return;
    parents_.enter(id, {&call, &at, 0});
    ++lines_.line_of(call.demand).parents;
}

SKEIN_INLINE void lent_cores::begin_wait(const worker_room& at, call_id id) {
    auto* const found = parents_.find(id);
    if (found == nullptr || found->at != &at) return;
    if (found->children++ > 0) return;
    const auto [call, where, children] = *found;
    ++where->parents;
    set_blocked(*where, *call, true);
}

SKEIN_INLINE void lent_cores::end_wait(const worker_room& at, call_id id) {
    auto* const found = parents_.find(id);
    if (found == nullptr || found->at != &at) return;
    if (found->children == 0 || --found->children > 0) return;
    const auto [call, where, children] = *found;
    --where->parents;
    set_blocked(*where, *call, false);
}

SKEIN_INLINE bool lent_cores::end(call_id id, const call_base& call) {
    if (!may_wait(call)) return true;
    const auto* const found = parents_.find(id);
    if (found == nullptr) return true; // its worker is lost
    bool had_cores = found->children == 0;
    if (!had_cores) --found->at->parents;
    if (!had_cores && found->at->demand) {
        set_blocked(*found->at, call, false);
        had_cores = true;
    }
    parents_.erase(id);
    --lines_.line_of(call.demand).parents;
    return had_cores;
}

SKEIN_INLINE void lent_cores::forget(const worker_room& at) {
    parents_.erase_if([&](call_id, const parent& one) {
        if (one.at != &at) return false;
        --lines_.line_of(one.call->demand).parents;
        if (at.demand && one.children > 0) blocked_ -= std::min(blocked_, cores_of(*one.call));
        return true;
    });
}

/// At a worker of its own a task leaves the cores that were lent for it: what else it has there
/// nobody can use meanwhile.
SKEIN_INLINE void lent_cores::set_blocked(worker_room& at, const call_base& call, bool on) {
    if (!at.demand) return book_.set_blocked(at, call, on);
    const auto cores = cores_of(call);
    blocked_ = on ? blocked_ + cores : blocked_ - std::min(blocked_, cores);
    if (source_ != nullptr) source_->blocked(*at.wire, on);
    lend_now();
}

/// Cores that were lent for it, at a worker of its own.
SKEIN_INLINE std::uint32_t lent_cores::cores_of(const call_base& call) const {
    return whole_cores(lines_.demands().at(call.demand).need.cpu);
}

SKEIN_INLINE void lent_cores::lend(std::uint32_t cores) {
    lent_ = cores;
    lend_now();
}

SKEIN_INLINE void lent_cores::lend_now() {
    const auto target = lent_ - std::min(lent_, blocked_);
    std::uint32_t now = 0;
    std::vector<worker_room*> all;
    for (auto* const worker : book_.workers()) {
        if (!worker->is_place) continue;
        all.push_back(worker);
        if (worker->lent) now += worker->capacity;
    }
    if (now == target) return;
    std::sort(all.begin(), all.end(), [](const worker_room* a, const worker_room* b) {
        return std::pair(a->busy, a->place) < std::pair(b->busy, b->place);
    });
    for (auto* const worker : all) {
        if (now >= target) break;
        if (worker->lent || worker->retiring || !worker->up) continue;
        if (blocked_ > 0 && now + worker->capacity > target) continue;
        turn(*worker, true);
        now += worker->capacity;
    }
    for (auto at = all.rbegin(); at != all.rend(); ++at) {
        // Rather too few than too many while a task waits for others: these need a core.
        const bool is_spare = blocked_ > 0 ? now > target : now - (*at)->capacity >= target;
        if (!(*at)->lent || !is_spare) continue;
        turn(**at, false);
        now -= (*at)->capacity;
    }
}

SKEIN_INLINE void lent_cores::turn(worker_room& worker, bool on) {
    worker.lent = on;
    book_.lent_changed().set(); // who waits for it looks again
    book_.update(worker);
}

SKEIN_INLINE bool lent_cores::are_free() const {
    const auto& all = book_.workers();
    return std::none_of(all.begin(), all.end(), [](const worker_room* one) {
        return one->is_place && one->lent && one->busy != 0;
    });
}

} // namespace skein::rt::detail
