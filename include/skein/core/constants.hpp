// SPDX-License-Identifier: Apache-2.0
#pragma once
// The table of time constants and default limits. net::limits, net::keep_alive,
// net::reconnect_policy and the options of the layers above take their defaults from it.
//
// The values are for hosts in one network.

#include <skein/core/config.hpp>
#include <skein/core/time.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace skein {

/// Waits and pauses of all layers; lan() gives those for hosts in one network.
struct time_constants {
    /// So many milliseconds; any length of time can be assigned.
    class ms : public time_span {
    public:
        constexpr explicit ms(std::int64_t n) noexcept : time_span(std::chrono::milliseconds(n)) {}
        template <class Rep, class Period>
        constexpr ms(std::chrono::duration<Rep, Period> length) : time_span(length) {} // NOLINT
    };

    ms group_heartbeat{100};  ///< inside a training group
    ms agent_heartbeat{500};  ///< between head and agents, and idle connections
    ms suspect_after{1000};   ///< silence after which a peer is suspected
    ms dead_after{3000};      ///< silence after which a peer is dead
    ms stalled_after{10'000}; ///< with no byte taken, after which a peer we do not hear is given up
    ms connect_timeout{5000}; ///< one attempt
    ms handshake_timeout{5000};
    ms start_timeout{120000}; ///< for a process to load its program, before the first byte from it
    ms close_timeout{2000};   ///< for what is queued and the peer's goodbye
    ms reconnect_first{50};   ///< delay before the second attempt; doubles up to reconnect_most
    ms reconnect_most{2000};
    ms accept_pause{100};         ///< after a failed accept
    ms accept_grace{20};          ///< no stream is dropped for another one before
    ms accept_proof_grace{40};    ///< the same from its first message on, which is whole
    ms refusal_line{10'000};      ///< at most one log line per kind of refused stream in this time
    ms shutdown_grace{2000};      ///< from the request to stop until the kill
    ms exit_grace{100};           ///< for a process to end by itself when its link has ended
    ms exit_grace_stopping{300};  ///< the same when it was told to
    ms idle_probe{5000};          ///< at least so often a link to a worker carries something
    ms unconfirmed_after{15'000}; ///< the other host's kernel answers nothing on such a link
    ms force_after{100};          ///< for a task cancelled by force to end by itself
    ms worker_resume{30'000};     ///< for a broken link to a worker, then its host is asked
    ms worker_computes{86'400'000}; ///< the same while its host answers
    ms worker_refused{500};         ///< after which nobody will ever listen there again
    ms space_server_idle{60'000};   ///< a namespace without actors and space clients ends
    ms idle_worker{250};            ///< a worker for one demand that has nothing to do leaves
    ms idle_aside{10'000};          ///< so does the second process of a worker
    ms space_enter{90'000};         ///< for a space server to be found or started, and reached
    ms space_settle{2500};      ///< a head that has just started waits so long for space servers
    ms space_fence{45'000};     ///< one that nobody saw end has surely ended: its agent has no head
    ms child_restart_first{50}; ///< before a worker is started again; doubles
    ms child_restart_most{60000};
    ms rendezvous_timeout{60000};
    ms join_first{5}; ///< before a second attempt to join: ranks of a host start together; doubles
    ms join_most{250};
    ms still_waiting{10'000};  ///< for ranks that have not joined, until a line says for which
    ms job_restart_first{200}; ///< before a job's ranks are started again; doubles
    ms crash_grace{1000};      ///< for the other ranks to see a loss and leave
    ms last_word{50};          ///< for news on its way, or the kernel to clear a dead process away
    ms stop_grace{30'000};     ///< from a request to stop a group of ranks until the kill
    ms training_stop_grace{300'000}; ///< a step, an evaluation and a checkpoint must fit in
    ms echo_wait{1000}; ///< after a broken collective, for news of the loss that broke it
    /// Minutes, as users of other libraries expect: a rank may compile kernels, read a cold disk or
    /// save while the others wait. Dead processes are noticed at once, without it.
    ms collective_timeout{300'000};
    ms checkpoint_timeout{1'800'000}; ///< the same around reads and writes of whole checkpoints
    ms ring_late_again{50};           ///< a second look before a neighbour is called late
    ms ring_grace_least{500};         ///< after the deadline, for news of who is late further away
    ms ring_grace_most{2000};
    ms ring_news{300};          ///< after a broken link, for the cause further away
    ms ring_notice{500};        ///< to write an error or a goodbye to one neighbour
    ms ring_goodbye{1000};      ///< for both notices, at close
    ms shm_look{20};            ///< between looks whether the processes of the others live
    ms unwaited_collective{10}; ///< until its loop ends a small one nobody waits for

    [[nodiscard]] static constexpr time_constants lan() noexcept { return {}; }
};

/// Exit codes of every program built with skein.
namespace exit_code {
/// It did what was asked; it failed; its command line is wrong. 128 + n: ended by signal n.
inline constexpr int done = 0, failed = 1, usage = 2;
} // namespace exit_code

/// Default size limits; each has an option where it is used.
namespace limit {
inline constexpr std::size_t frame_bytes = std::size_t{1} << 30;   ///< one frame's body
inline constexpr std::size_t queue_bytes = std::size_t{64} << 20;  ///< a connection's, each way
inline constexpr std::size_t inline_bytes = std::size_t{64} << 10; ///< values kept inside messages
inline constexpr std::size_t gather_bytes = std::size_t{4} << 10;  ///< from here on sent uncopied
inline constexpr std::size_t backlog_bytes = std::size_t{4} << 20; ///< calls a worker reads ahead
/// What a process sends to one actor, or of tasks without cores to one worker, ahead of what has
/// begun there.
inline constexpr std::uint32_t credit_calls = 1024;
inline constexpr std::size_t credit_bytes = std::size_t{4} << 20;
/// Plain calls run so long in a row before their replies leave and new frames are read.
inline constexpr std::chrono::milliseconds call_turn{5};
} // namespace limit

} // namespace skein
