// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank has called, for communicators that do not compare the calls of their ranks.
//
// NCCL refuses no unlike sizes, types, orders or roots: some hang, some give wrong numbers. Such a
// communicator keeps a record of its calls. Ranks compare the marks of their records over another
// communicator, a training in the row of each step before the step is applied, and on a difference
// the records themselves, which name the first unlike call.

#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/dist/detail/collective_signature.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace skein::dist {

/// The collectives that one rank has called on one communicator: a hash over all, and the last of
/// them. Messages between two ranks are no part of it. Any thread.
class call_record {
public:
    /// So many calls are kept one by one.
    static constexpr std::size_t most = 64;

    /// name  of the communicator, for errors
    explicit call_record(std::string name) : name_(std::move(name)) {}
    call_record(const call_record&) = delete;
    call_record& operator=(const call_record&) = delete;

    [[nodiscard]] const std::string& name() const noexcept { return name_; }

    /// One more call. Gives it with its number, from 1.
    detail::signature add(detail::signature what);

    /// Equal on two ranks exactly when they have called the same, but for accidents of 64 bits.
    [[nodiscard]] std::uint64_t mark() const;
    /// The last calls, in their order.
    [[nodiscard]] std::vector<detail::signature> last() const;

private:
    const std::string name_;
    mutable std::mutex guard_; // the fields below
    std::uint64_t calls_ = 0;
    fnv1a hash_;
    std::deque<detail::signature> last_;
};

/// The first call that is not the same on all ranks, among those that are kept.
///   by_rank  what call_record::last() gives on each
///   result   mismatch, with both ranks and what each of them called; nothing: all are alike
[[nodiscard]] std::optional<error> unlike_calls(
    std::span<const std::vector<detail::signature>> by_rank);

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/call_record.ipp>
#endif
