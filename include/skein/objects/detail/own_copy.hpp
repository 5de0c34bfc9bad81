// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies in memory of one process alone, of objects that find no room in the store of its node.

#include <skein/core/task.hpp>
#include <skein/net/requests.hpp>
#include <skein/objects/arena.hpp>
#include <skein/objects/object_name.hpp>

namespace skein::objects::detail {

/// Of another node.
///   errors  exhausted: this process has no room either; those of far_read_request and of the link
[[nodiscard]] task<arena> copy_of_far(net::requests::handle over, object_name which);
/// Of one that is in a file.
///   errors  exhausted; those of fetch_request and of the link
[[nodiscard]] task<arena> copy_of_away(net::requests::handle over, object_name which);

} // namespace skein::objects::detail

#if SKEIN_HEADER_ONLY
#include <skein/objects/detail/own_copy.ipp>
#endif
