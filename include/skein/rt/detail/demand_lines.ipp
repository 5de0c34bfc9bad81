// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of rt/detail/demand_lines.hpp.

#include <skein/rt/detail/demand_lines.hpp>
#include <skein/sched/task_environment.hpp>

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::rt::detail {

SKEIN_INLINE lease_line& demand_lines::line_of(sched::demand_id demand) {
    auto& line = lines_[demand];
    if (line.need != nullptr) return line;
    line.need = &demands_.at(demand);
    line.demand = demand;
    line.cpus = line.need->cpus;
    return line;
}

SKEIN_INLINE lease_line* demand_lines::find(sched::demand_id demand) noexcept {
    const auto found = lines_.find(demand);
    return found != lines_.end() ? &found->second : nullptr;
}

SKEIN_INLINE void demand_lines::push(counted_ptr<call_base> call) {
    if (call->alone != 0) {
        suspects_.push_back({std::move(call), gone_ + waiting_});
        return;
    }
    auto& line = line_of(call->demand);
    (call->nested ? line.inner : line.waiting).push_back(std::move(call));
    ++waiting_;
}

SKEIN_INLINE void demand_lines::push_front(const calls& again) {
    for (auto at = again.rbegin(); at != again.rend(); ++at) {
        if ((*at)->alone != 0) {
            push(*at);
            continue;
        }
        auto& line = line_of((*at)->demand);
        ((*at)->nested ? line.inner : line.waiting).push_front(*at);
        ++waiting_;
    }
}

SKEIN_INLINE counted_ptr<call_base> demand_lines::pop(lease_line& line) {
    auto& queue = line.next();
    auto call = std::move(queue.front());
    queue.pop_front();
    --waiting_;
    ++gone_;
    return call;
}

SKEIN_INLINE call_base* demand_lines::front(lease_line& line) {
    while (!line.is_empty() && line.next().front()->is_done()) (void)pop(line);
    return line.is_empty() ? nullptr : line.next().front().get();
}

SKEIN_INLINE void demand_lines::take_all(calls& into) {
    for (auto& [demand, line] : lines_)
        while (front(line) != nullptr) into.push_back(pop(line));
    for (auto& one : std::exchange(suspects_, {})) into.push_back(std::move(one.call));
}

SKEIN_INLINE demand_lines::suspect demand_lines::pop_suspect() {
    auto one = std::move(suspects_.front());
    suspects_.pop_front();
    return one;
}

SKEIN_INLINE sched::place place_of(const location& on) {
    using kind = sched::place::kind;
    const auto what = on.is_anywhere()      ? kind::anywhere
                      : on.is_any()         ? kind::any
                      : on.is_spread()      ? kind::spread
                      : on.is_group()       ? kind::group
                      : on.is_named_group() ? kind::named_group
                      : on.is_actor()       ? kind::actor
                                            : kind::nodes;
    auto name = on.is_node() ? fmt::format("node={}", on.text()) : std::string(on.text());
    return {what, std::move(name), on.group(), on.bundle(), on.has_children(), on.actor()};
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
    return demands.number(need, place_of(how.on).to_text(), for_life, std::move(*env));
}

} // namespace skein::rt::detail
