// SPDX-License-Identifier: Apache-2.0
#pragma once
// From the hosts of all ranks to groups of ranks.

#include <algorithm>

namespace skein::dist {

SKEIN_INLINE std::vector<int> placement::leaders() const {
    std::vector<int> first;
    for (const auto& h : hosts) first.push_back(h.front());
    return first;
}

SKEIN_INLINE placement placement::from(const std::vector<std::string>& host_of, int rank) {
    placement p;
    std::vector<std::string> names;
    for (std::size_t r = 0; r < host_of.size(); ++r) {
        const auto known = std::find(names.begin(), names.end(), host_of[r]);
        const auto h = static_cast<std::size_t>(known - names.begin());
        if (known == names.end()) {
            names.push_back(host_of[r]);
            p.hosts.emplace_back();
        }
        if (static_cast<int>(r) == rank) {
            p.my_host = static_cast<int>(h);
            p.my_place = static_cast<int>(p.hosts[h].size());
        }
        p.hosts[h].push_back(static_cast<int>(r));
    }
    return p;
}

} // namespace skein::dist
