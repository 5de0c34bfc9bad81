// SPDX-License-Identifier: Apache-2.0
#pragma once
// The models of communicators, by name; a program may add its own.
//
//     dist::add_comm_model({.name = "mine",
//                           .fits = [](const comm_site& site) { return comm_fit{.score = 200}; },
//                           .make = [](const comm_site& site) { return make_mine(site); }});
//
// automatic takes the model with the highest score among those that fit. Of skein's own: one rank
// -> stub; all on one host -> shm; one per host -> ring; else hierarchical.

#include <skein/core/constants.hpp>
#include <skein/core/result.hpp>
#include <skein/core/time.hpp>
#include <skein/dist/communicator.hpp>
#include <skein/dist/placement.hpp>
#include <skein/dist/ring.hpp>
#include <skein/dist/shm.hpp>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace skein::spmd {
class rendezvous;
}
namespace skein::net {
class loop_thread;
}

namespace skein::dist {

/// How to make a communicator; the same on every rank, but for `advertise`.
struct comm_options {
    std::string model = "automatic"; ///< or the name of a model
    /// Tells the communicators of a world apart; used once in a generation of it.
    std::string name = "world";
    collective_options limits = {};
    shm_options shm = {};
    ring_options ring = {};
    /// The name or address under which other hosts reach this one. Empty: loopback when all ranks
    /// share this machine's network, else rendezvous::host().
    std::string advertise = {};
    time_span connect_deadline = time_constants::lan().rendezvous_timeout;
    /// What errors call the ranks of this group: their ranks in a larger world, ascending. Empty:
    /// 0, 1, ... split() sets it.
    std::vector<int> labels = {};
};

/// What is known where a communicator is made. Every rank knows the same, but for its own place.
struct comm_site {
    spmd::rendezvous& world;
    const comm_options& options;
    net::loop_thread& worker; ///< what is made lives on its loop
    placement where;
    bool one_network = true; ///< all ranks have the same loopback
    std::string key{};       ///< what the keys of the model's exchanges begin with

    [[nodiscard]] int ranks() const;
    /// What errors call a rank, or several.
    [[nodiscard]] int label(int rank) const;
    [[nodiscard]] std::vector<int> labels_of(const std::vector<int>& ranks) const;
};

/// Whether a model can be used at a site; the same answer on every rank.
struct comm_fit {
    int score = 0;       ///< for automatic; at most 100 for skein's own
    std::string why_not; ///< empty: it can be used
};

/// A way to communicate under a name: whether it fits a site, and how one is made.
struct comm_model {
    std::string name;
    std::function<comm_fit(const comm_site&)> fits;
    /// Every rank calls it at the same time, on its compute thread; it may block.
    std::function<std::unique_ptr<communicator>(const comm_site&)> make;
};

/// For the whole program, before communicators are made. Any thread.
///   errors  already_exists
void add_comm_model(comm_model model);

/// "automatic" and the names of all models, as they were added.
[[nodiscard]] std::vector<std::string> comm_model_names();

/// For command lines and environment variables: the name, if there is such a model.
///   errors  invalid_argument; its hint has all names
[[nodiscard]] result<std::string> checked_comm_model(std::string_view name);

/// The model that options.model means at this site; a world of one rank that asks for a model that
/// needs two gets the stub.
///   errors  not_supported: it does not fit here, and why; invalid_argument: no such model
[[nodiscard]] comm_model choose_comm_model(const comm_site& site);

/// For models that work over another one: what automatic makes at this site, whatever options.model
/// says.
[[nodiscard]] std::unique_ptr<communicator> make_automatic(const comm_site& site);

/// For models that automatic never takes.
///   what  it is for, as "ranks that have a device each"
[[nodiscard]] comm_fit fits_by_name_alone(const comm_site& site, std::string_view what);

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/models.ipp>
#endif
