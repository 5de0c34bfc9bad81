// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which ranks of a world share a host.

#include <skein/core/config.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace skein::dist {

/// Hosts in the order of their first rank, ranks ascending.
struct placement {
    std::vector<std::vector<int>> hosts{};
    int my_host = 0;
    int my_place = 0; ///< index in hosts[my_host]; 0 leads

    [[nodiscard]] const std::vector<int>& mine() const {
        return hosts[static_cast<std::size_t>(my_host)];
    }
    [[nodiscard]] std::vector<int> leaders() const;
    /// host_of[r] = any text that is the same for ranks of one host.
    [[nodiscard]] static placement from(const std::vector<std::string>& host_of, int rank);
};

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/placement.ipp>
#endif
