// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers of a pipeline: actors on other cores or other hosts that make rows for a rank.
//
//     auto made = data::range(50'000) | data::map<&draw>() | data::map<&blur>()
//               | data::on(data::helpers{.most = 2})          // what stands left of it may go there
//               | data::shuffle();
//
// Without a cluster they are child processes of this program; with SKEIN_ADDRESS they are on its
// nodes. Rows are the same wherever they are made.

#include <cstddef>
#include <string>

namespace skein::data {

/// How many helpers a rank takes, and where.
struct helpers {
    int most = 0;     ///< at most so many per rank; 0: none, the rank makes all rows itself
    int cpus = 1;     ///< cores that each holds, and threads that it makes rows with
    std::string on{}; ///< only on nodes with these labels: "role=cpu"; empty: anywhere
};

} // namespace skein::data
