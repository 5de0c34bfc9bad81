// SPDX-License-Identifier: Apache-2.0
#pragma once
// The list of entries, and the door to one.

#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/type_name.hpp>
#include <skein/proc/boot.hpp>
#include <skein/proc/process.hpp>
#include <skein/spmd/environment.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <unistd.h>

#include <fmt/format.h>

namespace skein::spmd {

namespace detail {

SKEIN_INLINE rank_entry*& first_entry() noexcept {
    static constinit rank_entry* first = nullptr;
    return first;
}

/// Others of main's threads are at work here, which main in the caller has meant for itself.
[[noreturn]] SKEIN_INLINE void refuse_on_thread() {
    proc::leave_last_words("it came to its run on a thread of main: let main call "
                           "skein::serve_if_worker() first");
    ::_exit(exit_code::usage);
}

} // namespace detail

SKEIN_INLINE void add_entry(rank_entry& entry) noexcept {
    entry.next = detail::first_entry();
    detail::first_entry() = &entry;
}

SKEIN_INLINE result<rank_entry*> find_entry(std::string_view mangled) {
    rank_entry* found = nullptr;
    for (auto* e = detail::first_entry(); e != nullptr; e = e->next) {
        if (mangled != e->mangled) continue;
        if (found != nullptr)
            return error(errc::already_exists,
                         fmt::format("two functions that ranks enter are both called {}",
                                     readable_name(e->mangled)))
                .with_hint("functions in anonymous namespaces or static ones of different files "
                           "share one name: give one of them another name or a namespace");
        found = e;
    }
    if (found != nullptr) return found;
    return error(errc::not_found, fmt::format("this program has no function {} that a rank could "
                                              "enter",
                                              readable_name(std::string(mangled).c_str())))
        .with_hint("it comes from a library that is loaded later: link it into the program");
}

SKEIN_INLINE bool is_for_entry() {
    static const bool is =
        proc::started_as(rank_role) && process_environment()(entry_variable).has_value();
    return is;
}

SKEIN_INLINE void enter_if_rank() {
    if (!is_for_entry()) return;
    static constinit std::atomic_flag entered = ATOMIC_FLAG_INIT;
    if (entered.test()) return;
    if (::getpid() != ::gettid()) detail::refuse_on_thread();
    if (entered.test_and_set()) return;
    const auto entry = find_entry(process_environment()(entry_variable).value());
    if (entry) std::exit((*entry)->live(**entry));
    proc::leave_last_words(entry.error().what());
    write_notice(fmt::format("error: {}\n", entry.error().what()));
    std::exit(exit_code::usage);
}

} // namespace skein::spmd
