// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way of printed lines through a head: from the agents of nodes to the driver whose workers
// printed them.
//
// A node has lines (it is waiting), is asked for some (out), and sends them; once the driver has
// printed them it is asked again, if it had more meanwhile. So nothing is kept here, and no link
// fills up. Lines of a job's entry process end at the head itself, which keeps them.
//
//     struct head : output_readers { ... };     // who reads, and how nodes are asked
//     output_relay output(head);
//     output.waits(driver, node);               // the head asks that node
//     output.arrived(driver, node, lines);      // the driver is told, and prints them
//     output.printed(driver, node);             // the next node is asked, or this one again

#include <skein/core/config.hpp>
#include <skein/cluster/detail/output_messages.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace skein::cluster::detail {

/// Who reads what the workers of a driver print.
enum class output_reader : std::uint8_t {
    none,   ///< the driver is away: its nodes wait
    driver, ///< it says when it has printed something
    head,   ///< it is a job's attempt: lines are kept at once
};

/// What a relay asks of the head that has it. Nodes and drivers are named by their incarnations.
class output_readers {
public:
    [[nodiscard]] virtual output_reader reader_of(std::uint64_t driver) const = 0;
    /// Tells a node that it may send some lines. False: it is not there any more.
    virtual bool ask_for_lines(std::uint64_t node, std::uint64_t driver) = 0;
    virtual void keep_lines_of(std::uint64_t driver, std::vector<printed_lines> lines) = 0;
    virtual void send_lines(std::uint64_t driver, std::uint64_t node,
                            std::vector<printed_lines> lines) = 0;

protected:
    output_readers() = default;
    output_readers(const output_readers&) = default;
    output_readers& operator=(const output_readers&) = default;
    ~output_readers() = default;
};

/// Belongs to one loop.
class output_relay {
public:
    /// Nodes that are asked at a time for one driver: so much stands in front of other messages to
    /// it.
    static constexpr std::size_t most_asked = 4;

    /// `readers` must outlive it.
    explicit output_relay(output_readers& readers) : readers_(readers) {}

    /// A node has lines of a driver's workers.
    void waits(std::uint64_t driver, std::uint64_t node);
    /// The driver has come: nodes that wait are asked.
    void ask(std::uint64_t driver);
    /// What a node that was asked has sent; empty: it has no more. Lines that nobody has asked for
    /// are dropped.
    void arrived(std::uint64_t driver, std::uint64_t node, std::vector<printed_lines> lines);
    /// The driver has printed the last lines of that node.
    void printed(std::uint64_t driver, std::uint64_t node);

    /// The node has gone, or has come again and says once more what it has.
    void forget_node(std::uint64_t node);
    /// The driver's link has ended: lines on their way there may be lost, and nobody will say that
    /// they were printed.
    void link_ended(std::uint64_t driver);
    void forget_driver(std::uint64_t driver) { by_driver_.erase(driver); }

    /// Drivers of which a node has, or had, something to say.
    [[nodiscard]] std::size_t drivers() const noexcept { return by_driver_.size(); }

private:
    struct asked {
        bool is_forwarded = false; ///< the driver prints it
        bool has_more = false;
    };
    struct line_of_nodes {
        std::deque<std::uint64_t> waiting;
        std::map<std::uint64_t, asked> out;
    };

    void ask(std::uint64_t driver, line_of_nodes& nodes);
    void printed(std::uint64_t driver, std::uint64_t node, line_of_nodes& nodes);

    output_readers& readers_;
    std::map<std::uint64_t, line_of_nodes> by_driver_;
};

/// What a message with these lines takes of a link.
[[nodiscard]] std::size_t output_bytes(const std::vector<printed_lines>& lines) noexcept;

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/output_relay.ipp>
#endif
