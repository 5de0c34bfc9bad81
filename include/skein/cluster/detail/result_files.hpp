// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which files of a job's folder are its results: the folders of its runs, and what patterns name.
//
//     result_question what{folder, "runs", {"out/*.txt", "models"}};
//     const auto found = find_results(what, &brought, stop);   // blocks: lists and hashes
//
// A pattern is a path relative to the folder: * and ? and [...] stand for parts of one name, a name
// ** for any folders. One that names a folder means all that is in it. Files alone are results;
// links are not followed and not taken.

#include <skein/core/config.hpp>
#include <skein/cluster/package.hpp>
#include <skein/core/result.hpp>

#include <cstddef>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace skein::cluster::detail {

inline constexpr std::size_t most_result_patterns = 64;
inline constexpr std::size_t most_result_names = 1'000'000; ///< that are looked at for patterns

/// What stands between two of those, but for what is empty.
[[nodiscard]] std::vector<std::string> parts_of(std::string_view text, char by);
/// Patterns from a variable, a line each.
[[nodiscard]] std::vector<std::string> read_result_patterns(std::string_view text);
///   errors  invalid_argument: absolute, with "..", "." or an empty name; too_large
[[nodiscard]] result<void> check_result_pattern(std::string_view pattern);

/// Where to look, and for what.
struct result_question {
    std::string folder;                  ///< of the job
    std::string runs;                    ///< below it; empty: none is taken
    std::vector<std::string> patterns{}; ///< checked ones
};

/// What there is.
struct result_files {
    package_manifest files;
    std::size_t changed = 0;  ///< files that were written to meanwhile: they are left out
    std::size_t unread = 0;   ///< files and folders that could not be read
    std::string first_unread; ///< one of all these, and why
};

///   brought  files of `runs` that are still as the job has brought them are left out; or nullptr
///   errors   too_large: more than run_bounds(); exhausted: open files, memory; cancelled; io
[[nodiscard]] result_files find_results(const result_question& what,
                                        const package_manifest* brought, std::stop_token stop);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/result_files.ipp>
#endif
