// SPDX-License-Identifier: Apache-2.0
#pragma once
// Another number of workers for the elastic training of a job.
//
//     fmt::print("{}\n", cluster::scale_training_of(how, "train-1", 3));

#include <skein/core/config.hpp>
#include <skein/cluster/tools.hpp>

#include <string>

namespace skein::cluster {

/// Gives what the training says. Blocks.
///   errors  not_found: no such job, or it trains nothing that can be scaled; those of reaching the
///           head
[[nodiscard]] std::string scale_training_of(const tool_options& how, const std::string& job,
                                            int workers);

} // namespace skein::cluster

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/training_scale.ipp>
#endif
