// SPDX-License-Identifier: Apache-2.0
#pragma once
// What workers and their driver say to each other so that workers can call the actors of others
// directly.
//
//     where   body = where_question: where is that actor?               worker -> driver
//     there   body = where_answer                                        driver -> worker
//     lost    id = incarnation of a worker: the link to it broke          worker -> driver
//     end     body = worker_end: it has ended, or it lives                driver -> worker
//     relay   id, flags = those of a reply, body = relay_head + its body worker -> driver -> worker
//     busy    flags = 1: it has direct calls without an outcome, 0: none  worker -> driver
//     waits   flags = 1, 0; body = call_id: that task waits for some      worker -> driver
//     cut     id = incarnation of a worker: no direct link of it counts any more   driver -> worker
//
// A relay is a reply that must not come before what the worker has told its driver ahead of it.

#include <skein/core/ids.hpp>
#include <skein/wire/reader.hpp>
#include <skein/wire/writer.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace skein::rt::detail {

/// What a worker tells of itself when it dials another one, and that one back.
struct direct_hello {
    std::uint64_t incarnation = 0; ///< its own
    std::uint64_t wanted = 0;      ///< whom it takes the other one for; 0 in the answer
    std::uint64_t generation = 0;  ///< grows with every link of the two; 0 in the answer
    std::uint64_t store = 0;       ///< which of several it uses
};
/// What direct links are for, see net::identity.
inline constexpr const char* direct_purpose = "calls between workers";

struct where_question {
    unique_number actor;
    /// The worker there cannot be reached: its calls go through the driver from now on.
    bool is_cut_off = false;
};

enum class whereabouts : std::uint8_t {
    gone = 0,
    through_driver = 1, ///< and so it stays
    at_worker = 2,
};

struct where_answer {
    unique_number actor;
    std::uint8_t verdict = 0; ///< a whereabouts
    std::uint64_t incarnation = 0;
    std::string who; ///< "worker-2 (pid 4711 at host)"; of one that is gone: how it ended, or ""
    std::vector<std::string> addresses; ///< in the order in which they are tried
};

struct worker_end {
    std::uint64_t incarnation = 0;
    bool has_ended = false;
    std::string how; ///< "worker-2 (pid 4711 at host) was lost: killed by signal 9 (SIGKILL)"
};

/// In front of a reply that goes through the driver. 16 bytes, so that the value stays aligned.
struct relay_head {
    std::uint64_t worker = 0; ///< incarnation: whom it is for; from the driver: whom it is from

    static constexpr std::size_t bytes = 16;
    void encode(wire::writer& to) const {
        to.fixed(worker);
        to.fixed(std::uint64_t{0});
    }
    [[nodiscard]] bool decode(wire::reader& from) {
        std::uint64_t zero = 0;
        return from.fixed(worker) && from.fixed(zero) && zero == 0;
    }
};

} // namespace skein::rt::detail
