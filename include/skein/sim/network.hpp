// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated network: hosts, listeners and ordered byte streams in memory, with seeded delays
// and faults. What arrives, and when, depends on the seed only.
//
//     sim::loop loop(seed);
//     sim::network net(loop, sim::faults::draw(loop.random()));
//     net::network& a = net.host("a");     // listens at sim:a:1, connects to sim:b:1
//     net.partition("a", "b");  net.heal_all();  net.crash("a");
//
// A stream delivers each chunk no earlier than the one before it. Cut bytes wait and arrive after
// the link heals, as TCP would send them again. A flipped bit arrives as one that TCP's checksum
// has missed. tcp: addresses name hosts of the simulation too.

#include <skein/core/bytes.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/network.hpp>
#include <skein/sim/faults.hpp>
#include <skein/sim/host_loop.hpp>
#include <skein/sim/loop.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

namespace skein::sim {

class network;

namespace detail {

/// One direction of a stream. Shared by both ends and by the events under way.
struct pipe {
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
    time_point confirmed{}; // nothing has arrived since, of what is under way
    bool end_sent = false, end_arrived = false;
    bool broken = false;      // a reset is known at one of the ends
    bool reader_gone = false; // arrivals are answered by a reset
    bool reader_dead = false; // arrivals are answered by nothing
    wait_queue readable, writable;

    [[nodiscard]] std::size_t unread() const noexcept { return ready.size() - taken; }
};

/// Both directions; forward is from the connecting end.
struct link {
    pipe forward, back;
    bool local = false; // over a Unix socket
};

struct listener_state {
    net::address at;
    bool open = true;
    std::deque<std::unique_ptr<net::stream>> pending;
    wait_queue waiting;
};

class stream;
class listener;
class host;

} // namespace detail

/// All hosts of one world. Must outlive their streams and the loop's run.
class network {
public:
    network(sim::loop& on, sim::faults faults);
    ~network();
    network(const network&) = delete;
    network& operator=(const network&) = delete;

    /// The network as this host sees it; made at first use. After a crash it is a new machine.
    net::network& host(const std::string& name);

    /// Two ends that are connected already, like a socketpair(); each is the end of its host.
    [[nodiscard]] std::pair<std::unique_ptr<net::stream>, std::unique_ptr<net::stream>>
    connected_pair(const std::string& first, const std::string& second);

    [[nodiscard]] sim::loop& loop() noexcept { return loop_; }
    [[nodiscard]] sim::faults& faults() noexcept { return faults_; }
    [[nodiscard]] const fault_counts& counts() const noexcept { return counts_; }
    [[nodiscard]] fault_counts& counts() noexcept { return counts_; }

    /// From now on hosts have clocks of their own, which differ as `how` says, and wall clocks that
    /// jump until stop_faults(); before anything runs on loop_of().
    void give_clocks(const clock_faults& how);
    /// Draws which clocks this world has, beside its other draws, and gives them to its hosts.
    void draw_clocks();
    /// What the code of a host runs on (sim::run_on): a loop with its clock, or the world's.
    [[nodiscard]] skein::loop& loop_of(const std::string& host);

    /// Cuts the direction from one host to another.
    void block(const std::string& from, const std::string& to);
    /// Cuts both directions.
    void partition(const std::string& a, const std::string& b);
    /// Cuts one host off from all others that exist.
    void isolate(const std::string& name);
    /// Cuts and heals links at random from now on, as faults().link_fault_every says.
    void begin_link_faults();
    /// The calm at the end of a scenario: no new faults, all links whole. What was pending must
    /// end.
    void stop_faults();
    /// Ends the cuts between two hosts; what waited arrives.
    void heal(const std::string& a, const std::string& b);
    void heal_all();
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
    friend class detail::stream;
    friend class detail::listener;
    friend class detail::host;

    duration draw_delay();
    using link_ptr = std::shared_ptr<detail::link>;
    link_ptr make_link(const std::string& from, const std::string& to, bool local);
    void send(const link_ptr& link, detail::pipe& pipe, detail::pipe::item what);
    void arrive(const link_ptr& link, detail::pipe& pipe, detail::pipe::item what);
    void deliver(const link_ptr& link, detail::pipe& pipe, detail::pipe::item what);
    void tell_broken(const link_ptr& link, detail::pipe& pipe, bool to_reader);
    void release(const link_ptr& link, detail::pipe& pipe);
    void schedule_link_fault();
    void schedule_clock_jump();
    void release_held();

    sim::loop& loop_;
    sim::faults faults_;
    fault_counts counts_;
    clock_faults clocks_;
    bool has_clocks_ = false;
    seeded_random clock_random_;
    std::map<std::string, std::unique_ptr<host_loop>> loops_; ///< of hosts with clocks of their own
    std::map<std::string, std::unique_ptr<detail::host>> hosts_;
    std::map<std::pair<std::string, std::uint16_t>, std::shared_ptr<detail::listener_state>>
        listeners_;
    std::map<std::string, std::shared_ptr<detail::listener_state>> paths_; // "host\npath"
    std::set<std::pair<std::string, std::string>> blocked_;
    std::map<std::uint64_t, detail::stream*> streams_; // by number: a fixed order
    std::map<std::uint64_t, std::weak_ptr<detail::link>> links_;
    std::uint64_t next_stream_ = 0, next_link_ = 0;
    std::uint16_t next_port_ = 30000;
};

} // namespace skein::sim

#if SKEIN_HEADER_ONLY
#include <skein/sim/detail/network.ipp>
#endif
