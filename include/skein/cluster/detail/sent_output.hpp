// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the processes of a node print, on its way to the head, by driver. A process never waits for
// it: its pipes are read as fast as it writes, and what the head does not ask for in time is left
// out.
//
// The head is told once that there are lines of a driver, and asks for some; then it is told again,
// if there are more.
//
//     struct node : output_way { ... };
//     sent_output output(way);
//     auto& mine = output.add(lease, false);
//     auto reading = output.read(lease, process);     // way.offer_lines(driver)
//     output.send(driver);                            // way.send_lines(message)
//     output.remove(lease);

#include <skein/core/config.hpp>
#include <skein/cluster/detail/lease_messages.hpp>
#include <skein/cluster/detail/output_messages.hpp>
#include <skein/core/event.hpp>
#include <skein/core/task.hpp>
#include <skein/proc/children.hpp>
#include <skein/proc/output.hpp>

#include <cstdint>
#include <map>

namespace skein::cluster::detail {

/// The link to the head. False: there is none, or it has not welcomed this node.
class output_way {
public:
    virtual bool offer_lines(std::uint64_t driver) = 0;
    virtual bool send_lines(node_output m) = 0;

protected:
    output_way() = default;
    output_way(const output_way&) = default;
    output_way& operator=(const output_way&) = default;
    ~output_way() = default;
};

/// Of one process.
struct printed_output {
    proc::line_queue said; ///< that the head has not been sent
    event all_sent;        ///< of these; look again
    printed_lines sent;    ///< of one that is kept, the last ones: the link may be lost with them
    bool is_kept = false;  ///< the head has all before these: it asks for more
};

/// Belongs to one loop.
class sent_output {
public:
    /// `way` must outlive it.
    explicit sent_output(output_way& way) : way_(way) {}

    /// It stays where it is until remove().
    printed_output& add(const lease_name& lease, bool is_kept);
    void remove(const lease_name& lease);
    /// Until the process has closed its outputs.
    [[nodiscard]] task<void> read(lease_name lease, proc::child* process) {
        return read_lines_of(this, lease, process);
    }
    /// Some lines, of all processes of the driver in turn.
    void send(std::uint64_t driver);
    /// A head has just welcomed this node: one that is kept may have lost its last lines.
    void offer_all();

private:
    /// What the processes of a driver have printed, as far as the head knows of it.
    struct driver_output {
        bool is_told = false;        ///< the head knows that there is some
        std::uint64_t last_from = 0; ///< the lease that was served last: others come first
    };

    void offer(std::uint64_t driver);
    static task<void> read_lines_of(sent_output* self, lease_name lease, proc::child* process);

    output_way& way_;
    std::map<lease_name, printed_output> printed_;
    std::map<std::uint64_t, driver_output> drivers_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/sent_output.ipp>
#endif
