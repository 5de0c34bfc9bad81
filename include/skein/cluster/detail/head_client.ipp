// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/head_client.hpp.

#include <skein/cluster/detail/training_messages.hpp>
#include <skein/sched/demands.hpp>

#include <vector>

namespace skein::cluster::detail {

SKEIN_INLINE head_client::head_client(loop& on, net::network& via, head_link_options link,
                                      proc::print_lines print, const char* goes_on, event* stopping,
                                      head_events& events, group_events& groups)
    : head_(link.head), stopping_(stopping), events_(events), group_events_(groups),
      output_(on, std::move(print), *this),
      link_(
          on, via,
          [&] {
              link.make_service = [this] { return make_service(); };
              link.say_hello = [this] { return say_hello(this); };
              link.on_away = [at = to_string(head_), goes_on](const error& why, bool was_joined) {
                  if (was_joined)
                      logging::warn("cluster", fmt::format("the head is away; {} go on", goes_on),
                                    {{"head", at}, {"why", why.what()}});
              };
              return std::move(link);
          }(),
          stopping) {}

SKEIN_INLINE task<void> head_client::keep_joined(head_client* self) {
    std::optional<error> fault;
    try {
        auto joining = self->link_.keep();
        co_await joining;
    } catch (const error& e) {
        fault = e;
    }
    if (!fault && self->stopping_->is_set()) co_return;
    if (!fault) throw error(errc::closed, "the cluster was stopped");
    if (fault->code() == errc::cancelled || fault->text().starts_with("listen ")) throw *fault;
    throw no_cluster_for_driver(self->head_, *fault);
}

SKEIN_INLINE driver_hello head_client::hello() {
    auto h = events_.describe();
    h.again = link_.was_welcomed();
    h.prints = output_.is_wanted();
    for (auto& [number, l] : leases_) {
        if (l.node == 0 && l.wish.rank.is_there()) continue;
        l.is_told = true;
        const auto& w = l.wish;
        const auto node = l.node == 0 && l.has_come ? unknown_node : l.node;
        h.leases.push_back({number, w.demand, node, w.label, w.own, w.env, w.cwd});
    }
    for (auto& [number, g] : groups_) {
        g.is_told = true;
        h.groups.push_back(g.known);
    }
    return h;
}

SKEIN_INLINE task<void> head_client::say_hello(head_client* self) {
    self->lose_unanswered();
    const auto h = self->hello();
    auto joining = self->link_.join<driver_welcome>(h);
    const auto w = co_await joining;
    // What has changed while the hello was under way.
    auto& link = self->link_;
    for (const auto& one : h.leases)
        if (!self->leases_.contains(one.number) && one.number != space_server_lease)
            (void)link.tell(return_lease{one.number});
    for (const auto& g : h.groups)
        if (!self->groups_.contains(g.number)) (void)link.tell(cluster::drop_group{g.number});
    for (auto& [number, g] : self->groups_)
        if (!g.is_told) self->tell(g);
    for (auto& [number, l] : self->leases_)
        if (!l.is_told) l.is_told = self->tell_unless_stopping(l.wish);
    for (const auto& [number, l] : self->leases_) {
        if (l.blocked) (void)link.tell(lease_blocked{number, *l.blocked});
        if (l.ends) (void)link.tell(return_lease{number, *l.ends});
    }
    self->output_.lose_others(self->leases_);
    self->events_.on_welcome(w);
}

SKEIN_INLINE void head_client::lose_unanswered() {
    std::vector<std::uint64_t> lost;
    for (const auto& [number, l] : leases_)
        if (l.node == 0 && l.is_told && l.wish.rank.is_there()) lost.push_back(number);
    for (const auto number : lost) events_.on_unanswered(number);
}

SKEIN_INLINE std::shared_ptr<net::request_service> head_client::make_service() {
    auto out =
        std::make_shared<net::request_service>(net::request_service::bounds(), cluster_budget());
    // One that was given back is of no interest: the head hears so.
    out->on_tell<lease_granted>([this](const lease_granted& m, const net::caller&) {
        const auto found = leases_.find(m.lease);
        if (found == leases_.end()) return;
        found->second.node = m.node;
        events_.on_granted(m);
    });
    out->on_tell<lease_ended>([this](const lease_ended& m, const net::caller&) {
        const auto found = leases_.find(m.lease);
        if (m.lease != space_server_lease) output_.end(m.lease, m.lines);
        if (found != leases_.end()) found->second.is_ended = true;
        if (found != leases_.end() || m.lease == space_server_lease) events_.on_ended(m);
    });
    out->on_tell<worker_output>(
        [this](worker_output m, const net::caller&) { output_.hear(std::move(m)); });
    out->on_tell<lease_waits>([this](const lease_waits& m, const net::caller&) {
        if (leases_.contains(m.lease)) events_.on_waits(m);
    });
    serve_groups(*out);
    out->on_at_once<scale_training, training_scaled>([this](const scale_training& m) {
        training_scaled reply;
        reply.said = events_.on_scale(m.workers);
        return reply;
    });
    out->on_tell<space_lost>(
        [this](const space_lost& m, const net::caller&) { events_.on_space_lost(m); });
    out->on_tell<lease_recalled>(
        [this](const lease_recalled& m, const net::caller&) { events_.on_recalled(m); });
    out->on_tell<cluster_changed>(
        [this](const cluster_changed& m, const net::caller&) { events_.on_cluster_changed(m); });
    return out;
}

SKEIN_INLINE void head_client::serve_groups(net::request_service& of) {
    of.on_tell<group_placed>([this](const group_placed& m, const net::caller&) {
        const auto found = groups_.find(m.group);
        if (found == groups_.end()) return;
        auto& known = found->second.known;
        if (m.bundles.size() != known.bundles.size()) return;
        known.placed = m.bundles;
        group_events_.on_group_placed(m);
    });
    of.on_tell<group_waits>([this](const group_waits& m, const net::caller&) {
        if (groups_.contains(m.group)) group_events_.on_group_waits(m);
    });
    of.on_tell<group_refused>([this](const group_refused& m, const net::caller&) {
        if (groups_.erase(m.group) != 0) group_events_.on_group_refused(m);
    });
}

SKEIN_INLINE void head_client::want(want_lease wish) {
    auto& l = leases_[wish.lease];
    l.wish = std::move(wish);
    l.is_told = tell_unless_stopping(l.wish); // else with the next hello
}

SKEIN_INLINE void head_client::has_come(std::uint64_t lease) {
    if (const auto found = leases_.find(lease); found != leases_.end())
        found->second.has_come = true;
}

SKEIN_INLINE void head_client::give_back(std::uint64_t lease) {
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return;
    const bool is_ended = found->second.is_ended;
    leases_.erase(found);
    if (!is_ended) tell_unless_stopping(return_lease{lease});
}

SKEIN_INLINE void head_client::end(std::uint64_t lease, bool at_once) {
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return;
    tell_unless_stopping(return_lease{lease, at_once});
    found->second.ends = at_once;
    if (found->second.node == 0 && !found->second.has_come) leases_.erase(found);
}

SKEIN_INLINE void head_client::set_blocked(std::uint64_t lease, bool on) {
    leases_.at(lease).blocked = on;
    tell_unless_stopping(lease_blocked{lease, on});
}

SKEIN_INLINE void head_client::tell_calls(const driver_calls& now) {
    if (now.submitted == told_calls_.submitted && now.done == told_calls_.done) return;
    if (link_.tell(now)) told_calls_ = now;
}

SKEIN_INLINE void head_client::want_group(known_group group) {
    auto& g = groups_[group.number];
    g.known = std::move(group);
    tell(g);
}

SKEIN_INLINE void head_client::tell(asked_group& g) {
    const auto& k = g.known;
    g.is_told = tell_unless_stopping(cluster::want_group{k.number, k.strategy, k.bundles});
}

SKEIN_INLINE std::string head_events::on_scale(int) {
    throw error(errc::not_supported, "not supported: another number of workers for a training "
                                     "whose number is fixed")
        .with_hint("start it with a range: --workers 1:4");
}

SKEIN_INLINE void head_client::loosen_group(std::uint64_t group) {
    for (auto& [number, l] : leases_) {
        std::uint64_t of = 0;
        int bundle = -1;
        if (sched::parse_group_label(l.wish.label, of, bundle) && of == group) l.wish.label.clear();
    }
    groups_.erase(group);
    tell_unless_stopping(cluster::loosen_group{group});
}

SKEIN_INLINE void head_client::drop_group(std::uint64_t group) {
    groups_.erase(group);
    tell_unless_stopping(cluster::drop_group{group});
}

} // namespace skein::cluster::detail
