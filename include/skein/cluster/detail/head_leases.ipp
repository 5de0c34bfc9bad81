// SPDX-License-Identifier: Apache-2.0
#pragma once
// Part of the bodies of cluster/head.hpp: leases, from what a driver wants to the end of its worker.

#include <skein/cluster/detail/head_books.hpp>
#include <skein/core/log.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster {

SKEIN_INLINE detail::head_lease& head::books::add_lease(detail::head_job& j, std::uint64_t number,
                                                        const rt::resources& demand) {
    auto made = std::make_unique<detail::head_lease>();
    auto& l = *made;
    l.of = &j;
    l.number = number;
    l.demand = demand;
    l.tag = ++last_tag;
    by_tag.emplace(l.tag, &l);
    j.leases.emplace(number, std::move(made));
    return l;
}

/// Gives back what it holds, and forgets it. Its job stays: forget().
SKEIN_INLINE void head::books::erase(detail::head_lease& l) {
    if (l.request && !schedule.cancel(l.request)) (void)schedule.release(l.request);
    if (l.at != nullptr) l.at->leases.erase({l.of->incarnation, l.number});
    by_tag.erase(l.tag);
    l.of->leases.erase(l.number);
}

SKEIN_INLINE void head::books::forget(detail::head_job& j) {
    if (!j.ending || !j.leases.empty()) return;
    (void)schedule.remove_job(j.id());
    jobs.erase(j.incarnation);
}

SKEIN_INLINE void head::books::end(detail::head_lease& l, bool started, const std::string& why) {
    auto& j = *l.of;
    if (j.session) j.session->tell(lease_ended{l.number, started, why});
    erase(l);
    forget(j);
}

// ---- a driver asks and gives back ----------------------------------------------------------------------------

SKEIN_INLINE void head::books::want(detail::head_job& j, std::uint64_t number,
                                    const std::string& demand) {
    if (j.leases.contains(number)) return; // said again after a lost link
    const auto refuse = [&](const error& why) {
        if (j.session) j.session->tell(lease_ended{number, false, why.what()});
    };
    if (j.leases.size() >= how.most_leases)
        return refuse(error(errc::exhausted,
                            fmt::format("a driver may have {} leases at a time", how.most_leases)));
    const auto wanted = rt::parse_resources(demand);
    if (!wanted) return refuse(wanted.error());
    auto& l = add_lease(j, number, *wanted);
    rt::request r;
    r.job = j.id();
    r.demand = *wanted;
    r.tag = l.tag;
    r.for_life = true; // nobody can count on the end of a worker
    const auto asked = schedule.submit(r);
    if (!asked) return end(l, false, asked.error().what());
    l.request = *asked;
}

SKEIN_INLINE void head::books::give_back(detail::head_job& j, std::uint64_t number) {
    const auto found = j.leases.find(number);
    if (found == j.leases.end()) return; // its end has crossed this
    auto& l = *found->second;
    if (l.state == detail::lease_state::granted) return stop_worker(l);
    if (l.state != detail::lease_state::stopping) erase(l);
}

/// Its room stays taken until the agent says that the worker has ended.
SKEIN_INLINE void head::books::stop_worker(detail::head_lease& l) {
    l.state = detail::lease_state::stopping;
    l.at->session->tell(stop_worker_order{{l.of->incarnation, l.number}});
}

SKEIN_INLINE void head::books::recall(detail::head_lease& l, const std::string& why) {
    if (l.state != detail::lease_state::granted || std::exchange(l.recalled, true)) return;
    if (l.of->session) l.of->session->tell(lease_recalled{l.number, why});
}

SKEIN_INLINE bool head::books::is_feasible(const rt::resources& demand) const {
    return std::any_of(nodes.begin(), nodes.end(), [&](const auto& n) {
        return !n.second->draining && rt::fits(demand, n.second->total);
    });
}

/// Asks those that hold more than their share of the cpus for as many leases as others are short of.
SKEIN_INLINE void head::books::share_out() {
    struct part {
        detail::head_job* of;
        std::int64_t held = 0, wanted = 0; ///< cpus, in steps; what is coming back counts as given
        double fair = 0;
        std::vector<detail::head_lease*> may_give;
    };
    std::vector<part> parts;
    std::int64_t total = 0, coming = 0;
    double weights = 0;
    for (const auto& [number, n] : nodes)
        if (!n->draining) total += n->total.cpu.in_steps();
    for (const auto& [number, j] : jobs) {
        part p{j.get(), 0, 0, 0, {}};
        for (const auto& [k, l] : j->leases) {
            const auto cpus = l->demand.cpu.in_steps();
            if (l->state == detail::lease_state::waits) {
                if (is_feasible(l->demand)) p.wanted += cpus;
            } else if (l->state != detail::lease_state::granted || l->recalled) {
                coming += cpus;
            } else {
                p.held += cpus;
                if (on_loop.now() >= deadline_after(l->granted_at, how.share_quantum))
                    p.may_give.push_back(l.get());
            }
        }
        if (p.held == 0 && p.wanted == 0) continue;
        weights += j->hello.weight;
        parts.push_back(std::move(p));
    }
    std::int64_t missing = -coming;
    for (auto& p : parts) {
        p.fair = static_cast<double>(total) * p.of->hello.weight / weights;
        const auto lacks = static_cast<std::int64_t>(p.fair) - p.held;
        // One that has nothing gets something, whatever its share is.
        if (p.wanted > 0 && (lacks > 0 || p.held == 0))
            missing += std::min(p.wanted, std::max(lacks, rt::amount(1).in_steps()));
    }
    for (auto& p : parts) {
        while (missing > 0 && !p.may_give.empty() && static_cast<double>(p.held) > p.fair) {
            auto& l = *p.may_give.back(); // the newest
            p.may_give.pop_back();
            p.held -= l.demand.cpu.in_steps();
            missing -= l.demand.cpu.in_steps();
            recall(l, "other programs have less than their share");
        }
    }
}

// ---- grants --------------------------------------------------------------------------------------------------

SKEIN_INLINE void head::books::pump() {
    if (over) return;
    std::vector<rt::grant> grants;
    std::vector<rt::notice> notices;
    schedule.take_grants(grants);
    schedule.take_notices(notices);
    for (const auto& g : grants) granted(g);
    for (const auto& n : notices) {
        const auto found = by_tag.find(n.tag);
        if (found == by_tag.end()) continue;
        auto& l = *found->second;
        if (n.what == rt::notice::kind::refused) {
            l.request = {};
            end(l, false, n.why.what());
        } else if (n.what == rt::notice::kind::infeasible && l.of->session) {
            l.of->session->tell(lease_waits{l.number, true, n.why.what()});
        }
    }
}

SKEIN_INLINE void head::books::granted(const rt::grant& g) {
    const auto found = by_tag.find(g.tag);
    auto* n = node_at(g.place.value());
    if (found == by_tag.end() || n == nullptr) {
        (void)schedule.release(g.id);
        return;
    }
    auto& l = *found->second;
    const auto& j = *l.of;
    l.state = detail::lease_state::granted;
    l.at = n;
    l.gpus = g.gpus;
    l.granted_at = on_loop.now();
    n->leases.emplace(lease_name{j.incarnation, l.number}, &l);
    start_worker_order m;
    m.lease = {j.incarnation, l.number};
    m.demand = rt::to_string(l.demand);
    m.gpus = g.gpus.bits();
    m.executable = j.hello.executable;
    m.program = j.hello.program;
    m.folder = j.hello.folder;
    m.name = fmt::format("worker-{}", l.number);
    m.driver_host = j.seen_from;
    m.driver_port = j.hello.port;
    m.driver_address = j.hello.address;
    n->session->tell(m);
    if (j.session) j.session->tell(lease_granted{l.number, n->incarnation, n->name});
}

SKEIN_INLINE void head::books::on_ended(const ended_lease& what, const detail::head_node& from) {
    const auto j = jobs.find(what.lease.driver);
    if (j == jobs.end()) return;
    const auto found = j->second->leases.find(what.lease.number);
    if (found == j->second->leases.end() || found->second->at != &from) return;
    end(*found->second, what.started, what.how);
}

// ---- what those say who come back ----------------------------------------------------------------------------

/// Takes over a lease that a node holds. False: nobody wants it.
SKEIN_INLINE bool head::books::hold(detail::head_node& n, const held_lease& held) {
    auto& j = job_of(held.lease.driver);
    const auto found = j.leases.find(held.lease.number);
    auto* l = found == j.leases.end() ? nullptr : found->second.get();
    if (l != nullptr && l->at == &n) {
        if (l->state == detail::lease_state::stopping) stop_worker(*l); // the order may be lost
        return true;
    }
    if (l != nullptr && l->state != detail::lease_state::expected) return false;
    if (l == nullptr && (j.session != nullptr || j.ending)) return false;
    const auto demand = rt::parse_resources(held.demand);
    if (!demand) return false;
    rt::request r;
    r.job = j.id();
    r.demand = *demand;
    r.for_life = true;
    auto& mine = l != nullptr ? *l : add_lease(j, held.lease.number, *demand);
    r.tag = mine.tag;
    const auto taken = schedule.adopt(r, n.place(), rt::gpu_set(held.gpus));
    if (!taken) {
        logging::warn("head", "a worker cannot be taken over",
                      {{"node", n.name}, {"why", taken.error().what()}});
        end(mine, true, taken.error().what());
        return false;
    }
    mine.request = *taken;
    mine.gpus = rt::gpu_set(held.gpus);
    mine.state = detail::lease_state::granted;
    mine.at = &n;
    n.leases.emplace(held.lease, &mine);
    return true;
}

SKEIN_INLINE void head::books::reconcile(detail::head_node& n, const node_hello& h,
                                         std::vector<lease_name>& stop) {
    for (const auto& e : h.ended) on_ended(e, n);
    std::set<lease_name> held;
    for (const auto& one : h.holds) {
        held.insert(one.lease);
        if (!hold(n, one)) stop.push_back(one.lease);
    }
    // What it was to start or to hold, and does not: an order, or the news of an end, was lost with a link.
    std::vector<detail::head_lease*> lost;
    for (const auto& [name, l] : n.leases)
        if (!held.contains(name)) lost.push_back(l);
    for (auto& [number, j] : jobs)
        for (auto& [k, l] : j->leases)
            if (l->state == detail::lease_state::expected && l->expected_node == n.incarnation)
                lost.push_back(l.get());
    for (auto* l : lost) end(*l, true, fmt::format("node {} does not have it any more", n.name));
}

SKEIN_INLINE void head::books::reconcile(detail::head_job& j, const driver_hello& h) {
    std::set<std::uint64_t> known;
    for (const auto& k : h.leases) {
        known.insert(k.number);
        const auto found = j.leases.find(k.number);
        if (found != j.leases.end()) {
            auto& l = *found->second;
            if (l.state == detail::lease_state::granted && k.node == 0) // it has not heard
                j.session->tell(lease_granted{l.number, l.at->incarnation, l.at->name});
            continue;
        }
        if (k.node == 0) {
            want(j, k.number, k.demand);
            continue;
        }
        const auto demand = rt::parse_resources(k.demand);
        if (!demand || node_at(k.node) != nullptr || j.leases.size() >= how.most_leases) {
            j.session->tell(lease_ended{k.number, true, "its node does not have it any more"});
            continue;
        }
        auto& l = add_lease(j, k.number, *demand);
        l.state = detail::lease_state::expected;
        l.expected_node = k.node;
        l.until = deadline_after(on_loop.now(), how.driver_grace);
    }
    std::vector<std::uint64_t> unknown;
    for (const auto& [number, l] : j.leases)
        if (!known.contains(number)) unknown.push_back(number);
    for (const auto number : unknown) give_back(j, number);
}

} // namespace skein::cluster
