// SPDX-License-Identifier: Apache-2.0
#pragma once
// The lives of modelled communicators.

#include <skein/core/config.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/core.h>

namespace skein::sim::detail {

SKEIN_INLINE dist::nccl_result modelled_nccl::refuse(modelled_comm* comm, std::string why,
                                                     dist::nccl_result as) {
    memory_.complain(why);
    if (comm != nullptr) comm->words = std::move(why);
    return as;
}

SKEIN_INLINE modelled_nccl::~modelled_nccl() {
    for (const auto& [id, clique] : cliques_) {
        for (const auto& comm : clique->ranks) {
            if (!comm) continue;
            comm->units.clear();
            comm->late.clear();
        }
        clique->ranks.clear();
        clique->collectives.clear();
        clique->messages.clear();
    }
}

SKEIN_INLINE void modelled_nccl::unique_id(dist::nccl_unique_id& to) {
    to = {};
    const std::string text = fmt::format("id {} of a model", ++ids_);
    std::memcpy(to.internal, text.data(), text.size());
}

SKEIN_INLINE dist::nccl_result modelled_nccl::init(dist::nccl_comm* to, int ranks,
                                                   const dist::nccl_unique_id& id, int rank,
                                                   const dist::nccl_config& config) {
    using dist::nccl_result;
    if (config.magic != 0xcafebeef || config.size < sizeof(dist::nccl_config))
        return refuse(nullptr, "a configuration that was not made by its initializer");
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return refuse(nullptr, fmt::format("rank {} of {}", rank, ranks));
    auto& clique = cliques_[std::string(id.internal, sizeof id.internal)];
    if (!clique) {
        clique = std::make_shared<modelled_clique>();
        clique->ranks.resize(static_cast<std::size_t>(ranks));
    }
    auto& place = clique->ranks[static_cast<std::size_t>(rank) % clique->ranks.size()];
    if (clique->ranks.size() != static_cast<std::size_t>(ranks) || place)
        return refuse(nullptr, "ranks of one id that do not fit each other");
    for (const auto& other : clique->ranks) {
        if (!other || other->device != streams_.device()) continue;
        return refuse(other.get(),
                      fmt::format("Duplicate GPU detected: rank {} and rank {} both "
                                  "on device {}",
                                  other->rank, rank, other->device),
                      nccl_result::invalid_usage);
    }
    auto made = std::make_shared<modelled_comm>();
    made->clique = clique;
    made->rank = rank;
    made->device = streams_.device();
    made->is_blocking = config.blocking != 0;
    made->state = nccl_result::in_progress;
    place = made;
    ++clique->came;
    *to = reinterpret_cast<dist::nccl_comm>(0x400000 + last_comm_++);
    comms_.emplace(*to, made);
    return nccl_result::in_progress;
}

SKEIN_INLINE std::shared_ptr<modelled_comm> modelled_nccl::find(dist::nccl_comm handle) const {
    const auto found = comms_.find(handle);
    return found == comms_.end() ? nullptr : found->second;
}

SKEIN_INLINE bool modelled_nccl::is_complete(const modelled_comm& comm) {
    return comm.clique->came == comm.clique->ranks.size();
}

SKEIN_INLINE void modelled_nccl::put_on_stream(const std::shared_ptr<nccl_unit>& unit) {
    modelled_comm& comm = *unit->of;
    modelled_clique& clique = *comm.clique;
    const auto ranks = clique.ranks.size();
    std::vector<touched_bytes> touches;
    for (const nccl_call& c : unit->calls) {
        touches.push_back({c.in, c.in_bytes(static_cast<int>(ranks), comm.rank), false});
        touches.push_back({c.out, c.out_bytes(static_cast<int>(ranks), comm.rank), true});
        if (c.kind == nccl_kind::send) {
            clique.messages[{comm.rank, c.peer, c.number}].first = unit;
        } else if (c.kind == nccl_kind::recv) {
            clique.messages[{c.peer, comm.rank, c.number}].second = unit;
        } else {
            auto& came = clique.collectives[c.number];
            came.resize(ranks);
            came[static_cast<std::size_t>(comm.rank)] = unit;
        }
    }
    comm.units.push_back(unit);
    streams_.submit(unit->on,
                    fmt::format("{} of rank {}", to_string(unit->calls.front().kind), comm.rank),
                    touches, {}, unit);
}

SKEIN_INLINE dist::nccl_result modelled_nccl::ask(modelled_comm& comm) {
    using dist::nccl_result;
    const auto trouble = troubles_.find(comm.device);
    if (trouble != troubles_.end() && trouble->second.state != nccl_result::success) {
        comm.words = "trouble on request";
        return comm.state = trouble->second.state;
    }
    if (comm.state != nccl_result::in_progress) return comm.state;
    if (!is_complete(comm)) return comm.state;
    // It takes its time, as the library's own thread does.
    if (!comm.is_blocking && streams_.random().below(2) == 0) return comm.state;
    for (const auto& unit : std::exchange(comm.late, {})) put_on_stream(unit);
    if (comm.is_finalized && !comm.units.empty()) return comm.state;
    return comm.state = nccl_result::success;
}

SKEIN_INLINE dist::nccl_result modelled_nccl::finalize(dist::nccl_comm handle) {
    const auto comm = find(handle);
    if (!comm) return refuse(nullptr, "a communicator that is not there is finalized");
    if (comm->is_finalized) return refuse(comm.get(), "a communicator is finalized twice");
    comm->is_finalized = true;
    comm->state = dist::nccl_result::in_progress;
    return comm->state;
}

SKEIN_INLINE dist::nccl_result modelled_nccl::destroy(dist::nccl_comm handle) {
    const auto comm = find(handle);
    if (!comm) return refuse(nullptr, "a communicator that is not there is destroyed");
    if (!comm->units.empty() || !comm->late.empty())
        return refuse(comm.get(), "a communicator is destroyed while its work is in flight");
    if (comm->state == dist::nccl_result::in_progress)
        return refuse(comm.get(), "a communicator is destroyed while a call of it is in progress");
    comms_.erase(handle);
    return dist::nccl_result::success;
}

SKEIN_INLINE bool modelled_nccl::others_have_work(const modelled_comm& comm) const {
    return std::any_of(comms_.begin(), comms_.end(), [&](const auto& entry) {
        const modelled_comm& other = *entry.second;
        return &other != &comm && other.device == comm.device && !other.units.empty();
    });
}

SKEIN_INLINE dist::nccl_result modelled_nccl::abort(dist::nccl_comm handle) {
    const auto comm = find(handle);
    if (!comm) return refuse(nullptr, "a communicator that is not there is aborted");
    open_group& group = groups_[std::this_thread::get_id()];
    if (group.depth > 0) {
        group.aborts.push_back(handle);
        return dist::nccl_result::success;
    }
    if (others_have_work(*comm))
        memory_.complain("one of several communicators of a process is aborted alone, and would "
                         "wait for the others");
    abort_now(handle);
    return dist::nccl_result::success;
}

SKEIN_INLINE void modelled_nccl::abort_now(dist::nccl_comm handle) {
    const auto comm = find(handle);
    if (!comm) return;
    comm->is_aborted = true;
    comm->late.clear();
    for (const auto& unit : comm->units) unit->is_aborted = true; // each leaves its stream
    for (const auto& peer : comm->clique->ranks) { // some learn of it, in some networks
        if (!peer || peer == comm || peer->is_aborted || peer->is_finalized) continue;
        if (streams_.random().below(2) == 0) peer->state = dist::nccl_result::remote_error;
    }
    comms_.erase(handle);
}

SKEIN_INLINE void modelled_nccl::trouble(int device, modelled_trouble what) {
    troubles_[device] = what;
}

SKEIN_INLINE std::string modelled_nccl::last_words(dist::nccl_comm handle) const {
    const auto comm = find(handle);
    return comm ? comm->words : "";
}

} // namespace skein::sim::detail
