// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process knows of the namespaces whose actors it calls. Part of detail/runtime_books.hpp; bodies in
// runtime_spaces.ipp, and of handles that travel in runtime_handles.ipp.
//
// Any process of a program may be a guest of namespaces, its driver and its workers alike: for each keeper it has a
// second runtime, which acts as a worker of that keeper on which nothing runs. A driver asks the head where a keeper is,
// a worker asks its driver:
//
//     space        id = the question, body = space_question                      worker -> driver
//     space_there  id, flags = 0: body = space_answer, 1: a failure               driver -> worker
//     space_end    body = space_end: that keeper has ended                        driver -> worker
//
// docs/design/0022-guests.md

#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/token.hpp>
#include <skein/rt/detail/runtime_books.hpp>
#include <skein/rt/worker_source.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace skein::rt::detail {

struct space_question {
    std::string space;
    std::uint64_t keeper =
        0; ///< this one or none; 0: whichever there is, one is started if there is none
};
struct space_answer {
    std::uint64_t keeper = 0;
    std::string host; ///< these three: see space_place
    std::uint16_t port = 0;
    std::string address;
    byte_buffer sealed;
};
struct space_end {
    std::string space;
    std::uint64_t keeper = 0;
    std::string how;
};

/// This process at one keeper, from the first question to the end of either.
struct space_visit {
    std::string space;
    std::uint64_t keeper = 0;
    std::optional<space_place> place; ///< where it is; nothing: to be asked
    std::unique_ptr<runtime> self;    ///< handles point to it also when it is over
    std::shared_ptr<net::channel> wire;
    std::optional<error> failed; ///< it was not reached
    std::string how;             ///< it has ended, as it was told
    bool is_over = false;
    event settled, told, over;
    cancel_source stop; ///< of the attempt to reach it
};

struct space_books {
    explicit space_books(runtime& of) : home(of) {}

    using visit_ptr = std::shared_ptr<space_visit>;
    using keeper_key = std::pair<std::string, std::uint64_t>;
    /// The way to a namespace, whichever keeper it has; for all who ask meanwhile.
    struct arrival {
        event done;
        visit_ptr got;
        std::optional<error> failed;
    };
    /// A worker's to its driver.
    struct question {
        event answered;
        std::optional<space_answer> place;
        std::optional<error> failed;
    };

    runtime& home;
    net::network* via = nullptr; ///< these three of a worker; nullptr: it reaches no keepers
    net::token secret;           ///< of its driver and all of its workers
    std::string head_host;       ///< under which this host reaches the head's

    std::map<std::string, std::shared_ptr<arrival>> arriving;
    std::map<std::string, visit_ptr> present; ///< that were entered by name
    std::map<keeper_key, visit_ptr> visits;   ///< the newest at each keeper
    std::vector<visit_ptr> past;              ///< the others
    static constexpr std::size_t most_visits = 4096;

    std::uint64_t last_question = 0;
    std::map<std::uint64_t, question*> questions;
    /// Driver: workers that know where a keeper is, and questions that are being answered.
    std::map<keeper_key, std::vector<peer_id>> told;
    std::size_t answering = 0;
    std::size_t most_answering = 65'536;
    std::size_t most_asked = 2 * most_visits; ///< by one worker

    bool closing = false;
    cancel_source stop;
    scope tasks;

    /// Those of this process, made when they are needed first.
    [[nodiscard]] static space_books& of(runtime& any);
    [[nodiscard]] static runtime& home_of(runtime& any) noexcept;
    /// The keeper whose namespace a runtime's actors are in; 0: they belong to a program.
    [[nodiscard]] static std::uint64_t keeper_of(const runtime& any) noexcept;
    [[nodiscard]] static const std::string& name_of(const runtime& any) noexcept;

    static task<runtime*> enter(space_books* b, std::string space);
    static task<void> arrive(space_books* b, std::string space, std::shared_ptr<arrival> into);
    static task<space_place> find(space_books* b, std::string space, std::uint64_t keeper);
    static task<space_place> ask_driver(space_books* b, space_question what);
    /// The visit at that keeper, which begins if there is none.
    [[nodiscard]] visit_ptr visit_of(const std::string& space, std::uint64_t keeper,
                                     std::optional<space_place> place);
    /// The lane of a handle that was made elsewhere: of the actor of that keeper's namespace.
    [[nodiscard]] counted_ptr<actor_state> lane_of(const std::string& space, std::uint64_t keeper,
                                                   actor_id id, std::uint32_t max_pending);
    static task<void> reach(space_books* b, visit_ptr v);
    static task<std::shared_ptr<net::channel>> dial(visit_ptr v);
    static task<void> live(space_books* b, visit_ptr v);
    static task<void> knock(visit_ptr v);
    void give_up(space_visit& v, const error& why);
    static task<std::string> how_it_ended(visit_ptr v);
    /// Of a guest: what its calls fail with from now on.
    static task<std::string> end_of_keeper(runtime* guest, std::shared_ptr<peer> l);
    static task<void> cut_later(std::shared_ptr<net::channel> wire, std::string why);
    /// A keeper has ended.
    void lost(const std::string& space, std::uint64_t keeper, const std::string& how);
    /// Says goodbye to all keepers.
    static task<void> leave(space_books* b);

    // Frames: of a worker to its driver, and back.
    static void on_question(runtime& driver, peer& from, const net::frame_view& f);
    void refuse_question(peer& from, std::uint64_t id) const;
    static task<void> answer(space_books* b, peer_id asker, std::uint64_t id, space_question what);
    static void on_answer(runtime& worker, const net::frame_view& f);
    static void on_end(runtime& worker, const net::frame_view& f);
    /// A worker has met its driver: that may be the keeper of a namespace.
    static void meet(runtime& worker, const net::channel& wire);
};

} // namespace skein::rt::detail
