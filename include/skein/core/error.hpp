// SPDX-License-Identifier: Apache-2.0
#pragma once
// One error type for everything that can fail in the world outside the program.
//
// An error says what failed (with values), where (host, file, peer, rank), why (the cause) and what
// the reader can do next (the hint). It is thrown as an exception and carried inside result<T>.
//
//     throw skein::error(errc::refused, "connect tcp:node-3:6380 refused after 5 tries")
//         .with_hint("is the head running?");

#include <skein/core/config.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace skein {

/// The kind of a failure; what a program may decide on. Values go over the wire: append only.
enum class errc : std::uint16_t {
    unknown = 1,
    cancelled = 2,          ///< the work was cancelled by its owner
    timeout = 3,            ///< a deadline passed
    closed = 4,             ///< the channel, stream or connection was closed in an orderly way
    refused = 5,            ///< nobody listens there, or the peer said no
    reset = 6,              ///< the connection broke
    peer_lost = 7,          ///< a rank or node died or fell silent
    worker_lost = 8,        ///< a worker process died; the text names the calls it took along
    malformed = 9,          ///< bytes from outside do not follow the format
    too_large = 10,         ///< a size exceeds its limit
    mismatch = 11,          ///< two sides disagree (schema, build, order, world size)
    permission_denied = 12, ///< authentication failed, or the system said no
    not_found = 13,
    already_exists = 14,
    not_supported = 15, ///< left out on purpose; docs/limitations.md says so
    invalid_argument = 16,
    usage = 17, ///< the command line is wrong; programs exit with 2
    disk_full = 18,
    io = 19,               ///< any other failure of a file or socket operation
    corrupt = 20,          ///< a checksum or an invariant of stored data does not hold
    not_finite = 21,       ///< a loss or gradient is NaN or infinite
    remote_exception = 22, ///< the remote function threw; the text is its what()
    exhausted = 23,        ///< a bound (queue, retries, memory) is used up
    aborted = 24,          ///< a collective or a group was aborted; the text names the culprit
    internal = 25,         ///< a broken invariant inside skein
    object_lost = 26,      ///< the node that had an object is gone; the text names both
};

/// The name of a code in messages, e.g. "peer_lost".
[[nodiscard]] constexpr std::string_view to_string(errc code) noexcept {
    switch (code) {
    case errc::unknown: return "unknown";
    case errc::cancelled: return "cancelled";
    case errc::timeout: return "timeout";
    case errc::closed: return "closed";
    case errc::refused: return "refused";
    case errc::reset: return "reset";
    case errc::peer_lost: return "peer_lost";
    case errc::worker_lost: return "worker_lost";
    case errc::malformed: return "malformed";
    case errc::too_large: return "too_large";
    case errc::mismatch: return "mismatch";
    case errc::permission_denied: return "permission_denied";
    case errc::not_found: return "not_found";
    case errc::already_exists: return "already_exists";
    case errc::not_supported: return "not_supported";
    case errc::invalid_argument: return "invalid_argument";
    case errc::usage: return "usage";
    case errc::disk_full: return "disk_full";
    case errc::io: return "io";
    case errc::corrupt: return "corrupt";
    case errc::not_finite: return "not_finite";
    case errc::remote_exception: return "remote_exception";
    case errc::exhausted: return "exhausted";
    case errc::aborted: return "aborted";
    case errc::internal: return "internal";
    case errc::object_lost: return "object_lost";
    }
    return "unknown";
}

/// A failure with its context. Copying is a reference count and never throws.
class error : public std::exception {
public:
    /// what: lower case, no full stop, what failed with which values.
    error(errc code, std::string what);

    error&& with_where(std::string where) && { return std::move(with_where(std::move(where))); }
    error& with_where(std::string where) &;
    error&& with_cause(std::string cause) && { return std::move(with_cause(std::move(cause))); }
    error& with_cause(std::string cause) &;
    error&& with_hint(std::string hint) && { return std::move(with_hint(std::move(hint))); }
    error& with_hint(std::string hint) &;

    [[nodiscard]] errc code() const noexcept { return parts_->code; }
    /// What failed, without where, cause and hint.
    [[nodiscard]] const std::string& text() const noexcept { return parts_->text; }
    [[nodiscard]] const std::string& where() const noexcept { return parts_->where; }
    [[nodiscard]] const std::string& cause() const noexcept { return parts_->cause; }
    [[nodiscard]] const std::string& hint() const noexcept { return parts_->hint; }
    /// The whole line: "<where>: <what>: <cause>; <hint>".
    [[nodiscard]] const char* what() const noexcept override { return parts_->line.c_str(); }

private:
    struct parts {
        errc code = errc::unknown;
        std::string text, where, cause, hint, line;
    };

    error& set(std::string parts::* field, std::string value);
    void render();

    std::shared_ptr<parts> parts_;
};

/// Its what(); a text that says so, if that gives none.
[[nodiscard]] inline const char* text_of(const std::exception& e) noexcept {
    const char* const text = e.what();
    return text != nullptr ? text : "an exception without a text";
}

/// A text for a message: the first 48 and the last 16 KiB, and how many bytes there were, if it is
/// longer than 64 KiB.
[[nodiscard]] std::string bounded_text(std::string_view text);

/// The error inside e: itself if it is a skein::error, else `fallback` with its what().
[[nodiscard]] error to_error(std::exception_ptr e, errc fallback = errc::unknown);

} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/core/detail/error.ipp>
#endif
