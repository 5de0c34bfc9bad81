// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gpus of this host that tasks may have: how many there are, and what each is called, from one
// place.
//
//     // CUDA_VISIBLE_DEVICES=4,5: {"4", "5"}
//     auto names = proc::gpus_to_offer(std::nullopt, "");
//     // "5", for CUDA_VISIBLE_DEVICES of the one that has it
//     auto shown = proc::gpus_by_name(granted, names);
//
// They are those of NVIDIA's driver, as far as CUDA_VISIBLE_DEVICES shows them to this process,
// read as CUDA reads it.

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>
#include <skein/sched/resources.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::proc {

/// The variable that says which gpus a process sees.
inline constexpr const char* gpus_variable = "CUDA_VISIBLE_DEVICES";

/// The gpus that a text of CUDA_VISIBLE_DEVICES leaves of `there` ones, at most 64, by the rules of
/// CUDA: numbers, or names that begin with GPU- or MIG-, not mixed; what is none of these, or a
/// number that no gpu has, ends the list, and one that is named twice leaves none at all. Parts of
/// gpus (MIG) may be more than there are gpus.
[[nodiscard]] std::vector<std::string> gpus_of_variable(std::string_view text, std::size_t there);

/// What CUDA_VISIBLE_DEVICES may call the gpus that this process sees.
[[nodiscard]] std::vector<std::string> visible_gpus();

/// The names of the gpus that this host offers: the first `asked` of those that this process sees;
/// without a number all. Where neither the driver's files nor the variable tell what is there, who
/// asks is believed: "0", "1", ...
///   by      who has asked, as an error names it: "--resources"
///   errors  usage: more than there are to be seen; invalid_argument: no whole number, or more than
///           64
[[nodiscard]] std::vector<std::string> gpus_to_offer(std::optional<sched::amount> asked,
                                                     std::string_view by);

/// What CUDA_VISIBLE_DEVICES of a child says, for some gpus of those; nothing for none; without
/// names: their indices.
[[nodiscard]] std::string gpus_by_name(sched::gpu_set gpus, const std::vector<std::string>& names);

/// Whether one process can see so many of these: of MIG parts it sees one only.
///   errors  invalid_argument
[[nodiscard]] result<void> check_gpus_together(sched::amount asked,
                                               const std::vector<std::string>& names);

/// The refusal of so many gpus, with what hides those that are not offered from this process, if
/// something does.
[[nodiscard]] error with_gpu_reason(error why, sched::amount asked,
                                    const std::vector<std::string>& names);

} // namespace skein::proc

#if SKEIN_HEADER_ONLY
#include <skein/proc/detail/gpus.ipp>
#endif
