// SPDX-License-Identifier: Apache-2.0
#pragma once
// peer_id: the number of a link of a driver, by which it knows the process at the other end.

#include <skein/core/ids.hpp>

namespace skein::rt {

/// A link of a driver.
using peer_id = strong_id<struct peer_tag>;

} // namespace skein::rt
