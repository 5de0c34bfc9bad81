// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of sched/scheduler.hpp: requests, from submit() to release(), and the queues they wait
// in.

#include <skein/sched/detail/scheduler.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace skein::sched {

SKEIN_INLINE constraint constraint::on(place_id place) {
    constraint c;
    c.kind_ = kind::place;
    c.number_ = place.value();
    return c;
}
SKEIN_INLINE constraint constraint::labelled(std::string label) {
    constraint c;
    c.kind_ = kind::label;
    c.label_ = std::move(label);
    return c;
}
SKEIN_INLINE constraint constraint::spread() {
    constraint c;
    c.spread_ = true;
    return c;
}
SKEIN_INLINE constraint constraint::in(placement_group_id group, int bundle) {
    constraint c;
    c.kind_ = kind::group;
    c.number_ = group.value();
    c.bundle_ = bundle;
    return c;
}
SKEIN_INLINE constraint constraint::avoiding(std::vector<place_id> places) const {
    auto c = *this;
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    c.avoid_ = std::move(places);
    return c;
}

namespace detail {

/// What is asked for by dimension. A custom resource that no place has ever had gets no_index,
/// which fits nowhere.
SKEIN_INLINE needs schedule_state::needs_of(const resources& r) {
    needs all;
    if (r.cpu) all.push_back({dim_cpu, r.cpu.in_steps()});
    if (r.memory != 0) all.push_back({dim_memory, static_cast<std::int64_t>(r.memory)});
    if (r.gpu) all.push_back({r.gpu.is_whole() ? dim_gpu : dim_share, r.gpu.in_steps()});
    for (const auto& c : r.custom) {
        const auto known = custom_dims.find(c.name);
        all.push_back({known == custom_dims.end() ? no_index : known->second, c.value.in_steps()});
    }
    return all;
}

/// An index for a new element, one that is free again if there is one.
template <class T>
[[nodiscard]] std::uint32_t free_index(std::vector<T>& all, std::vector<std::uint32_t>& free) {
    if (free.empty()) {
        all.emplace_back();
        return static_cast<std::uint32_t>(all.size() - 1);
    }
    const auto index = free.back();
    free.pop_back();
    all[index] = T();
    return index;
}

SKEIN_INLINE std::uint32_t schedule_state::intern_shape(const resources& demand) {
    if (const auto found = shape_of.find(demand); found != shape_of.end()) return found->second;
    const auto index = free_index(shapes, free_shapes);
    auto& s = shapes[index];
    s.demand = demand;
    number_shape(s);
    shape_of.emplace(demand, index);
    return index;
}

/// What a shape asks for in numbers; done again when a resource gets its number.
SKEIN_INLINE void schedule_state::number_shape(shape_record& s) {
    s.all = needs_of(s.demand);
    s.cpu = s.demand.cpu.in_steps();
    if (s.demand.gpu) {
        s.main = s.demand.gpu.is_whole() ? dim_gpu : dim_share;
    } else if (!s.all.empty()) {
        s.main = s.all.front().dim;
    }
}

SKEIN_INLINE std::uint32_t schedule_state::intern_constraint(const constraint& where) {
    if (const auto found = constraint_of.find(where); found != constraint_of.end())
        return found->second;
    const auto index = free_index(constraints, free_constraints);
    auto& c = constraints[index];
    c.where = where;
    if (const auto* label = label_of(where)) {
        c.labelled = std::make_unique<place_domain>();
        for (std::uint32_t p = 0; p < all_places.size(); ++p) {
            const auto& has = all_places[p].labels;
            if (all_places[p].alive && std::find(has.begin(), has.end(), *label) != has.end()) {
                join(*c.labelled, p);
                offer(p);
            }
        }
    }
    if (spreads(where)) {
        c.by_node = std::make_unique<node_domain>();
        for (std::uint32_t p = 0; p < all_places.size(); ++p) {
            if (!all_places[p].alive || all_places[p].host != no_index) continue;
            join_node(*c.by_node, p);
            offer(p);
        }
    }
    constraint_of.emplace(where, index);
    return index;
}

SKEIN_INLINE std::uint32_t schedule_state::intern_class(const request& r) {
    const std::pair key(intern_shape(r.demand), intern_constraint(r.where));
    if (const auto found = class_of.find(key); found != class_of.end()) return found->second;
    const auto index = free_index(classes, free_classes);
    classes[index].shape = key.first;
    classes[index].where = key.second;
    ++shapes[key.first].classes;
    ++constraints[key.second].classes;
    class_of.emplace(key, index);
    return index;
}

SKEIN_INLINE void schedule_state::drop_class(std::uint32_t c) {
    const auto shape = classes[c].shape, where = classes[c].where;
    class_of.erase({shape, where});
    free_classes.push_back(c);
    if (--shapes[shape].classes == 0) {
        shape_of.erase(shapes[shape].demand);
        free_shapes.push_back(shape);
    }
    if (--constraints[where].classes == 0) {
        const auto& gone = constraints[where];
        if (gone.labelled || gone.by_node)
            for (auto& p : all_places)
                std::erase_if(p.in, [&](const auto& x) {
                    return x.first == gone.labelled.get() ||
                           (gone.by_node && x.first->of == gone.by_node.get());
                });
        constraint_of.erase(constraints[where].where);
        constraints[where] = {};
        free_constraints.push_back(where);
    }
}

SKEIN_INLINE std::uint32_t schedule_state::queue_for(const request& r) {
    if (recent.queue != no_index && recent.last.job == r.job && recent.last.demand == r.demand &&
        recent.last.where == r.where && recent.last.fail_if_infeasible == r.fail_if_infeasible)
        return recent.queue;
    const auto cls = intern_class(r);
    const std::tuple key(job_for(r.job), cls, r.fail_if_infeasible);
    auto found = queue_of.find(key);
    if (found == queue_of.end()) {
        const auto index = free_index(all_queues, free_queues);
        auto& q = all_queues[index];
        q.job = std::get<0>(key);
        q.cls = cls;
        q.fails = r.fail_if_infeasible;
        ++classes[cls].queues;
        found = queue_of.emplace(key, index).first;
    }
    recent.queue = found->second;
    recent.last = r;
    return found->second;
}

SKEIN_INLINE void schedule_state::drop_queue(std::uint32_t q) {
    auto& queue = all_queues[q];
    queue_of.erase({queue.job, queue.cls, queue.fails});
    if (recent.queue == q) recent.queue = no_index;
    if (--classes[queue.cls].queues == 0) drop_class(queue.cls);
    queue.cls = no_index;
    free_queues.push_back(q);
}

/// Nothing is queued in it or granted from it. The last ones are kept: the next request may want
/// them.
SKEIN_INLINE void schedule_state::queue_is_idle(std::uint32_t q) {
    if (all_queues[q].queued != 0 || all_queues[q].granted != 0 || all_queues[q].idles) return;
    all_queues[q].idles = true;
    idle_queues.push_back(q);
    if (idle_queues.size() <= 64) return;
    const auto last = idle_queues.front();
    idle_queues.pop_front();
    all_queues[last].idles = false;
    if (all_queues[last].queued == 0 && all_queues[last].granted == 0) drop_queue(last);
}

SKEIN_INLINE std::uint32_t schedule_state::job_for(job_id id) {
    if (const auto found = job_of.find(id); found != job_of.end()) return found->second;
    const auto index = free_index(jobs, free_jobs);
    jobs[index].id = id;
    jobs[index].pass = virtual_time;
    jobs[index].at = turns;
    job_of.emplace(id, index);
    return index;
}

SKEIN_INLINE result<void> schedule_state::check(const request& r) const {
    if (auto ok = check_demand(r.demand); !ok) return ok;
    if (avoided(r.where).size() > 64)
        return error(errc::too_large, fmt::format("a request avoids {} places, more than 64",
                                                  avoided(r.where).size()))
            .with_hint("give the places that are wanted a label");
    const auto* label = label_of(r.where);
    if (label != nullptr && (label->empty() || label->size() > 256))
        return error(errc::invalid_argument, fmt::format("a label of {} bytes", label->size()))
            .with_hint("1 to 256");
    if (const auto number = group_in(r.where); number != 0) {
        const auto g = groups.find(number);
        if (g == groups.end())
            return error(errc::not_found, fmt::format("placement group {} is not there", number))
                .with_hint("it was removed, or never made here");
        const auto count = static_cast<int>(g->second.bundles.size());
        if (bundle_in(r.where) < -1 || bundle_in(r.where) >= count)
            return error(errc::invalid_argument, fmt::format("placement group {} has no bundle {}",
                                                             number, bundle_in(r.where)))
                .with_hint(fmt::format("it has 0 to {}; -1 is any", count - 1));
    }
    return {};
}

SKEIN_INLINE result<request_id> schedule_state::submit(const request& r) {
    if (auto ok = check(r); !ok) return ok.error();
    const auto q = queue_for(r);
    if (r.fail_if_infeasible && !is_feasible(all_queues[q].cls)) {
        auto why = missing(classes[all_queues[q].cls]);
        queue_is_idle(q);
        return why;
    }
    const auto e = requests.take();
    auto& entry = requests[e];
    entry.tag = r.tag;
    entry.order = ++submitted;
    entry.queue = q;
    entry.for_life = r.for_life;
    entry.leaving = false;
    append(q, e);
    return request_id(requests.id(e));
}

SKEIN_INLINE result<request_id> schedule_state::adopt(request r, place_id at, gpu_set gpus) {
    const auto found = place_of.find(at);
    if (found == place_of.end()) return error(errc::not_found, "no such place");
    const auto p = adopting_place(r, found->second, gpus);
    if (p == no_index)
        return error(errc::exhausted, fmt::format("no bundle of the placement group is on {}",
                                                  all_places[found->second].name));
    if (group_in(r.where) == 0) r.where = constraint::on(at); // nobody else asks for it
    r.fail_if_infeasible = false;
    const auto made = submit(r);
    if (!made) return made.error();
    const auto e = requests.find(made->value());
    auto& place = all_places[p];
    const auto& all = shapes[classes[all_queues[requests[e].queue].cls].shape].all;
    if (!place.now.take_these(all, gpus, true)) {
        cancel(*made);
        return error(errc::exhausted,
                     fmt::format("{} has not {} free", place.name, to_string(r.demand)));
    }
    unqueue(e);
    settle_on(e, p, gpus);
    return *made;
}

/// The place itself, or the first bundle there that has room for it, or but for its cpus; no_index:
/// there is none.
SKEIN_INLINE std::uint32_t schedule_state::adopting_place(const request& r, std::uint32_t host,
                                                          gpu_set gpus) {
    const auto number = group_in(r.where);
    if (number == 0) return host;
    const auto g = groups.find(number);
    if (g == groups.end()) return no_index;
    const auto& bundles = g->second.bundles;
    const auto wanted = needs_of(r.demand);
    auto over = no_index; // whose cpus others have, while one that is in it waits
    for (std::size_t b = 0; b < bundles.size(); ++b) {
        const auto p = bundles[b].place;
        if (p == no_index || all_places[p].host != host) continue;
        if (bundle_in(r.where) >= 0 && bundle_in(r.where) != static_cast<int>(b)) continue;
        auto now = all_places[p].now;
        if (bundle_in(r.where) >= 0 || now.take_these(wanted, gpus)) return p;
        if (over == no_index && now.take_these(wanted, gpus, true)) over = p;
    }
    return over;
}

SKEIN_INLINE void schedule_state::append(std::uint32_t q, std::uint32_t e) {
    auto& queue = all_queues[q];
    auto& entry = requests[e];
    entry.state = request_state::queued;
    entry.prev = queue.last;
    (queue.last == no_index ? queue.first : requests[queue.last].next) = e;
    queue.last = e;
    ++queued;
    auto& job = jobs[queue.job];
    if (job.queued++ == 0) { // what it did not use while it asked for nothing is not owed to it
        settle(job);
        job.pass = std::max(job.pass, virtual_time);
    }
    if (queue.queued++ == 0) check_queue(q);
}

/// Takes a queued request out of its queue.
SKEIN_INLINE void schedule_state::unqueue(std::uint32_t e) {
    auto& entry = requests[e];
    const auto q = entry.queue;
    auto& queue = all_queues[q];
    (entry.prev == no_index ? queue.first : requests[entry.prev].next) = entry.next;
    (entry.next == no_index ? queue.last : requests[entry.next].prev) = entry.prev;
    entry.next = entry.prev = no_index;
    --queued;
    --jobs[queue.job].queued;
    if (--queue.queued != 0) return;
    if (queue.state == queue_state::ready) not_ready(q);
    if (queue.state == queue_state::blocked) leave_blocked(q);
    queue.state = queue_state::empty;
    queue.told = told_state::nothing;
    stop_ageing(q);
    if (queue.reserved != no_index) drop_reservation(queue.reserved);
}

SKEIN_INLINE bool schedule_state::cancel(request_id id) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state != request_state::queued) return false;
    const auto q = requests[e].queue;
    unqueue(e);
    requests.free(e);
    queue_is_idle(q);
    return true;
}

SKEIN_INLINE void schedule_state::hold(std::uint32_t e, std::uint32_t place, gpu_set gpus) {
    auto& entry = requests[e];
    auto& p = all_places[place];
    entry.place = place;
    entry.gpus = gpus.bits();
    entry.state = request_state::running;
    entry.prev = no_index;
    entry.next = p.first_held;
    if (p.first_held != no_index) requests[p.first_held].prev = e;
    p.first_held = e;
    ++p.held;
    ++all_queues[entry.queue].granted;
    ++granted;
    count_running(entry, 1);
}

/// An entry begins (1) or stops (-1) to run.
SKEIN_INLINE void schedule_state::count_running(const request_entry& entry, int by) {
    const auto add = static_cast<std::uint32_t>(by);
    auto& p = all_places[entry.place];
    if (entry.leaving) p.leaving += add;
    if (entry.for_life) return;
    p.running += add;
    if (shapes[classes[all_queues[entry.queue].cls].shape].cpu != 0) p.running_cpus += add;
    running += static_cast<std::size_t>(static_cast<std::int64_t>(by));
}

SKEIN_INLINE bool schedule_state::set_leaving(request_id id, bool on) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state == request_state::queued) return false;
    auto& entry = requests[e];
    if (std::exchange(entry.leaving, on) == on) return true;
    if (entry.state == request_state::running) // else it counts when it goes on
        all_places[entry.place].leaving += on ? 1u : -1u;
    grow(entry.place); // what is kept there for others may be hopeless now
    return true;
}

SKEIN_INLINE bool schedule_state::release(request_id id) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state == request_state::queued) return false;
    give_back(e);
    return true;
}

/// All that a granted request holds; its entry is free then.
SKEIN_INLINE void schedule_state::give_back(std::uint32_t e) {
    const auto entry = requests[e];
    auto& p = all_places[entry.place];
    const auto q = entry.queue;
    const auto& shape = shapes[classes[all_queues[q].cls].shape];
    const bool has_cpus = entry.state == request_state::running;
    if (has_cpus) count_running(entry, -1);
    if (entry.state == request_state::waiting) --waiting;
    if (entry.state == request_state::resuming) {
        --resuming;
        std::erase(p.resuming, e);
        p.resuming_cpus -= shape.cpu;
    }
    (entry.prev == no_index ? p.first_held : requests[entry.prev].next) = entry.next;
    if (entry.next != no_index) requests[entry.next].prev = entry.prev;
    --p.held;
    --granted;
    p.now.give(shape.all, gpu_set(entry.gpus), has_cpus);
    if (p.host == no_index) charge(all_queues[q].job, shape.all, -1, has_cpus);
    requests.free(e);
    --all_queues[q].granted;
    offer(entry.place);
    grow(entry.place);
    queue_is_idle(q);
}

/// Everything that holds room on a place.
SKEIN_INLINE void schedule_state::evict(std::uint32_t place, std::vector<evicted>& into) {
    const auto begin = into.size();
    while (all_places[place].first_held != no_index) {
        const auto e = all_places[place].first_held;
        into.push_back({request_id(requests.id(e)), requests[e].tag});
        give_back(e);
    }
    std::reverse(into.begin() + static_cast<std::ptrdiff_t>(begin), into.end());
}

SKEIN_INLINE bool schedule_state::wait_begin(request_id id) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state != request_state::running) return false;
    auto& entry = requests[e];
    const auto q = entry.queue;
    const auto cpu = shapes[classes[all_queues[q].cls].shape].cpu;
    auto& p = all_places[entry.place];
    count_running(entry, -1);
    entry.state = request_state::waiting;
    ++waiting;
    p.now.add_cpus(cpu);
    if (p.host == no_index && cpu != 0) charge(all_queues[q].job, {{dim_cpu, cpu}}, -1, true);
    offer(entry.place);
    grow(entry.place);
    return true;
}

SKEIN_INLINE bool schedule_state::wait_end(request_id id) {
    const auto e = requests.find(id.value());
    if (e == no_index || requests[e].state != request_state::waiting) return false;
    auto& entry = requests[e];
    const auto cpu = shapes[classes[all_queues[entry.queue].cls].shape].cpu;
    auto& p = all_places[entry.place];
    --waiting;
    if (cpu == 0 || (p.resuming.empty() && may_resume(p, cpu))) {
        take_cpus_again(e);
        offer(entry.place);
        return true;
    }
    entry.state = request_state::resuming;
    ++resuming;
    p.resuming.push_back(e);
    p.resuming_cpus += cpu;
    offer(entry.place);
    return false;
}

/// The cpus are free, or nobody is left on the place whose end or wait would free them: then the
/// place runs more than it has cpus, by this one.
SKEIN_INLINE bool schedule_state::may_resume(const place_record& p, std::int64_t cpu) {
    return p.now.at(dim_cpu) >= cpu || p.running_cpus == 0;
}

SKEIN_INLINE void schedule_state::take_cpus_again(std::uint32_t e) {
    auto& entry = requests[e];
    auto& p = all_places[entry.place];
    const auto cpu = shapes[classes[all_queues[entry.queue].cls].shape].cpu;
    entry.state = request_state::running;
    count_running(entry, 1);
    p.now.add_cpus(-cpu);
    if (p.host == no_index && cpu != 0)
        charge(all_queues[entry.queue].job, {{dim_cpu, cpu}}, 1, true);
}

/// Every queued request of a queue is gone, and its owner told so.
SKEIN_INLINE void schedule_state::refuse(std::uint32_t q, const error& why) {
    while (all_queues[q].first != no_index) {
        const auto e = all_queues[q].first;
        notice n;
        n.id = request_id(requests.id(e));
        n.tag = requests[e].tag;
        n.why = why;
        notices.push_back(std::move(n));
        unqueue(e);
        requests.free(e);
    }
    queue_is_idle(q);
}

SKEIN_INLINE std::vector<evicted> schedule_state::remove_job(job_id id) {
    std::vector<evicted> out;
    const auto found = job_of.find(id);
    if (found == job_of.end()) return out;
    const auto j = found->second;
    std::vector<placement_group_id> its_groups;
    for (const auto& [number, g] : groups)
        if (g.job_index == j) its_groups.push_back(g.id);
    for (const auto g : its_groups) {
        const auto gone = remove_group(g);
        out.insert(out.end(), gone.begin(), gone.end());
    }
    bool holds = false;
    for (std::uint32_t q = 0; q < all_queues.size(); ++q) {
        auto& queue = all_queues[q];
        if (queue.cls == no_index || queue.job != j) continue;
        while (queue.first != no_index) {
            const auto e = queue.first;
            unqueue(e);
            requests.free(e);
        }
        if (queue.granted != 0) {
            holds = true;
            continue;
        }
        std::erase(idle_queues, q);
        queue.idles = false;
        drop_queue(q);
    }
    if (!holds) {
        job_of.erase(found);
        free_jobs.push_back(j);
    }
    return out;
}

} // namespace detail

// ---- the public side ----------------------------------------------------------------------------

SKEIN_INLINE scheduler::scheduler(scheduler_options options)
    : state_(std::make_unique<detail::schedule_state>(options)) {}
SKEIN_INLINE scheduler::scheduler(scheduler&&) noexcept = default;
SKEIN_INLINE scheduler& scheduler::operator=(scheduler&&) noexcept = default;
SKEIN_INLINE scheduler::~scheduler() = default;

SKEIN_INLINE result<void> scheduler::add_place(place_id id, std::string name,
                                               const resources& total,
                                               std::vector<std::string> labels) {
    return state_->add_place(id, std::move(name), total, std::move(labels));
}
SKEIN_INLINE bool scheduler::set_labels(place_id id, std::vector<std::string> labels) {
    return state_->set_labels(id, std::move(labels));
}
SKEIN_INLINE std::vector<evicted> scheduler::remove_place(place_id id) {
    return state_->remove_place(id);
}
SKEIN_INLINE bool scheduler::drain(place_id id, bool on) { return state_->drain(id, on); }
SKEIN_INLINE void scheduler::set_weight(job_id job, std::uint32_t weight) {
    auto& j = state_->jobs[state_->job_for(job)];
    state_->settle(j);
    j.weight = std::clamp(weight, 1u, 1000u);
    state_->find_rate(j);
}
SKEIN_INLINE std::vector<evicted> scheduler::remove_job(job_id job) {
    return state_->remove_job(job);
}
SKEIN_INLINE result<request_id> scheduler::submit(const request& r) { return state_->submit(r); }
SKEIN_INLINE result<request_id> scheduler::adopt(const request& r, place_id at, gpu_set gpus) {
    return state_->adopt(r, at, gpus);
}
SKEIN_INLINE bool scheduler::cancel(request_id id) { return state_->cancel(id); }
SKEIN_INLINE bool scheduler::release(request_id id) { return state_->release(id); }
SKEIN_INLINE bool scheduler::set_leaving(request_id id, bool on) {
    return state_->set_leaving(id, on);
}
SKEIN_INLINE bool scheduler::keep_room(request_id id) { return state_->keep_room(id); }
SKEIN_INLINE bool scheduler::keep_room(placement_group_id id) { return state_->keep_room(id); }
SKEIN_INLINE bool scheduler::wait_begin(request_id id) { return state_->wait_begin(id); }
SKEIN_INLINE bool scheduler::wait_end(request_id id) { return state_->wait_end(id); }
SKEIN_INLINE result<placement_group_id> scheduler::create_group(group_request g) {
    return state_->create_group(std::move(g));
}
SKEIN_INLINE bool scheduler::adopt_bundle(placement_group_id id, std::size_t bundle, place_id at,
                                          gpu_set gpus) {
    return state_->adopt_bundle(id, bundle, at, gpus);
}
SKEIN_INLINE void scheduler::move_bundles(place_id from) { state_->move_bundles(from); }
SKEIN_INLINE std::vector<evicted> scheduler::remove_group(placement_group_id id) {
    return state_->remove_group(id);
}
SKEIN_INLINE std::size_t scheduler::take_grants(std::vector<grant>& into, std::size_t limit) {
    return state_->take_grants(into, limit);
}
SKEIN_INLINE void scheduler::take_notices(std::vector<notice>& into) {
    for (auto& n : state_->notices) into.push_back(std::move(n));
    state_->notices.clear();
}
SKEIN_INLINE void scheduler::say_again(job_id job) { state_->say_again(job); }

} // namespace skein::sched
