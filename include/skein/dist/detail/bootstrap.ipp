// SPDX-License-Identifier: Apache-2.0
#pragma once
// The exchange of places, then what the chosen model does.

#include <skein/dist/detail/own_models.ipp>
#include <skein/dist/detail/place_card.hpp>
#include <skein/net/loop_thread.hpp>
#include <skein/spmd/rendezvous.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

namespace detail {

SKEIN_INLINE comm_site look_around(spmd::rendezvous& world, const comm_options& options,
                                   net::loop_thread& worker) {
    comm_site site{.world = world, .options = options, .worker = worker, .where = {}, .key = {}};
    site.key = fmt::format("skein-comm-{}-{}", world.generation(), options.name);
    const auto mine = place_card::of(world);
    std::vector<std::string> hosts;
    if (world.world_size() == 1) {
        hosts.push_back(mine.host);
    } else {
        const auto cards = world.exchange(site.key + "/places", as_bytes(mine.encode()));
        for (const auto& blob : cards) {
            const auto card = place_card::decode(blob);
            hosts.push_back(card.host);
            site.one_network = site.one_network && card.network == mine.network;
        }
    }
    site.where = placement::from(hosts, world.rank());
    return site;
}

} // namespace detail

SKEIN_INLINE std::unique_ptr<communicator> make_communicator(spmd::rendezvous& world,
                                                             const comm_options& options,
                                                             net::loop_thread& worker) {
    const comm_site site = detail::look_around(world, options, worker);
    return choose_comm_model(site).make(site);
}

SKEIN_INLINE std::unique_ptr<comm_thread> make_comm_thread(spmd::rendezvous& world,
                                                           const comm_options& options) {
    auto worker = std::make_unique<net::loop_thread>("skein-comm");
    auto model = make_communicator(world, options, *worker);
    auto watching = std::make_shared<spmd::subscription>();
    auto made = std::make_unique<comm_thread>(std::move(worker), std::move(model),
                                              [watching] { watching->reset(); });
    *watching = world.on_lost([comm = made.get()](int rank, const error& why) {
        comm->abort(detail::lost_error(rank, why));
    });
    return made;
}

} // namespace skein::dist
