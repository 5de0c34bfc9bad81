// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated network: hosts, listeners and ordered byte streams in memory, with seeded delays and
// faults. What arrives, and when, depends on the seed only.
//
//     net::sim_loop loop(seed);
//     net::sim_network net(loop, net::sim_faults::draw(loop.random()));
//     net::network& a = net.host("a");     // listens at sim:a:1, connects to sim:b:1
//     net.partition("a", "b");  net.heal_all();  net.crash("a");
//
// A stream delivers each chunk no earlier than the one before it. Cut bytes wait and arrive after the
// link heals, as TCP would send them again. tcp: addresses name hosts of the simulation too.

#include <skein/core/check.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/network.hpp>
#include <skein/net/sim_faults.hpp>
#include <skein/net/sim_loop.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::net {

class sim_network;

namespace detail {

/// One direction of a stream. Shared by both ends and by the events under way.
struct sim_pipe {
    struct item {
        byte_buffer bytes;
        bool end = false; // no more bytes follow
    };
    std::string from, to; // hosts
    byte_buffer ready;    // arrived; the first `taken` bytes are read already
    std::size_t taken = 0;
    std::deque<item> held; // came to a cut link, in order
    bool release_pending = false;
    std::size_t under_way = 0; // sent, not arrived (held ones included)
    time_point last_arrival{};
    bool end_sent = false, end_arrived = false;
    bool broken = false;      // a reset is known at one of the ends
    bool reader_gone = false; // arrivals are answered by a reset
    bool reader_dead = false; // arrivals are answered by nothing
    wait_queue readable, writable;

    [[nodiscard]] std::size_t unread() const noexcept { return ready.size() - taken; }
};

/// Both directions; forward is from the connecting end.
struct sim_link {
    sim_pipe forward, back;
};

struct sim_listener_state {
    address at;
    bool open = true;
    std::deque<std::unique_ptr<stream>> pending;
    wait_queue waiting;
};

class sim_stream;
class sim_listener;
class sim_host;

} // namespace detail

/// All hosts of one world. Must outlive their streams and the loop's run.
class sim_network {
public:
    sim_network(sim_loop& on, sim_faults faults) : loop_(on), faults_(faults) {}
    sim_network(const sim_network&) = delete;
    sim_network& operator=(const sim_network&) = delete;

    /// The network as this host sees it; made at first use. After a crash it is a new machine.
    network& host(const std::string& name);

    [[nodiscard]] sim_loop& loop() noexcept { return loop_; }
    [[nodiscard]] sim_faults& faults() noexcept { return faults_; }
    [[nodiscard]] const fault_counts& counts() const noexcept { return counts_; }
    [[nodiscard]] fault_counts& counts() noexcept { return counts_; }

    /// Cuts the direction from one host to another.
    void block(const std::string& from, const std::string& to) {
        if (blocked_.insert({from, to}).second) counts_.add(fault::block);
    }
    /// Cuts both directions.
    void partition(const std::string& a, const std::string& b) {
        counts_.add(fault::partition);
        blocked_.insert({a, b});
        blocked_.insert({b, a});
    }
    /// Cuts one host off from all others that exist.
    void isolate(const std::string& name);
    /// Cuts and heals links at random from now on, as faults().link_fault_every says.
    void begin_link_faults() {
        if (faults_.link_fault_every > duration(0)) schedule_link_fault();
    }
    /// The calm at the end of a scenario: no new faults, all links whole. What was pending must end.
    void stop_faults() {
        faults_.slow_chunk = faults_.refuse = faults_.reset = faults_.disk_io = 0;
        faults_.link_fault_every = duration(0);
        heal_all();
    }
    /// Ends the cuts between two hosts; what waited arrives.
    void heal(const std::string& a, const std::string& b) {
        counts_.add(fault::heal);
        blocked_.erase({a, b});
        blocked_.erase({b, a});
        release_held();
    }
    void heal_all() {
        if (!blocked_.empty()) counts_.add(fault::heal);
        blocked_.clear();
        release_held();
    }
    [[nodiscard]] bool is_blocked(const std::string& from, const std::string& to) const {
        return blocked_.contains({from, to});
    }
    /// The host's sockets are gone. loudly: peers see a reset (the process died, the kernel lives);
    /// else they hear nothing any more (the machine died).
    void crash(const std::string& name, bool loudly = true);
    /// Breaks all streams between two hosts.
    void reset(const std::string& a, const std::string& b);

    /// Open streams, for leak checks (I14).
    [[nodiscard]] std::size_t open_streams() const noexcept { return streams_.size(); }

private:
    friend class detail::sim_stream;
    friend class detail::sim_listener;
    friend class detail::sim_host;

    duration draw_delay() {
        duration d = loop_.draw_delay(faults_.least_delay, faults_.most_delay);
        if (loop_.draw(faults_.slow_chunk)) {
            counts_.add(fault::delay);
            d += loop_.draw_delay(duration(0), faults_.slow_delay);
        }
        return d;
    }
    using link_ptr = std::shared_ptr<detail::sim_link>;
    void send(const link_ptr& link, detail::sim_pipe& pipe, detail::sim_pipe::item what);
    void arrive(const link_ptr& link, detail::sim_pipe& pipe, detail::sim_pipe::item what);
    void deliver(const link_ptr& link, detail::sim_pipe& pipe, detail::sim_pipe::item what);
    void tell_broken(const link_ptr& link, detail::sim_pipe& pipe, bool to_reader);
    void release(const link_ptr& link, detail::sim_pipe& pipe);
    void schedule_link_fault();
    void release_held();

    sim_loop& loop_;
    sim_faults faults_;
    fault_counts counts_;
    std::map<std::string, std::unique_ptr<detail::sim_host>> hosts_;
    std::map<std::pair<std::string, std::uint16_t>, std::shared_ptr<detail::sim_listener_state>>
        listeners_;
    std::map<std::string, std::shared_ptr<detail::sim_listener_state>> paths_; // "host\npath"
    std::set<std::pair<std::string, std::string>> blocked_;
    std::map<std::uint64_t, detail::sim_stream*> streams_; // by number: a fixed order
    std::map<std::uint64_t, std::weak_ptr<detail::sim_link>> links_;
    std::uint64_t next_stream_ = 0, next_link_ = 0;
    std::uint16_t next_port_ = 30000;
};

} // namespace skein::net

#include <skein/net/detail/sim_net.hpp>
