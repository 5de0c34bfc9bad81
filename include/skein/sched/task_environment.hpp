// SPDX-License-Identifier: Apache-2.0
#pragma once
// Variables and working directory that a task asks for. They belong to processes, so such a task
// runs on a worker that was started with them.
//
//     auto r = skein::remote<&f>.with({.env = "A=4\nTITLE=two words", .cwd = "/data"})(7);

#include <skein/core/config.hpp>
#include <skein/core/result.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::sched {

/// What a worker has that other workers of its program have not.
struct task_environment {
    static constexpr std::size_t most_bytes = std::size_t{8} << 10; ///< of all variables
    static constexpr std::size_t most_folder_bytes = 4000;

    std::vector<std::pair<std::string, std::string>> variables{}; ///< by name, each once
    std::string folder{}; ///< its working directory; empty: that of the other workers

    [[nodiscard]] bool empty() const noexcept { return variables.empty() && folder.empty(); }
    friend bool operator==(const task_environment&, const task_environment&) = default;
};

/// Reads what an option or a message says.
///   env     a variable a line, "NAME=VALUE"; a value is all behind the =, spaces too, and may be
///           empty
///   folder  an absolute path, or empty
///   errors  invalid_argument: a line without =, a name that is none or comes twice, one of skein's
///           own (SKEIN_..., CUDA_VISIBLE_DEVICES), a path that is not absolute, a byte of zero;
///           too_large
[[nodiscard]] result<task_environment> parse_task_environment(std::string_view env,
                                                              std::string_view folder);

/// The variables as parse_task_environment() reads them.
[[nodiscard]] std::string variables_as_text(const task_environment& of);

} // namespace skein::sched

#if SKEIN_HEADER_ONLY
#include <skein/sched/detail/task_environment.ipp>
#endif
