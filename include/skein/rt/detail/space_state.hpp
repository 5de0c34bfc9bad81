// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a process knows of the namespaces whose actors it calls. Part of detail/runtime_state.hpp;
// bodies in runtime_spaces.ipp, and of handles that travel in runtime_handles.ipp.
//
// Any process of a program may be a space client of namespaces, its driver and its workers alike:
// for each space server it has a second runtime, which acts as a worker of that space server on
// which nothing runs. A driver asks the head where a space server is, a worker asks its driver:
//
//     space        id = the question, body = space_question                      worker -> driver
//     space_there  id, flags = 0: body = space_answer, 1: a failure               driver -> worker
//     space_end    body = space_end: that space server has ended driver -> worker
//
// docs/design/0022-space-clients.md

#include <skein/core/cancel.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/net/token.hpp>
#include <skein/rt/detail/runtime_state.hpp>
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
    std::uint64_t space_server =
        0; ///< this one or none; 0: whichever there is, one is started if there is none
};
struct space_answer {
    std::uint64_t space_server = 0;
    std::string host; ///< these three: see space_place
    std::uint16_t port = 0;
    std::string address;
    byte_buffer sealed;
};
struct space_end {
    std::string space;
    std::uint64_t space_server = 0;
    std::string how;
};

/// This process at one space server, from the first question to the end of either.
struct space_visit {
    std::string space;
    std::uint64_t space_server = 0;
    std::optional<space_place> place; ///< where it is; nothing: to be asked
    std::unique_ptr<runtime> self;    ///< handles point to it also when it is over
    std::shared_ptr<net::channel> wire;
    std::optional<error> failed; ///< it was not reached
    std::string how;             ///< it has ended, as it was told
    bool is_over = false;
    event settled, told, over;
    cancel_source stop; ///< of the attempt to reach it
};

struct space_state {
    explicit space_state(runtime& of) : home(of) {}

    using visit_ptr = std::shared_ptr<space_visit>;
    using space_server_key = std::pair<std::string, std::uint64_t>;
    /// The way to a namespace, whichever space server it has; for all who ask meanwhile.
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
    net::network* via = nullptr; ///< these three of a worker; nullptr: it reaches no space servers
    net::token secret;           ///< of its driver and all of its workers
    std::string head_host;       ///< under which this host reaches the head's

    std::map<std::string, std::shared_ptr<arrival>> arriving;
    std::map<std::string, visit_ptr> present;     ///< that were entered by name
    std::map<space_server_key, visit_ptr> visits; ///< the newest at each space server
    std::vector<visit_ptr> past;                  ///< the others
    static constexpr std::size_t most_visits = 4096;

    std::uint64_t last_question = 0;
    std::map<std::uint64_t, question*> questions;
    /// Driver: workers that know where a space server is, and questions that are being answered.
    std::map<space_server_key, std::vector<peer_id>> told;
    std::size_t answering = 0;
    std::size_t most_answering = 65'536;
    std::size_t most_asked = 2 * most_visits; ///< by one worker

    bool closing = false;
    cancel_source stop;
    scope tasks;

    /// Those of this process, made when they are needed first.
    [[nodiscard]] static space_state& of(runtime& any);
    [[nodiscard]] static runtime& home_of(runtime& any) noexcept;
    /// The space server whose namespace a runtime's actors are in; 0: they belong to a program.
    [[nodiscard]] static std::uint64_t space_server_of(const runtime& any) noexcept;
    [[nodiscard]] static const std::string& name_of(const runtime& any) noexcept;

    static task<runtime*> enter(space_state* b, std::string space);
    static task<void> arrive(space_state* b, std::string space, std::shared_ptr<arrival> into);
    static task<space_place> find(space_state* b, std::string space, std::uint64_t space_server);
    static task<space_place> ask_driver(space_state* b, space_question what);
    /// The visit at that space server, which begins if there is none.
    [[nodiscard]] visit_ptr visit_of(const std::string& space, std::uint64_t space_server,
                                     std::optional<space_place> place);
    /// The queue of a handle that was made elsewhere: of the actor of that space server's
    /// namespace.
    [[nodiscard]] counted_ptr<actor_queue> queue_of(const std::string& space,
                                                    std::uint64_t space_server, actor_id id,
                                                    std::uint32_t max_pending);
    static task<void> reach(space_state* b, visit_ptr v);
    static task<std::shared_ptr<net::channel>> dial(visit_ptr v);
    static task<void> live(space_state* b, visit_ptr v);
    static task<void> knock(visit_ptr v);
    void give_up(space_visit& v, const error& why);
    static task<std::string> how_it_ended(visit_ptr v);
    /// Of a space client: what its calls fail with from now on.
    static task<std::string> end_of_space_server(runtime* space_client, std::shared_ptr<peer> l);
    static task<void> cut_later(std::shared_ptr<net::channel> wire, std::string why);
    /// A space server has ended.
    void lost(const std::string& space, std::uint64_t space_server, const std::string& how);
    /// Says goodbye to all space servers.
    static task<void> leave(space_state* b);

    // Frames: of a worker to its driver, and back.
    static void on_question(runtime& driver, peer& from, const net::frame_view& f);
    void refuse_question(peer& from, std::uint64_t id) const;
    static task<void> answer(space_state* b, peer_id asker, std::uint64_t id, space_question what);
    static void on_answer(runtime& worker, const net::frame_view& f);
    static void on_end(runtime& worker, const net::frame_view& f);
    /// A worker has met its driver: that may be the space server of a namespace.
    static void meet(runtime& worker, const net::channel& wire);
};

} // namespace skein::rt::detail
