// SPDX-License-Identifier: Apache-2.0
#pragma once
// A node or a driver that a test plays itself, message by message. It does nothing that it is told,
// and notes what it was.
//
//     test::cluster_peer node;
//     auto joining = node.dial(&c, "raw", 7);       // the incarnation
//     co_await joining;
//     auto welcomed = node.way->call<cluster::node_welcome>(hello);
//     co_await welcomed;
//     auto gone = node.close();                     // or abort(), then close()
//     co_await gone;

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/core/cancel.hpp>
#include <skein/net/link.hpp>
#include <skein/net/requests.hpp>
#include <tests/support/sim_nodes.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace skein::test {

struct cluster_peer {
    net::link::handle below;
    net::requests::handle way;
    std::shared_ptr<net::request_service> service;
    std::vector<cluster::stop_worker_order> stops;
    std::vector<cluster::start_worker_order> starts;
    std::vector<cluster::lease_granted> grants;
    std::vector<cluster::lease_ended> ends;
    std::vector<cluster::lease_recalled> recalls;
    std::vector<cluster::lease_waits> waits;
    std::vector<cluster::group_waits> groups;
    std::vector<cluster::group_placed> placed;

    cluster_peer() = default;
    cluster_peer(const cluster_peer&) = delete;
    cluster_peer& operator=(const cluster_peer&) = delete;

    task<void> dial(sim_nodes* c, std::string host, std::uint64_t incarnation) {
        return dial_as(this, c, std::move(host), incarnation);
    }
    task<void> close() { return close_of(this); }
    void abort() { way->abort(error(errc::reset, "the test breaks it")); }

private:
    template <class... M>
    void take() {
        (service->on_tell<M>([](const M&, const net::caller&) {}), ...);
    }
    template <class M>
    void keep(std::vector<M> cluster_peer::* in) {
        service->on_tell<M>(
            [this, in](const M& m, const net::caller&) { (this->*in).push_back(m); });
    }
    static task<void> dial_as(cluster_peer* self, sim_nodes* c, std::string host,
                              std::uint64_t incarnation) {
        net::link_options how;
        how.incarnation = incarnation;
        auto dialing =
            net::link::connect(c->network().host(host), c->head_address(),
                               cluster::detail::cluster_link(c->secret(), host, host, 1), how);
        self->below = co_await dialing;
        self->service = std::make_shared<net::request_service>();
        self->keep(&cluster_peer::stops);
        self->keep(&cluster_peer::starts);
        self->keep(&cluster_peer::grants);
        self->keep(&cluster_peer::ends);
        self->keep(&cluster_peer::recalls);
        self->keep(&cluster_peer::waits);
        self->keep(&cluster_peer::groups);
        self->keep(&cluster_peer::placed);
        self->take<cluster::leave_cluster, cluster::node_drains, cluster::take_output,
                   cluster::cluster_changed, cluster::space_lost>();
        self->way = net::requests::over(self->below, self->service);
    }
    static task<void> close_of(cluster_peer* self) {
        auto closing = as_result(shield(self->way->close()));
        (void)co_await closing;
        auto done = shield(self->service->close());
        co_await done;
    }
};

/// The hello of a node with two cores that holds these leases.
inline cluster::node_hello peer_node(std::vector<cluster::held_lease> holds) {
    cluster::node_hello h;
    h.name = "raw";
    h.host = "raw";
    h.pid = 1;
    h.resources = "cpu=2";
    h.holds = std::move(holds);
    return h;
}
inline cluster::held_lease peer_lease(std::uint64_t driver, std::uint64_t number) {
    cluster::held_lease out;
    out.lease = {driver, number};
    out.demand = "cpu=1";
    return out;
}
/// The hello of a driver that has these leases.
inline cluster::driver_hello peer_driver(std::string name,
                                         std::vector<cluster::known_lease> leases = {}) {
    cluster::driver_hello h;
    h.name = name;
    h.host = name;
    h.executable = "/" + name;
    h.address = "sim:" + name + ":1";
    h.leases = std::move(leases);
    return h;
}

/// Says it over a link of its own; how it was answered.
inline task<result<cluster::driver_welcome>> say_hello(sim_nodes* c, std::uint64_t incarnation,
                                                       cluster::driver_hello h) {
    cluster_peer peer;
    auto dialing = peer.dial(c, h.host, incarnation);
    co_await dialing;
    auto joining = as_result(peer.way->call<cluster::driver_welcome>(std::move(h)));
    auto answer = co_await joining;
    peer.abort();
    auto gone = peer.close();
    co_await gone;
    co_return answer;
}

} // namespace skein::test
