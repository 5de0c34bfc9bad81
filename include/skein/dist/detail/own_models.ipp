// SPDX-License-Identifier: Apache-2.0
#pragma once
// skein's own models: when each fits, and how it is made from a rendezvous.

#include <skein/dist/detail/shm_bootstrap.ipp>
#include <skein/dist/hierarchical.hpp>
#include <skein/dist/host_communicator.hpp>
#include <skein/dist/links.hpp>
#include <skein/dist/stub.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/net/real_network.hpp>
#include <skein/spmd/rendezvous.hpp>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist::detail {

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

/// The listener of one rank and the addresses of all. On the loop of the site's worker.
SKEIN_INLINE std::shared_ptr<links> make_links(const comm_site& site) {
    const bool loopback = site.one_network && site.options.advertise.empty();
    const std::string name = !site.options.advertise.empty() ? site.options.advertise
                             : loopback                      ? net::own_loopback()
                                                             : site.world.host();
    std::unique_ptr<net::listener> listener;
    std::shared_ptr<net::network> network;
    site.worker.run([&] {
        return listen_task(&site.worker.loop(), loopback ? net::own_loopback() : "*", &listener,
                           &network);
    });
    const auto mine = net::to_string(net::address::tcp(name, listener->local().port));
    const auto texts =
        site.world.exchange(site.key + "/addresses", as_bytes(std::string_view(mine)));
    // Links know the ranks by their labels, so that all errors do; nobody connects to the others.
    const auto count = static_cast<std::size_t>(site.label(site.ranks() - 1)) + 1;
    std::vector<net::address> addresses(count);
    for (int r = 0; r < site.ranks(); ++r) {
        const auto text = as_text(texts[static_cast<std::size_t>(r)]);
        addresses[static_cast<std::size_t>(site.label(r))] = net::address::parse(text).value();
    }
    auto made = std::make_shared<links>(std::move(network), std::move(listener),
                                        site.label(site.world.rank()), std::move(addresses),
                                        site.world.secret(), site.key);
    site.worker.run([made] { return start_links(made); });
    return made;
}

/// The ring of the given ranks, when all ranks of the world have come so far. Null on a rank
/// that is not one of them, or the only one.
SKEIN_INLINE std::unique_ptr<ring_communicator> connect_ring(const comm_site& site,
                                                             std::shared_ptr<links> net,
                                                             std::vector<int> group) {
    std::unique_ptr<ring_communicator> ring;
    try {
        // A rank that dies now must not be waited for.
        const auto watching =
            site.world.on_lost([net, on = &site.worker.loop()](int lost, const error& why) {
                on->post_from_any_thread([net, e = lost_error(lost, why)] { net->abandon(e); });
            });
        const auto own = std::find(group.begin(), group.end(), site.world.rank());
        if (own != group.end() && group.size() > 1) {
            const int position = static_cast<int>(own - group.begin());
            collective_options connecting = site.options.limits;
            connecting.deadline = site.options.connect_deadline;
            ring = site.worker.run([&] {
                return ring_communicator::connect(net, site.labels_of(group), position,
                                                  site.options.ring, connecting, site.ranks());
            });
            ring->set_deadline(site.options.limits.deadline);
        }
        site.world.exchange(site.key + "/connected", byte_span{});
        return ring;
    } catch (...) {
        site.worker.run([&] { return stop_links(net, std::move(ring)); });
        throw;
    }
}

SKEIN_INLINE comm_model stub_model() {
    return {"stub",
            [](const comm_site& site) {
                if (site.ranks() == 1) return comm_fit{100, ""};
                return comm_fit{0, "it is for worlds of one rank"};
            },
            [](const comm_site&) -> std::unique_ptr<communicator> {
                return std::make_unique<stub_communicator>();
            }};
}

SKEIN_INLINE comm_model shm_model() {
    return {"shm",
            [](const comm_site& site) {
                if (site.ranks() == 1) return comm_fit{0, "it needs two ranks"};
                if (site.where.hosts.size() == 1) return comm_fit{30, ""};
                return comm_fit{0, "ranks of different hosts cannot share memory"};
            },
            [](const comm_site& site) -> std::unique_ptr<communicator> {
                return share_segment(site.world, site.key, site.where.mine(),
                                     site.labels_of(site.where.mine()), site.options.shm,
                                     site.options.limits);
            }};
}

SKEIN_INLINE comm_model ring_model() {
    return {"ring",
            [](const comm_site& site) {
                if (site.ranks() == 1) return comm_fit{0, "it needs two ranks"};
                const bool one_each =
                    site.where.hosts.size() == static_cast<std::size_t>(site.ranks());
                return comm_fit{one_each ? 20 : 5, ""};
            },
            [](const comm_site& site) -> std::unique_ptr<communicator> {
                std::vector<int> all(static_cast<std::size_t>(site.ranks()));
                std::iota(all.begin(), all.end(), 0);
                return connect_ring(site, make_links(site), std::move(all));
            }};
}

SKEIN_INLINE task<std::unique_ptr<communicator>> make_hierarchical(
    const comm_site& site, std::unique_ptr<shm_communicator> inside,
    std::unique_ptr<ring_communicator> between, std::shared_ptr<links> net) {
    co_return std::make_unique<hierarchical_communicator>(
        site.worker.loop(), site.where, site.world.rank(), site.ranks(), std::move(inside),
        std::move(between), std::move(net), site.options.limits, site.options.labels);
}

SKEIN_INLINE comm_model hierarchical_model() {
    return {"hierarchical",
            [](const comm_site& site) {
                if (site.ranks() == 1) return comm_fit{0, "it needs two ranks"};
                return comm_fit{10, ""};
            },
            [](const comm_site& site) -> std::unique_ptr<communicator> {
                auto inside = share_segment(site.world, site.key, site.where.mine(),
                                            site.labels_of(site.where.mine()), site.options.shm,
                                            site.options.limits);
                const auto net = make_links(site);
                auto between = connect_ring(site, net, site.where.leaders());
                // On the loop: the ring runs there, and may fail while this one is made.
                return site.worker.run([&] {
                    return make_hierarchical(site, std::move(inside), std::move(between), net);
                });
            }};
}

/// Over what automatic would take. The doors to devices open when the first buffer of one comes.
SKEIN_INLINE comm_model host_model() {
    return {"host",
            [](const comm_site& site) { return fits_by_name_alone(site, "buffers of devices"); },
            [](const comm_site& site) -> std::unique_ptr<communicator> {
                return std::make_unique<host_communicator>(
                    make_automatic(site), [] { return load_cuda_runtime().value(); },
                    site.options.limits);
            }};
}

SKEIN_INLINE std::vector<comm_model> own_models() {
    return {stub_model(), shm_model(), ring_model(), hierarchical_model(), host_model()};
}

} // namespace skein::dist::detail
