// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a worker asks its driver about placement groups, and the answer: frames of the kind
// message_group.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace skein::rt::detail {

enum class group_matter : std::uint8_t {
    find = 0,    ///< the group of that name, which the worker holds from now on; a reply has it
    ready = 1,   ///< a reply comes when all its bundles have places
    remove = 2,  ///< it ends; a reply comes when nothing of it is left
    release = 3, ///< so often it was told of it, and there is no handle any more; no reply
    make = 4,    ///< one with a number of the worker's, which holds it once from now on; no reply
    hold = 5,    ///< a handle to it has come in a call, and counts as told once; no reply
};

/// Numbers that workers give to groups which they make: each its own, from here on. Its driver has
/// others for them.
inline constexpr std::uint64_t first_of_worker = std::uint64_t{1} << 63;
/// Of one worker, at a time.
inline constexpr std::size_t most_made_groups = 16'384, most_held_groups = 4 * most_made_groups;
inline constexpr std::size_t most_bundles = 4'096; ///< of one group

struct group_question {
    std::uint8_t matter = 0; ///< a group_matter
    std::uint64_t number = 0;
    std::uint64_t incarnation = 0, call = 0; ///< the id of the call that waits; 0: none
    std::uint32_t times = 0;
    std::string name;
    std::uint8_t strategy = 0; ///< with make, as the next two
    bool get_if_exists = false;
    std::vector<std::string> bundles;
};

struct group_answer {
    std::uint64_t number = 0;
    bool placed = false;
    std::vector<std::string> bundles;
};

} // namespace skein::rt::detail
