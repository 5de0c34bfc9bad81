// SPDX-License-Identifier: Apache-2.0
#pragma once
// Options of `skein run` about ranks, in torchrun's words.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace skein_program {

/// All of the text, in decimal digits; nothing: it is none, or too large.
[[nodiscard]] std::optional<int> read_number(std::string_view text);

/// "2", or "cpu", "gpu", "auto": what this host has.
///   errors  usage: neither; there is no gpu
[[nodiscard]] int read_ranks(const std::string& text);

/// "3", or "0:1,1:3" of some local ranks: which outputs (1 standard output, 2 error, 3 both).
///   ranks   how many there are
///   errors  usage, also for a rank that there is not; `option` is named
[[nodiscard]] std::function<int(int rank)> read_outputs(const std::string& text,
                                                        const std::string& option, int ranks);

/// "0,2": whether a local rank is among them.
///   ranks   how many there are
///   errors  usage, also for a rank that there is not; `option` is named
[[nodiscard]] std::function<bool(int rank)> read_rank_list(const std::string& text,
                                                           const std::string& option, int ranks);

/// "run-20260107-093015-4711": a name for the files of a run that has none.
[[nodiscard]] std::string name_of_run();

} // namespace skein_program
