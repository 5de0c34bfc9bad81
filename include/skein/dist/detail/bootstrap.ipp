// SPDX-License-Identifier: Apache-2.0
#pragma once
// The exchanges that lead from a rendezvous to a communicator.

#include <skein/cluster/rendezvous.hpp>
#include <skein/dist/detail/place_card.hpp>
#include <skein/dist/detail/shm_bootstrap.ipp>
#include <skein/dist/hierarchical.hpp>
#include <skein/dist/links.hpp>
#include <skein/dist/stub.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_network.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

SKEIN_INLINE result<comm_kind> parse_comm_kind(std::string_view text) {
    for (const auto k : {comm_kind::automatic, comm_kind::shm, comm_kind::ring,
                         comm_kind::hierarchical, comm_kind::stub}) {
        if (text == to_string(k)) return k;
    }
    return error(errc::invalid_argument, fmt::format("no communicator is called '{}'", text))
        .with_hint("automatic, shm, ring or hierarchical");
}

namespace detail {

SKEIN_INLINE task<void> listen_task(net::real_loop* loop, std::string bind,
                                    std::unique_ptr<net::listener>* out,
                                    std::shared_ptr<net::network>* network) {
    *network = std::make_shared<net::real_network>(*loop);
    *out = (*network)->listen(net::address::tcp(std::move(bind), 0));
    co_return;
}

SKEIN_INLINE error lost_error(int rank, const error& why) {
    return error(errc::peer_lost, fmt::format("rank {} is lost", rank)).with_cause(why.what());
}

SKEIN_INLINE task<void> start_links(std::shared_ptr<links> l) {
    l->start();
    co_return;
}
SKEIN_INLINE task<void> stop_links(std::shared_ptr<links> l,
                                   std::unique_ptr<ring_communicator> ring) {
    if (ring) {
        auto closing = ring->close();
        co_await std::move(closing);
    }
    auto stopping = l->stop();
    co_await std::move(stopping);
}

/// The listener of one rank and the addresses of all. On the loop of worker.
SKEIN_INLINE std::shared_ptr<links> make_links(cluster::rendezvous& world, const std::string& key,
                                               const std::vector<place_card>& cards,
                                               const comm_options& options,
                                               net::loop_thread& worker) {
    bool one_network = true;
    for (const auto& c : cards) one_network = one_network && c.network == cards[0].network;
    const bool loopback = one_network && options.advertise.empty();
    const std::string name = !options.advertise.empty() ? options.advertise
                             : loopback                 ? "127.0.0.1"
                                                        : world.host();
    std::unique_ptr<net::listener> listener;
    std::shared_ptr<net::network> network;
    worker.run([&] {
        return listen_task(&worker.loop(), loopback ? "127.0.0.1" : "0.0.0.0", &listener, &network);
    });
    const auto mine = net::address::tcp(name, listener->local().port);
    const auto texts =
        world.exchange(key + "/addresses", as_bytes(std::string_view(net::to_string(mine))));
    std::vector<net::address> addresses;
    for (const auto& t : texts) addresses.push_back(net::address::parse(as_text(t)).value());
    auto made = std::make_shared<links>(std::move(network), std::move(listener), world.rank(),
                                        std::move(addresses), world.secret());
    worker.run([made] { return start_links(made); });
    return made;
}

} // namespace detail

SKEIN_INLINE any_communicator make_communicator(cluster::rendezvous& world,
                                                const comm_options& options,
                                                net::loop_thread& worker) {
    const int n = world.world_size(), rank = world.rank();
    if (n == 1) return any_communicator(std::make_unique<stub_communicator>());
    const std::string key = fmt::format("skein-comm-{}", world.generation());

    const std::string card = detail::place_card::of(world).encode();
    std::vector<detail::place_card> cards;
    std::vector<std::string> hosts;
    for (const auto& blob : world.exchange(key + "/places", as_bytes(std::string_view(card)))) {
        cards.push_back(detail::place_card::decode(blob));
        hosts.push_back(cards.back().host);
    }
    const placement where = placement::from(hosts, rank);

    comm_kind kind = options.kind;
    if (kind == comm_kind::automatic) {
        kind = where.hosts.size() == 1                             ? comm_kind::shm
               : where.hosts.size() == static_cast<std::size_t>(n) ? comm_kind::ring
                                                                   : comm_kind::hierarchical;
    }
    if (kind == comm_kind::stub || (kind == comm_kind::shm && where.hosts.size() > 1)) {
        throw error(errc::not_supported, fmt::format("{} ranks on {} hosts cannot use {}", n,
                                                     where.hosts.size(), to_string(kind)))
            .with_hint("choose automatic");
    }

    std::unique_ptr<shm_communicator> inside;
    if (kind != comm_kind::ring) {
        inside = detail::share_segment(world, key, where.mine(), options.shm, options.limits);
        if (kind == comm_kind::shm) return any_communicator(std::move(inside));
    }

    const auto net = detail::make_links(world, key, cards, options, worker);
    std::unique_ptr<ring_communicator> between;
    try {
        std::vector<int> group = where.leaders();
        int position = where.my_host;
        if (kind == comm_kind::ring) {
            group.clear();
            for (int r = 0; r < n; ++r) group.push_back(r);
            position = rank;
        }
        // A rank that dies now must not be waited for.
        auto watching = world.on_lost([net, on = &worker.loop()](int lost, const error& why) {
            on->post_from_any_thread([net, e = detail::lost_error(lost, why)] { net->abandon(e); });
        });
        const bool in_ring = kind == comm_kind::ring || where.my_place == 0;
        if (in_ring && group.size() > 1) {
            collective_options connecting = options.limits;
            connecting.deadline = options.connect_deadline;
            between = worker.run([&] {
                return ring_communicator::connect(net, group, position, options.ring, connecting,
                                                  n);
            });
            between->set_deadline(options.limits.deadline);
        }
        world.exchange(key + "/connected", byte_span{});
        watching.reset();
        if (kind == comm_kind::ring) return any_communicator(std::move(between));
        return any_communicator(std::make_unique<hierarchical_communicator>(
            worker.loop(), where, rank, n, std::move(inside), std::move(between), net,
            options.limits));
    } catch (...) {
        worker.run([&] { return detail::stop_links(net, std::move(between)); });
        throw;
    }
}

SKEIN_INLINE std::unique_ptr<comm_thread> make_comm_thread(cluster::rendezvous& world,
                                                           const comm_options& options) {
    auto worker = std::make_unique<net::loop_thread>("skein-comm");
    auto model = make_communicator(world, options, *worker);
    auto watching = std::make_shared<cluster::subscription>();
    auto made = std::make_unique<comm_thread>(std::move(worker), std::move(model),
                                              [watching] { watching->reset(); });
    *watching = world.on_lost([comm = made.get()](int rank, const error& why) {
        comm->abort(detail::lost_error(rank, why));
    });
    return made;
}

} // namespace skein::dist
