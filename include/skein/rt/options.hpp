// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a caller may say about one call.
//
//     auto r = skein::remote<&score>.with({.cpus = 2, .retries = 5, .deadline = 200ms})(row);
//
// Trivially destructible on purpose: braces in an expression with co_await are safe with it on g++ 12.

#include <skein/core/time.hpp>

#include <string_view>
#include <type_traits>

namespace skein {

/// The .deadline of a call that may take as long as it likes.
inline constexpr duration no_deadline = duration::max();

/// Options of one call.
struct call_options {
    int cpus = 1;     ///< cores a task occupies on its worker; 0: waits only, runs at once
    int retries = -1; ///< times a task runs again after its worker died; -1: 3. Actors: always 0
    /// From now; then the ref fails with timeout and the call is cancelled. Zero or less, as what is left
    /// of a budget may be: at once, and the call is not sent.
    duration deadline = no_deadline;
    std::string_view name{}; ///< shown in errors instead of the function's name; copied at submit
};
static_assert(std::is_trivially_destructible_v<call_options>);

/// Times a task is run again when its worker dies, unless .retries says otherwise.
inline constexpr int default_task_retries = 3;

} // namespace skein
