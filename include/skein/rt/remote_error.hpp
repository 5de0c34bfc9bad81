// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the caller sees when a call failed on the other side.
//
// An exception that is not a skein::error arrives as remote_error with code remote_exception, and
// says which type it was, what it said, and which process threw it. A skein::error keeps its code.
//
//     try { co_await r; }
//     catch (const skein::remote_error& e) { print(e.remote_type(), e.worker()); }

#include <skein/core/error.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace skein {

/// An error that happened while a call ran on a worker.
class remote_error : public error {
public:
    /// Where and what; worker, pid and host are those of the process that ran the call.
    struct origin {
        std::string worker, host;
        std::int64_t pid = 0;
        std::string type; ///< of the exception, e.g. "std::out_of_range"
        std::string text; ///< its what()
    };

    remote_error(error shown, std::shared_ptr<const origin> from)
        : error(std::move(shown)), from_(std::move(from)) {}

    [[nodiscard]] const std::string& worker() const noexcept { return from_->worker; }
    [[nodiscard]] const std::string& host() const noexcept { return from_->host; }
    [[nodiscard]] std::int64_t pid() const noexcept { return from_->pid; }
    /// The type of the exception as the worker's compiler names it.
    [[nodiscard]] const std::string& remote_type() const noexcept { return from_->type; }
    /// Its what().
    [[nodiscard]] const std::string& remote_text() const noexcept { return from_->text; }

private:
    std::shared_ptr<const origin> from_;
};

namespace rt {

/// Why a call failed: an error, and where it was thrown if it was thrown on another side.
struct failure {
    error what;
    std::shared_ptr<const remote_error::origin> from;

    [[noreturn]] void raise() const;
};

namespace detail {

/// Who executes, as failures and messages name it.
struct process_name {
    std::string name, host;
    std::int64_t pid = 0;

    /// "worker-1 (pid 7 at host)"
    [[nodiscard]] std::string describe() const;
};

} // namespace detail
} // namespace rt
} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/remote_error.ipp>
#endif
