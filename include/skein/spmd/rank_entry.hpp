// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which functions of this program a rank can be started for, by name: what train::run<&loop> is to
// its ranks as rt/registry.hpp is to workers.
//
// A function puts its entry into the list before main runs, in the caller as in the ranks, because
// both are the same binary. A supervisor names it in a variable of the rank's boot message
// (entry_variable); serve_if_worker() enters it, and main behind that runs in the caller alone.

#include <skein/core/config.hpp>
#include <skein/core/result.hpp>

#include <string_view>

namespace skein::spmd {

/// The variable that names the entry to a rank, by rank_entry::mangled.
inline constexpr const char* entry_variable = "SKEIN_RANK_ENTRY";

/// One function that ranks can enter. Lives for ever.
struct rank_entry {
    const char* mangled = nullptr;      ///< typeid name: unique per function
    int (*live)(rank_entry&) = nullptr; ///< a rank's life; gives the exit code
    rank_entry* next = nullptr;         ///< add_entry's
};

/// Called before main for every such function of the program.
void add_entry(rank_entry& entry) noexcept;

/// The entry of this name.
///   errors  not_found; already_exists: two functions of different files share the name
[[nodiscard]] result<rank_entry*> find_entry(std::string_view mangled);

/// A supervisor has started this process as a rank of an entry. Stays true.
[[nodiscard]] bool is_for_entry();

/// In a process that is_for_entry(): lives as that rank and ends the process. In others, and when
/// the rank is living already, it does nothing. serve_if_worker() calls it. On another thread than
/// main's the process ends with a word on what to do.
void enter_if_rank();

} // namespace skein::spmd

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/rank_entry.ipp>
#endif
