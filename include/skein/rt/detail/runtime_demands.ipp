// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of rt/runtime.hpp: tasks that ask for more than any worker has. Who serves
// them is asked of the source of workers, and the cores that these need are lent by the others.
// docs/design/0011-demands.md

#include <skein/rt/detail/runtime_state.hpp>

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

SKEIN_INLINE bool lease_state::has_label(const peer& worker, const std::string& label) {
    return std::find(worker.labels.begin(), worker.labels.end(), label) != worker.labels.end();
}

SKEIN_INLINE bool lease_state::any_has(const std::string& label) const {
    return std::any_of(workers.begin(), workers.end(),
                       [&](const auto& one) { return has_label(*one.second, label); });
}

/// Whether a line that has nothing anywhere is served by the workers that are there, or by workers
/// of its own.
SKEIN_INLINE void lease_state::decide(lease_line& line) {
    if (line.by != lease_line::service::undecided) return;
    if (all_own) {
        line.by = lease_line::service::own;
        return;
    }
    const auto& need = *line.need;
    const bool is_held = need.for_life || need.group != 0;
    if (largest == 0 && need.only_cpus && !is_held) return; // not known yet
    const bool is_shared = !is_held && need.only_cpus && line.cpus <= largest &&
                           (need.is_anywhere() || any_has(need.label));
    line.by = is_shared ? lease_line::service::shared : lease_line::service::own;
}

/// Cores that were lent for it, at a worker of its own.
SKEIN_INLINE std::uint32_t lease_state::cores_of(const call_base& call) const {
    return whole_cores(demands.at(call.demand).need.cpu);
}

/// Takes as many workers out of the scheduler as were asked for, those with the least to do first.
SKEIN_INLINE void lease_state::lend_now() {
    const auto target = lent - std::min(lent, resting);
    std::uint32_t now = 0;
    std::vector<peer*> all;
    for (const auto& [place, worker] : workers) {
        all.push_back(worker);
        if (worker->lent) now += worker->capacity;
    }
    if (now == target) return;
    std::sort(all.begin(), all.end(), [](const peer* a, const peer* b) {
        return std::pair(a->busy, a->number) < std::pair(b->busy, b->number);
    });
    const auto turn = [&](peer& worker, bool on) {
        worker.lent = on;
        worker_idle.set(); // who waits for it looks again
        (void)places.drain(place_of(worker), on || worker.retiring);
        for (const auto& share : worker.shares) release_unused(*share);
        ++state;
        is_changed = true;
    };
    for (auto* worker : all) {
        if (now >= target) break;
        if (worker->lent || worker->retiring || !worker->up) continue;
        if (resting > 0 && now + worker->capacity > target) continue;
        turn(*worker, true);
        now += worker->capacity;
    }
    for (auto at = all.rbegin(); at != all.rend(); ++at) {
        // Rather too few than too many while a task waits for others: these need a core.
        const bool is_spare = resting > 0 ? now > target : now - (*at)->capacity >= target;
        if (!(*at)->lent || !is_spare) continue;
        turn(**at, false);
        now -= (*at)->capacity;
    }
}

/// The cores that were lent are free, as far as there are so many.
SKEIN_INLINE bool lease_state::has_lent() const {
    return std::none_of(workers.begin(), workers.end(),
                        [](const auto& one) { return one.second->lent && one.second->busy != 0; });
}

SKEIN_INLINE result<sched::demand_id> demand_of(sched::demand_table& demands,
                                                const call_options& how, bool for_life) {
    const bool only_cpus = how.gpus.value == 0 && how.memory == 0 && how.resources.empty() &&
                           how.on.is_any() && how.env.empty() && how.cwd.empty();
    if (only_cpus && how.cpus.value == 1 && !for_life) return sched::one_cpu;
    if (only_cpus && how.cpus.value == 0) return sched::demand_id();
    const bool in_group = how.on.group() != 0;
    if (how.on.is_group() && !in_group)
        return error(errc::invalid_argument, ".on is an empty placement_group");
    if (how.on.is_named_group())
        return error(errc::invalid_argument, ".on names no placement_group");
    if (how.on.is_actor() && !how.on.actor())
        return error(errc::invalid_argument, ".on is an empty actor_handle");
    const bool has_text =
        !how.on.is_any() && !in_group && !how.on.is_actor() && !how.on.is_spread();
    if (has_text && how.on.text().empty())
        return error(errc::invalid_argument,
                     fmt::format(".on names no {}", how.on.is_node() ? "node" : "label"));
    if (has_text && how.on.text().find('@') != std::string_view::npos)
        return error(errc::invalid_argument, fmt::format("{} is not a label", how.on.text()))
            .with_hint("none has an @ in it");
    auto env = sched::parse_task_environment(how.env, how.cwd);
    if (!env) return env.error();
    sched::resources need;
    if (!how.resources.empty()) {
        auto custom = sched::parse_resources(how.resources);
        if (!custom) return custom.error();
        need = std::move(*custom);
        if (need.cpu || need.gpu || need.memory != 0)
            return error(errc::invalid_argument,
                         fmt::format(".resources = \"{}\" names cpus, gpus or memory",
                                     how.resources.view()))
                .with_hint("they have options of their own: .cpus, .gpus, .memory");
    }
    try {
        need.cpu = sched::amount::from(how.cpus.value);
        need.gpu = sched::amount::from(how.gpus.value);
    } catch (const error& e) {
        return e;
    }
    need.memory = how.memory;
    // The node of an actor is found when the call is placed.
    if (how.on.is_any() || how.on.is_actor())
        return demands.number(need, {}, for_life, std::move(*env));
    if (how.on.is_spread())
        return demands.number(need, sched::spread_label, for_life, std::move(*env));
    std::string where(how.on.text());
    if (in_group) where = sched::group_label(how.on.group(), how.on.bundle());
    if (in_group && how.on.has_children()) where += '+';
    if (how.on.is_node()) where = fmt::format("node={}", how.on.text());
    return demands.number(need, where, for_life, std::move(*env));
}

} // namespace detail

/// Driver: what an actor holds.
SKEIN_INLINE void runtime::set_demand(detail::call_base& call, const actor_options& how) {
    call_options asked;
    asked.cpus = how.cpus;
    asked.gpus = how.gpus;
    asked.memory = how.memory;
    asked.resources = how.resources;
    asked.on = how.on;
    asked.env = how.env;
    asked.cwd = how.cwd;
    followers::set_demand(*this, call, asked);
}

/// Driver: an actor was declared; it holds what its constructor's call asks for.
SKEIN_INLINE void runtime::keep_demand(const detail::call_base& call) {
    auto* const entry = state_->actors.find(call.target);
    if (entry == nullptr) return;
    if (entry->plan) {
        entry->plan->demand = call.demand;
        if (call.rare) entry->plan->beside = call.rare->beside;
    }
    entry->group = group_desk::of(*this, call.demand);
}

/// Driver: to the end of its line.
SKEIN_INLINE void runtime::line_up(counted_ptr<detail::call_base> call) {
    if (call->kind == detail::call_kind::create) {
        if (!call->demand) {
            state_->creations.push_back(std::move(call));
            return;
        }
        if (auto* const entry = state_->actors.find(call->target)) entry->making = call;
    }
    state_->leases.push(std::move(call));
}

/// Driver: an actor has ended, or could not be made. Its worker, if that was for it alone, ends,
/// too.
SKEIN_INLINE void runtime::actor_left(peer& at) {
    --at.actors;
    state_->leases.note_use(at);
    if (!at.demand || at.spent) return;
    state_->leases.spend(at);
    at.ended.set();
    tell_demand(state_->leases.line_of(at.demand));
}

/// Over the workers that are for this line alone, one task each. More of them are asked for, or
/// fewer.
SKEIN_INLINE void runtime::use_own_workers(detail::lease_line& line) {
    auto& leases = state_->leases;
    if (leases.source == nullptr) {
        while (leases.front(line) != nullptr) refuse_impossible(*leases.pop(line));
        return;
    }
    if (const auto group = group_desk::of(*this, line.demand); group && group->why) {
        while (leases.front(line) != nullptr) {
            const auto call = leases.pop(line);
            refuse(*call,
                   error(group->why->code(), fmt::format("{} {}: {}", call->name(),
                                                         call->progress(), group->why->text())));
        }
    }
    while (leases.front(line) != nullptr) {
        auto* to = leases.pick(line, detail::lease_line::unused);
        if (to == nullptr) break;
        send(*to, leases.pop(line));
    }
    tell_demand(line);
    // Nothing is left of it: workers with room for it may have come meanwhile.
    if (line.is_empty() && line.held == 0 && line.wanted == 0)
        line.by = detail::lease_line::service::undecided;
}

SKEIN_INLINE void runtime::tell_demand(detail::lease_line& line) {
    const auto wanted = line.inner.size() + line.waiting.size() + line.out;
    if (line.wanted == wanted || state_->leases.source == nullptr) return;
    line.wanted = wanted;
    worker_demand what;
    what.demand = line.demand;
    what.need = line.need->need;
    what.label = line.need->label;
    what.group = line.need->group;
    what.bundle = line.need->bundle;
    what.env = line.need->env;
    what.wanted = wanted;
    state_->leases.source->want(what);
}

SKEIN_INLINE void runtime::ask(worker_source* source) noexcept { state_->leases.source = source; }

SKEIN_INLINE void runtime::refuse_demand(sched::demand_id demand, const error& why) {
    auto& leases = state_->leases;
    const auto found = leases.lines.find(demand);
    if (found == leases.lines.end()) return;
    auto& line = found->second;
    std::vector<counted_ptr<detail::call_base>> all;
    while (leases.front(line) != nullptr) all.push_back(leases.pop(line));
    tell_demand(line);
    for (const auto& call : all) {
        error said(why.code(),
                   fmt::format("{} {}: {}", call->name(), call->progress(), why.text()));
        if (!why.hint().empty()) said.with_hint(why.hint());
        if (!why.cause().empty()) said.with_cause(why.cause());
        refuse(*call, std::move(said));
    }
}

SKEIN_INLINE void runtime::lend(std::uint32_t cores) {
    auto& leases = state_->leases;
    leases.lent = cores;
    leases.lend_now();
    if (leases.waits()) pump_leases();
}

SKEIN_INLINE task<void> runtime::lent_is_free() {
    auto& leases = state_->leases;
    while (!leases.has_lent() && !state_->closing) {
        leases.worker_idle.reset();
        auto idle = leases.worker_idle.wait();
        co_await idle;
    }
}

} // namespace skein::rt
