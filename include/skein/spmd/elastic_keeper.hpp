// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who keeps the workers of an elastic job on one host: starts them, hears them, sees their end. The
// coordinator (spmd/elastic_coordinator.hpp) orders, of one host or of many.

#include <skein/core/config.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/error.hpp>
#include <skein/proc/place_news.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace skein::spmd {

/// Variables in the boot message of a worker of an elastic job.
inline constexpr const char* elastic_variable = "SKEIN_ELASTIC";       ///< its keeper's address
inline constexpr const char* elastic_id_variable = "SKEIN_ELASTIC_ID"; ///< the worker's
inline constexpr const char* elastic_workers_variable = "SKEIN_ELASTIC_WORKERS"; ///< "1:4"

/// How a worker ended.
struct worker_end {
    int code = -1;            ///< its exit code; -1: a signal ended it, or it was never started
    int signal = 0;           ///< that ended it
    std::string how{};        ///< "was killed by signal 9 (SIGKILL)"
    std::string last_words{}; ///< why, if it said so
    bool was_silent = false;  ///< its keeper has killed it for that
    bool was_seen = true;     ///< by its keeper; false: the keeper is gone, it may still run
    bool is_moved = false;    ///< its place was taken from it: it has not failed
    std::optional<error> not_started{};
    [[nodiscard]] bool success() const noexcept { return code == 0; }
};

/// One host's workers, as the coordinator sees them. Orders do not wait: what becomes of them is
/// told to keeper_listener. On the coordinator's loop.
class elastic_keeper {
public:
    elastic_keeper() = default;
    elastic_keeper(const elastic_keeper&) = delete;
    elastic_keeper& operator=(const elastic_keeper&) = delete;
    virtual ~elastic_keeper() = default;

    [[nodiscard]] virtual std::uint64_t id() const noexcept = 0;
    /// The same text for all keepers of one host.
    [[nodiscard]] virtual const std::string& host() const noexcept = 0;
    /// At most so many workers run at once.
    [[nodiscard]] virtual int places() const noexcept = 0;
    /// Whether a worker is started where there is room, and may wait for that: nothing is known of
    /// its host before keeper_listener::worker_place() tells it.
    [[nodiscard]] virtual bool places_later() const noexcept { return false; }

    /// Starts a worker with this id, which was never used before.
    virtual void start(std::uint64_t worker) = 0;
    /// SIGKILL; nothing happens if it has ended.
    virtual void kill(std::uint64_t worker) = 0;
    /// Its place was asked back, and it stays for this reason.
    virtual void keep_place(std::uint64_t worker, const std::string& why) {
        (void)worker;
        (void)why;
    }
    /// A message of spmd/detail/elastic_protocol.hpp for it; dropped if it is not connected.
    virtual void tell(std::uint64_t worker, std::uint16_t kind, byte_buffer body) = 0;
    /// Its host has no part in the job, for this reason: it ends. Never the coordinator's own one.
    virtual void turn_out(const error& why) = 0;
};

/// Hears of all workers. No call may throw.
class keeper_listener {
public:
    keeper_listener() = default;
    keeper_listener(const keeper_listener&) = delete;
    keeper_listener& operator=(const keeper_listener&) = delete;
    virtual ~keeper_listener() = default;

    virtual void worker_started(std::uint64_t worker, std::int64_t pid) = 0;
    /// Of one that is placed later.
    virtual void worker_place(std::uint64_t worker, const proc::place_news& news) {
        (void)worker;
        (void)news;
    }
    /// A message of it.
    virtual void worker_said(std::uint64_t worker, std::uint16_t kind, byte_span body) = 0;
    /// Once for each start; nothing comes from it afterwards.
    virtual void worker_ended(std::uint64_t worker, const worker_end& how) = 0;
};

} // namespace skein::spmd
