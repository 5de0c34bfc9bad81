// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a worker asks its driver about placement groups, and the answer: frames of the kind message_group.

#include <cstdint>
#include <string>
#include <vector>

namespace skein::rt::detail {

enum class group_matter : std::uint8_t {
    find = 0,    ///< the group of that name, which the worker holds from now on; a reply has it
    ready = 1,   ///< a reply comes when all its bundles have places
    remove = 2,  ///< it ends; a reply comes when nothing of it is left
    release = 3, ///< so often it was told of it, and there is no handle any more; no reply
};

struct group_question {
    std::uint8_t matter = 0; ///< a group_matter
    std::uint64_t number = 0;
    std::uint64_t incarnation = 0, call = 0; ///< the id of the call that waits; 0: none
    std::uint32_t times = 0;
    std::string name;
};

struct group_answer {
    std::uint64_t number = 0;
    bool placed = false;
    std::vector<std::string> bundles;
};

} // namespace skein::rt::detail
