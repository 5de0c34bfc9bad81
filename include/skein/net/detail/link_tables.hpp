// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the accepting side knows of its links: those that live, and, for a while, how others have
// ended.

#include <skein/core/random.hpp>
#include <skein/core/time.hpp>
#include <skein/net/connection.hpp>
#include <skein/net/detail/link_hello.hpp>
#include <skein/net/link.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace skein::net::detail {

/// An incarnation or number that no other one has.
[[nodiscard]] std::uint64_t draw_number(random_source& random);

/// Shared by a link_table and its links, so that either may go first.
class link_tables : public std::enable_shared_from_this<link_tables> {
public:
    link_tables(connection_options options, link_options how, std::size_t most_links,
                std::size_t most_waiting, std::uint64_t incarnation);

    /// Answers a hello; a new link, or nothing when it was an old one's or `refused`.
    link::handle admit(connection::handle over, const link_hello& hello, bool& refused);
    /// A link has ended.
    void leave(link& l) noexcept;
    /// A link has lost its connection. False: nobody can come back any more.
    [[nodiscard]] bool wait_for(link& l);
    /// No link can come back any more.
    void shut() noexcept { shut_ = true; }

    [[nodiscard]] std::size_t links() const noexcept { return links_.size(); }
    [[nodiscard]] std::size_t waiting() const noexcept;
    [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }
    [[nodiscard]] std::uint64_t resumed() const noexcept { return resumed_; }
    [[nodiscard]] std::uint64_t incarnation() const noexcept { return incarnation_; }
    [[nodiscard]] duration hello_deadline() const noexcept {
        return options_.bounds.handshake_deadline;
    }

private:
    using key =
        std::pair<std::uint64_t, std::uint64_t>; // incarnation and number of the dialling side
    /// What a peer that comes back is told.
    struct epitaph {
        link_verdict verdict;
        std::uint64_t received, generation;
        std::string why;
        time_point until;
    };
    static constexpr std::size_t most_epitaphs = 1024;

    [[nodiscard]] link_answer judge(const connection& over, const link_hello& hello,
                                    link* known) const;
    [[nodiscard]] link_answer answer(link_verdict verdict, std::string why = {}) const;
    link::handle make(connection::handle over, const link_hello& hello);
    void forget_old() noexcept;

    connection_options options_;
    link_options how_;
    std::size_t most_links_, most_waiting_;
    std::uint64_t incarnation_;
    bool shut_ = false;
    std::map<key, link*> links_;
    std::map<key, epitaph> epitaphs_;
    std::deque<key> order_;  // of the epitaphs
    std::deque<key> broken_; // in the order of their breaks; some may be connected again
    std::uint64_t refused_ = 0, resumed_ = 0;
};

} // namespace skein::net::detail
