// SPDX-License-Identifier: Apache-2.0
#pragma once
// Namespaces that a driver or its workers call actors of: where their space servers are.
//
//     visited_spaces spaces(loop, network, head, driver, {address, secret, enter_within}, &stopping);
//     auto finding = spaces.find("shop", 0);         // asked again while the head is away
//     const auto place = co_await finding;
//     hello.visits = spaces.all();                   // the head tells of their ends: spaces.end()

#include <skein/core/config.hpp>
#include <skein/cluster/detail/driver_messages.hpp>
#include <skein/core/error.hpp>
#include <skein/core/event.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/net/address.hpp>
#include <skein/net/token.hpp>
#include <skein/rt/worker_source.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::cluster::detail {

class head_client;

struct visited_spaces_options {
    net::address head;
    net::token secret; ///< of the cluster
    duration enter_within{};
};

/// Belongs to one loop.
class visited_spaces {
public:
    static constexpr std::size_t most = 4096; ///< that a head takes in a hello

    /// All of them must outlive it.
    visited_spaces(loop& on, net::network& via, head_client& head, rt::runtime& driver,
                   visited_spaces_options how, event* stopping)
        : on_loop_(on), network_(via), head_(head), driver_(driver), how_(std::move(how)),
          stopping_(stopping) {}

    /// Where a space server is: see rt::worker_source::find_space.
    [[nodiscard]] task<rt::space_place> find(std::string space, std::uint64_t space_server) {
        return find_place(this, std::move(space), space_server);
    }
    /// A space server has ended: the driver hears how.
    void end(const space_lost& m);
    /// Of whose ends the head is to tell, also one that was started again.
    [[nodiscard]] const std::vector<visited_space>& all() const noexcept { return visits_; }
    /// None is found any more.
    void give_up(error why) { gave_up_why_ = std::move(why); }

private:
    static task<rt::space_place> find_place(visited_spaces* self, std::string space,
                                            std::uint64_t space_server);
    [[nodiscard]] rt::space_place place_of(const std::string& space, const space_entered& there);

    loop& on_loop_;
    net::network& network_;
    head_client& head_;
    rt::runtime& driver_;
    visited_spaces_options how_;
    event* stopping_;
    std::vector<visited_space> visits_;
    std::optional<error> gave_up_why_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/visited_spaces.ipp>
#endif
