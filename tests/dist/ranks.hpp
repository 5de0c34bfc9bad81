// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks as threads: runs a body once per rank and gives back what each one threw.

#include <skein/core/error.hpp>
#include <skein/dist/bootstrap.hpp>
#include <skein/sim/local_rendezvous.hpp>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace ranks {

using namespace skein;
using namespace skein::dist;
using skein::sim::local_world;

using outcome = std::vector<std::optional<error>>;

/// Lets one rank wait for n others without any communicator.
class event_gate {
public:
    void arrive() {
        const std::lock_guard lock(guard_);
        ++came_;
        changed_.notify_all();
    }
    void wait_for_others(int n) {
        std::unique_lock lock(guard_);
        changed_.wait_for(lock, std::chrono::seconds(60), [&] { return came_ >= n; });
    }

private:
    std::mutex guard_;
    std::condition_variable changed_;
    int came_ = 0;
};

/// body(rank) on a thread each; errors by rank.
inline outcome each(int n, const std::function<void(int)>& body) {
    outcome errors(static_cast<std::size_t>(n));
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r) {
        threads.emplace_back([&, r] {
            try {
                body(r);
            } catch (...) {
                errors[static_cast<std::size_t>(r)] = to_error(std::current_exception());
            }
        });
    }
    for (auto& t : threads) t.join();
    return errors;
}

/// One rank's blocking view of a communicator.
struct rank_view {
    comm_thread& comm;
    int rank, size;
    void all_reduce(buffer_view io, reduce_op op) { comm.all_reduce(io, op).wait(); }
    void reduce_scatter(buffer_view in, buffer_view out, reduce_op op) {
        comm.reduce_scatter(in, out, op).wait();
    }
    void reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts, reduce_op op) {
        comm.reduce_scatter_v(io, std::move(counts), op).wait();
    }
    void reduce_scatter_v(buffer_view io, std::vector<std::size_t> counts, buffer_view out,
                          reduce_op op) {
        comm.reduce_scatter_v(io, std::move(counts), out, op).wait();
    }
    void all_gather(buffer_view in, buffer_view out) { comm.all_gather(in, out).wait(); }
    void all_gather_v(buffer_view in, buffer_view out, std::vector<std::size_t> counts) {
        comm.all_gather_v(in, out, std::move(counts)).wait();
    }
    void broadcast(buffer_view io, int root) { comm.broadcast(io, root).wait(); }
    void barrier() { comm.barrier().wait(); }
    void send(buffer_view io, int to) { comm.send(io, to).wait(); }
    void recv(buffer_view io, int from) { comm.recv(io, from).wait(); }
};

/// A group of one kind over fake hosts; body once per rank.
inline outcome group(std::vector<std::string> hosts, const std::string& kind,
                     const std::function<void(rank_view&)>& body, comm_options options = {}) {
    local_world world(std::move(hosts));
    options.model = kind;
    return each(world.size(), [&](int r) {
        auto comm = make_comm_thread(world.at(r), options);
        rank_view view{*comm, r, world.size()};
        body(view);
    });
}

/// The hosts for a model: shm all on one, ring one each, hierarchical two per host.
inline std::vector<std::string> hosts_for(const std::string& kind, int n) {
    std::vector<std::string> hosts;
    for (int r = 0; r < n; ++r) {
        if (kind == "ring")
            hosts.push_back("host-" + std::to_string(r));
        else if (kind == "hierarchical")
            hosts.push_back("host-" + std::to_string(r / 2));
        else
            hosts.push_back("host-0");
    }
    return hosts;
}

inline std::string first_error(const outcome& errors) {
    for (const auto& e : errors) {
        if (e) return e->what();
    }
    return "";
}

} // namespace ranks
